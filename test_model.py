"""
model.py against a float64 reference written from the papers' equations, against Hugging Face, and against the papers'
propositions, P2 and T4 being their names. Weights and gains are random, so that none can be left out unseen.
"""
import itertools
import math
import random
import re
import shutil
from dataclasses import fields

import pytest
import torch
from torch.nn import functional as F

from model import (
    ATTENTIONS,
    FFN,
    GPT,
    PARAMS,
    VARIANT_ATTENTIONS,
    Block,
    GPTConfig,
    Row,
    VariantBlock,
    VariantFFN,
    attach_aux_and_logged,
    block_type,
    check_rows,
    plain_attention,
)

torch.set_num_threads(1)            # tensors this small gain nothing from more

SIZES = dict(block_size=8, vocab_size=11, n_head=4, n_embd=16, dropout=0.0)
CHOICES = dict(norm=('layernorm', 'rmsnorm', 'stablenorm', 'dyt', 'derf', 'seednorm', 'gatednorm'),
               norm_gain=('learned', 'zero_centred', 'scalar', 'none'), attention=('dot', 'stable', 'l2', 'l2_tied', 'ngpt'),
               ffn=('gelu', 'gelu_tanh', 'relu', 'relu2', 'swiglu', 'geglu'), pos=('learned', 'rope'),
               init=('gpt2', 'normal', 'torchtitan', 'xavier', 'xavier_trunc', 'stable', 'magneto'), emb_init=('normal', 'head'),
               skip_scale=('one', 'deepnorm', 'keel'),
               residual=('add', 'gpas', 'ngpt', 'dual', 'siamese', 'attnres', 'hyper', 'mhc', 'mhc_lite'),
               branch_gain=('none', 'layerscale', 'rezero'))
NORMALIZING = ('layernorm', 'rmsnorm', 'stablenorm')        # which divide by the length of x
SWITCHES = ('bias input_norm attn_pre_norm ffn_pre_norm attn_mid_norm ffn_mid_norm attn_post_norm ffn_post_norm qk_norm v_norm '
            'linear_norm final_norm norm_depth_scale embedding_skip fused_qkv_init tie_weights sub_norm qk_norm_wide b2t '
            'value_residual attn_gate attn_sink parallel_ffn emb_gain emb_scale unit_weights').split()
AXES = CHOICES | dict.fromkeys(SWITCHES, (False, True)) | dict(
    n_layer=(1, 2), streams=(1, 3), n_kv_head=(0, 1, 2, 4), d_ff=(0, 24), residual_scale=(1.0, 0.3), norm_alpha=(0.5, 0.25),
    attn_norm_alpha=(0.0, 0.75), norm_eps=(1e-5, 1e-2), attn_tau=(1.618, 0.7), rope_theta=(10000.0, 50.0),
    init_gain=(1.0, 2.0), emb_std=(0.02, 0.1), mix_ln=(0.0, 0.8), mup_base_width=(0, 4), mup_base_depth=(0, 1),
    mup_base_head_dim=(0, 2))
TRAINING_ONLY = {'qk_clip', 'z_loss'}             # fields that change no logits and no cross-entropy


MID_NORM, POST_NORM = (dict.fromkeys((f'attn_{place}_norm', f'ffn_{place}_norm'), True) for place in ('mid', 'post'))


def valid(choice):
    """l2_tied shares queries and keys, so that their heads are as many. One rule for the depth excludes another. muP has two
    keys. Several streams have no PostNorm and no muP. GatedNorm and nGPT have no muP. A parallel FFN reads attention's PreNorm.
    L2 attention and nGPT's have no sink"""
    alpha = choice.get('skip_scale', 'one') != 'one'
    of_depth = [alpha, choice.get('norm_depth_scale', False)]
    of_mup = {choice[key] > 0 for key in ('mup_base_width', 'mup_base_head_dim') if key in choice}
    of_post = [choice.get(key, False) for key in ('attn_post_norm', 'ffn_post_norm', 'mix_ln', 'b2t', 'mup_base_width')]
    residual = choice.get('residual', 'add')
    of_serial = [choice.get(key, False) for key in ('ffn_pre_norm', 'attn_post_norm', 'mix_ln', 'b2t')]
    return ((choice.get('attention') not in ('l2_tied', 'ngpt') or choice.get('n_kv_head', 0) in (0, SIZES['n_head']))
            and (choice.get('mup_base_depth', 0) == 0 or not any(of_depth)) and len(of_mup) < 2
            and (choice.get('attention') not in ('stable', 'ngpt') or not choice.get('qk_norm_wide', False))
            and (choice.get('attention', 'dot') in ('dot', 'stable') or not choice.get('attn_sink', False))
            and (True not in of_mup or choice.get('norm') != 'gatednorm' and choice.get('attention') != 'ngpt'
                 and not choice.get('unit_weights', False))
            and (residual == 'add' or not alpha)
            and (residual == 'add' and not alpha and not any(of_serial) or not choice.get('parallel_ffn', False))
            and (residual in ('add', 'gpas') or not any(of_post) and not choice.get('mup_base_head_dim')))


PAIRS = [pair for a, b in itertools.combinations(AXES, 2) for u in AXES[a] for v in AXES[b]
         if valid(pair := {a: u, b: v})]


def random_config(rng, given, axes=AXES):
    """Any config that has the given values: axis by axis, in any order, a value that goes with those before"""
    config = dict(given)
    for axis in rng.sample(sorted(axes.keys() - given.keys()), k=len(axes.keys() - given.keys())):
        config[axis] = rng.choice([value for value in axes[axis] if valid(config | {axis: value})])
    return config


def covering(pairs, rng):
    """Few configs that hold every pair of values: each time the best of ten with one that is still missing."""
    configs = []
    while pairs:
        tries = [random_config(rng, pairs[0]) for _ in range(10)]
        configs.append(max(tries, key=lambda config: sum(pair.items() <= config.items() for pair in pairs)))
        pairs = [pair for pair in pairs if not pair.items() <= configs[-1].items()]
    return configs


COVERING = covering(PAIRS, random.Random(0))
RANDOM = [random_config(random.Random(seed), {}) for seed in range(100)]
CONFIGS = COVERING + [pytest.param(config, marks=pytest.mark.long) for config in RANDOM]        # all pairs; and what else meets


@torch.no_grad()
def build(**config):
    """A small float64 model in which every weight, gain and bias is far from where it starts."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)              # its constants, such as DeepNorm's α, are exact then
    try:
        model = GPT(GPTConfig(**SIZES | dict(n_layer=2) | config))
    finally:
        torch.set_default_dtype(torch.float32)
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    return model


def with_kernel(model, fused):
    """The model, its attention by PyTorch's kernel or by plain products."""
    for block in model.h:
        block.attn.kernel = F.scaled_dot_product_attention if fused else plain_attention
    return model


def tokens(*shape):
    return torch.randint(SIZES['vocab_size'], shape, generator=torch.Generator().manual_seed(1))


def close(a, b, tol):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


# ----------------------------------------------------------------------------- the reference

def causal_softmax(logits):
    future = torch.ones(logits.shape[-2:]).triu(1).bool()
    return logits.masked_fill(future, -torch.inf).softmax(-1)


def reference(c, w, idx):
    """Logits of idx (B, T) under config c and weights w, in the papers' equations and without a line of model.py."""
    x = w['wte.weight'][idx] * (math.sqrt(c.n_embd) if c.emb_scale else 1)
    x = (x + (w['wpe.weight'][:idx.size(1)] if c.pos == 'learned' else 0)) * (w['emb_gain.weight'] if c.emb_gain else 1)
    logits = reference_blocks(c, w, x, causal_softmax) @ w['wte.weight' if c.tie_weights else 'lm_head.weight'].T
    return logits * w['head_gain.weight'] * math.sqrt(c.n_embd) if c.unit_weights else logits       # from 1, stored as 1/√D


def reference_blocks(c, w, x, softmax, pool=lambda x: x):
    """From the sum of the embeddings (B, T, D) to what the head sees."""
    E, T = c.n_embd // c.n_head, x.size(1)
    group = c.n_head // (c.n_kv_head or c.n_head)                       # query heads to a key/value head

    def linear(name, x):
        biased = c.bias and (getattr(c, 'qkv_bias', True) or name[-2:] not in ('wq', 'wk', 'wv'))         # a ViT's
        return stream_norm(c.linear_norm, f'{name}.norm', x @ w[f'{name}.weight'].T + (w[f'{name}.bias'] if biased else 0))

    def norm(name, x, alpha):
        """γ ⊙ d^α x / √(‖x‖² + ε), the papers' ε being ours times d"""
        d = x.size(-1)
        return gain_of(name) * d ** alpha * x / (x.square().sum(-1, keepdim=True) + d * c.norm_eps).sqrt()

    def gain_of(name):
        return 1 if c.norm_gain == 'none' else w[f'{name}.weight'] + (c.norm_gain == 'zero_centred')

    def stream_norm(on, name, x, alpha=c.norm_alpha):
        if not on:
            return x
        if c.norm in ('dyt', 'derf'):
            gain, bias, ax = gain_of(name), w[f'{name}.bias'], w[f'{name}.alpha'] * x
            return gain * (torch.tanh(ax) if c.norm == 'dyt' else torch.erf(ax + w[f'{name}.shift'])) + bias
        if c.norm == 'layernorm':
            y = norm(name, x - x.mean(-1, keepdim=True), 0.5)
            return y + w[f'{name}.bias'] if c.bias else y
        if c.norm == 'seednorm':
            rms = (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt()
            return (w[f'{name}.alpha'] * torch.tanh((x * w[f'{name}.beta']).sum(-1, keepdim=True)) + gain_of(name)) * x / rms
        y = norm(name, x, alpha if c.norm == 'stablenorm' else 0.5)
        if c.norm == 'gatednorm':
            a = y @ w[f'{name}.down.weight'].T
            y = y / (1 + torch.exp(-(a / (1 + torch.exp(-a))) @ w[f'{name}.up.weight'].T))
        return y

    def unit(x):
        return x / x.square().sum(-1, keepdim=True).sqrt()

    def scaled(name, x):
        return x * w[f'{name}_gain.weight'] * math.sqrt(c.n_embd) if c.unit_weights else x

    def rotate(x):
        """RoPE turns the complex number x_i + j x_{i+E/2} by position · θ^(−2i/E)."""
        angle = torch.arange(T)[:, None] * c.rope_theta ** (-2 * torch.arange(E // 2, dtype=torch.float64) / E)
        turn = torch.complex(angle.cos().float().double(), angle.sin().float().double())        # the model's tables are in fp32
        z = torch.complex(x[..., :E // 2], x[..., E // 2:]) * turn
        return torch.cat((z.real, z.imag), -1)

    def attention(name, x):
        wk, k_norm = ('wq', 'q_norm') if c.attention == 'l2_tied' else ('wk', 'k_norm')
        Q, K, V = (linear(f'{name}.{matrix}', x) for matrix in ('wq', wk, 'wv'))
        if c.qk_norm and c.qk_norm_wide:
            Q, K = norm(f'{name}.q_norm', Q, 0.5), norm(f'{name}.{k_norm}', K, 0.5)
        if c.v_norm:
            V = torch.cat([norm(f'{name}.v_norm', v, c.norm_alpha if c.norm == 'stablenorm' else 0.5)
                           for v in V.split(E, -1)], -1)
        if c.value_residual:
            first_values.append(V)
            if len(first_values) > 1:
                V = w[f'{name}.v_gain'] * V + w[f'{name}.v1_gain'] * first_values[0]
        heads = []
        for h in range(c.n_head):
            g = h // group
            q, k, v = Q[..., h * E:(h + 1) * E], K[..., g * E:(g + 1) * E], V[..., g * E:(g + 1) * E]
            if c.attention == 'stable' or c.qk_norm and not c.qk_norm_wide:     # in StableAtten d^2α cancels: α = 0
                alpha = 0 if c.attention == 'stable' else c.norm_alpha if c.norm == 'stablenorm' else 0.5
                q, k = norm(f'{name}.q_norm', q, alpha), norm(f'{name}.{k_norm}', k, alpha)
            if c.pos == 'rope':
                q, k = rotate(q), rotate(k)
            divisor = E / math.sqrt(c.mup_base_head_dim) if c.mup_base_width else math.sqrt(E)
            if c.attention == 'ngpt':                                   # s, stored as s/√D, is one for both
                s = w[f'{name}.qk_gain.weight'][h * E:(h + 1) * E] * math.sqrt(c.n_embd)
                logits = (s * unit(q)) @ (s * unit(k)).mT * math.sqrt(E)
            elif c.attention == 'dot':
                logits = q @ k.mT / divisor
            elif c.attention == 'stable':
                logits = c.attn_tau * math.log2(c.block_size) * (q @ k.mT)
            else:
                logits = -(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / divisor
            a = softmax(logits)
            if c.attn_sink:                                             # divided by Σ exp(logits) + exp(s)
                own, share = (y.diagonal(dim1=-2, dim2=-1)[..., None] for y in (logits, a))
                a = a / (1 + torch.exp(w[f'{name}.sink'][h] - own) * share)         # Σ exp(logits) = exp(own) / share
            heads.append(a @ v)
        y = torch.cat(heads, -1)
        y = y / (1 + torch.exp(-linear(f'{name}.wg', x))) if c.attn_gate else y
        return linear(f'{name}.wo', stream_norm(c.sub_norm, f'{name}.inner_norm', y))

    def ffn(name, x):
        a = scaled(f'{name}.w1', linear(f'{name}.w1', x))
        assert a.size(-1) == (c.d_ff or 4 * c.n_embd)
        if c.ffn == 'gelu':
            y = a * (1 + torch.erf(a / math.sqrt(2))) / 2
        elif c.ffn == 'gelu_tanh':
            y = a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3))) / 2
        elif c.ffn == 'relu':
            y = a * (a > 0)
        elif c.ffn == 'relu2':
            y = a * a * (a > 0)
        elif c.ffn == 'geglu':
            gate = a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3))) / 2
            y = gate * scaled(f'{name}.w3', linear(f'{name}.w3', x))
        else:
            y = a * torch.sigmoid(a) * scaled(f'{name}.w3', linear(f'{name}.w3', x))
        return linear(f'{name}.w2', stream_norm(c.sub_norm, f'{name}.inner_norm', y))

    def depth_attention(name, outputs):
        """The mean of outputs by w·RMSNorm(output) (AttnRes, eq. 2 to 4)"""
        e = [torch.exp((norm(f'{name}.norm', v, 0.5) * w[f'{name}.query']).sum(-1, keepdim=True)) for v in outputs]
        return sum(weight * v for weight, v in zip(e, outputs)) / sum(e)

    def siamese_norms(name, h):
        return stream_norm(True, f'{name}.x_norm', h[0]), stream_norm(True, f'{name}.y_norm', h[1])

    def hyper_weights(name, h):
        """One stream's row of A_m and A_r, and its B (hyper-connections, eq. 10 to 13)"""
        def row(i):
            a = w[f'{name}.a'][i] + w[f'{name}.sa'] * torch.tanh(stream_norm(True, f'{name}.norm', h[i]) @ w[f'{name}.wa'])
            b = w[f'{name}.b'][i] + w[f'{name}.sb'] * torch.tanh(stream_norm(True, f'{name}.norm', h[i]) @ w[f'{name}.wb'])
            return a, b
        rows = [row(i) for i in range(c.streams)]
        return [a for a, _ in rows], [b.unsqueeze(-1) for _, b in rows]

    def mhc_weights(name, h):
        """a_j, b_j and A (mHC, eq. 7 to 9): 20 rounds of columns, then rows; mHC-lite, eq. 4 and 5: a mean of permutations"""
        n, vec = c.streams, torch.cat(h, -1)
        part = vec / (vec.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() @ w[f'{name}.w']
        s = w[f'{name}.s']
        logits = w[f'{name}.c'] + part * torch.cat((s[0].repeat(n), s[1].repeat(n), s[2].repeat(part.size(-1) - 2 * n)))
        if c.residual == 'mhc_lite':
            e, orders = torch.exp(logits[..., 2 * n:]), list(itertools.permutations(range(n)))
            A = [[sum(e[..., k] for k, order in enumerate(orders) if order[i] == j) / e.sum(-1) for j in range(n)]
                 for i in range(n)]
        else:
            A = [[torch.exp(logits[..., 2 * n + n * i + j]) for j in range(n)] for i in range(n)]
            for _ in range(20):
                columns = [sum(A[i][j] for i in range(n)) for j in range(n)]
                A = [[A[i][j] / columns[j] for j in range(n)] for i in range(n)]
                A = [[A[i][j] / sum(A[i]) for j in range(n)] for i in range(n)]
        gates = 1 / (1 + torch.exp(-logits))
        return gates[..., :n].split(1, -1), (2 * gates[..., n:2 * n]).split(1, -1), A

    first_values = []
    x = x0 = stream_norm(c.input_norm, 'input_norm', x)
    # ResiDual's sum; SiameseNorm's X and Y, AttnRes's outputs, or the streams of hyper-connections and mHC
    running, h = x, [x] * dict(siamese=2, attnres=1).get(c.residual, c.streams)
    dt = c.residual_scale * (c.mup_base_depth or c.n_layer) / c.n_layer
    alpha = dict(one=1, deepnorm=(2 * c.n_layer) ** 0.25, keel=2 * c.n_layer)[c.skip_scale]
    for i in range(c.n_layer):
        if c.embedding_skip:
            x, running, *h = (w[f'h.{i}.x_gain'] * y + w[f'h.{i}.x0_gain'] * x0 for y in (x, running, *h))
        x_in = x
        post_ln = i + 1 <= c.mix_ln * c.n_layer
        for f, branch in (attention, 'attn'), (ffn, 'ffn'):
            mid, post, name = getattr(c, f'{branch}_mid_norm'), getattr(c, f'{branch}_post_norm') or post_ln, f'h.{i}.{branch}'
            if c.residual == 'hyper':
                a, b = hyper_weights(f'{name}_residual', h)
                x = sum(a[j][..., :1] * h[j] for j in range(c.streams))
            elif c.residual in ('mhc', 'mhc_lite'):
                a, b, A = mhc_weights(f'{name}_residual', h)
                x = sum(a[j] * h[j] for j in range(c.streams))
            elif c.residual == 'attnres':
                x = depth_attention(f'{name}_residual', h)
            elif c.residual == 'siamese':
                normed, x = siamese_norms(f'{name}_residual', h)
                x = x + normed
            source, place = (x_in, 'attn') if c.parallel_ffn else (x, branch)           # both read the same norm of the same
            pre = getattr(c, f'{place}_pre_norm') and not post_ln
            alpha_pre = place == 'attn' and c.attn_norm_alpha or c.norm_alpha
            y = stream_norm(pre, f'h.{i}.{place}_pre_norm', source, alpha_pre)
            y = y / (math.sqrt(i + 1) if pre and c.norm_depth_scale else 1)
            y = stream_norm(mid, f'{name}_mid_norm', f(name, y))
            gain = w[f'{name}_gain.weight'] if c.branch_gain != 'none' else 1
            step = dt * gain * y
            if c.residual == 'hyper':
                h = [b[j] * step + sum(a[k][..., 1 + j:2 + j] * h[k] for k in range(c.streams)) for j in range(c.streams)]
                continue
            if c.residual in ('mhc', 'mhc_lite'):
                h = [b[j] * step + sum(A[j][k].unsqueeze(-1) * h[k] for k in range(c.streams)) for j in range(c.streams)]
                continue
            if c.residual == 'attnres':
                h = [*h, step]
                continue
            if c.residual == 'siamese':
                h = [normed + step / math.sqrt(2 * (i + 1)), h[1] + step]
                continue
            if c.residual == 'ngpt':                                    # |α| is stored as α / (0.05 √D)
                rate = (0.05 * math.sqrt(c.n_embd) * w[f'{name}_residual.rate.weight']).abs()
                x = unit(unit(x) + dt * rate * (unit(gain * y) - unit(x)))
                continue
            x, running = alpha * x + step, running + step
            if c.residual == 'gpas':
                g = w[f'{name}_residual.gate']
                x = x - g / (1 + torch.exp(-g)) * x.detach()
            if c.b2t and branch == 'ffn':
                x = x + x_in
            x = stream_norm(post, f'{name}_post_norm', stream_norm(c.residual == 'dual', f'{name}_residual.norm', x))
    head = f'h.{c.n_layer - 1}.ffn_residual.head'
    x = depth_attention(head, h) if c.residual == 'attnres' else sum(siamese_norms(head, h)) if c.residual == 'siamese' else x
    x, running = pool(sum(h) if c.residual in ('hyper', 'mhc', 'mhc_lite') else x), pool(running)
    x = (x + stream_norm(c.final_norm, 'final_norm', running) if c.residual == 'dual' else
         stream_norm(c.final_norm, 'final_norm', x))
    return x * (c.mup_base_width or c.n_embd) / c.n_embd


def test_every_field_and_every_pair_of_values_is_tried():
    new = {f.name for f in fields(GPTConfig)} - set(SIZES) - set(AXES) - TRAINING_ONLY
    assert not new, f'the reference does not know {new}: add it to reference_blocks, and its values to SWITCHES or AXES'
    for pair in PAIRS:
        assert any(pair.items() <= config.items() for config in COVERING), pair


@pytest.mark.parametrize('config, fused', [
    *((config, fused) for config in COVERING for fused in (True, False)),
    *(pytest.param(config, fused, marks=pytest.mark.long) for config in RANDOM for fused in (True, False))])
def test_logits_loss_and_gradients_equal_the_reference(config, fused):
    # in float64 even a misplaced ε shows
    model, idx, targets = with_kernel(build(**config), fused), tokens(2, 7), tokens(2, 9)[:, 2:].clone()
    targets[1, 3:] = -1                                                 # not a target
    w = {name: p.detach().clone().requires_grad_() for name, p in model.state_dict().items()}
    expected = reference(model.config, w, idx)
    log_probs = expected.log_softmax(-1)
    log_likelihood = [log_probs[b, t, targets[b, t]] for b in range(2) for t in range(7) if targets[b, t] >= 0]
    expected_loss = -sum(log_likelihood) / 10
    close(model(idx)[0], expected, 1e-9)
    logits, loss = model(idx, targets)
    assert logits is None                                               # in training mode
    close(loss, expected_loss, 1e-9)
    loss.backward()
    expected_loss.backward()
    for name, p in model.named_parameters():    # each beside its own largest entry, which saturated attention leaves tiny
        size = w[name].grad.abs().max() + 1e-4
        close(p.grad / size, w[name].grad / size, 1e-8)


@pytest.mark.parametrize('config', CONFIGS[::4])
def test_is_causal(config):
    model, idx = build(**config), tokens(2, 7)
    changed = idx.clone()
    changed[:, -1] = (idx[:, -1] + 1) % SIZES['vocab_size']
    a, b = model(idx)[0], model(changed)[0]
    close(a[:, :-1], b[:, :-1], 1e-12)
    assert (a[:, -1] - b[:, -1]).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize('config', CONFIGS)
def test_every_parameter_has_a_finite_gradient(config):
    model = GPT(GPTConfig(**SIZES | config))
    loss = model(tokens(2, 8), tokens(2, 9)[:, 1:])[1]
    loss.backward()
    assert loss.isfinite()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name


# ----------------------------------------------------------------------------- Hugging Face

HF = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
          num_key_value_heads=2, head_dim=8, max_position_embeddings=16, tie_word_embeddings=False,
          rms_norm_eps=1e-3, rope_parameters=dict(rope_type='default', rope_theta=50.0))
OURS = {'model.embed_tokens': 'wte', 'model.norm': 'final_norm', 'model.layers': 'h',
        'post_attention_layernorm': 'ffn_pre_norm', 'input_layernorm': 'attn_pre_norm', 'self_attn': 'attn',
        'q_proj': 'wq', 'k_proj': 'wk', 'v_proj': 'wv', 'o_proj': 'wo',
        'mlp': 'ffn', 'gate_proj': 'w1', 'up_proj': 'w3', 'down_proj': 'w2'}


@torch.no_grad()
def randomize(model):
    torch.manual_seed(0)
    for p in model.parameters():
        p.add_(0.2 * torch.randn_like(p))       # large enough for a wrong scale or ε to show well above 1e-4
    return model.eval()


OLMO2 = dict(qk_norm=True, qk_norm_wide=True, attn_pre_norm=False, ffn_pre_norm=False, **MID_NORM)


@pytest.mark.parametrize('family, config, tol', [
    ('Llama', {}, 1e-4), ('Qwen3', dict(qk_norm=True), 1e-4), ('Olmo2', OLMO2, 1e-5)])
def test_equals_hugging_face(family, config, tol):
    hf = pytest.importorskip('transformers')
    theirs = randomize(getattr(hf, f'{family}ForCausalLM')(getattr(hf, f'{family}Config')(**HF)))
    ours = GPT(GPTConfig(block_size=16, vocab_size=50, n_layer=2, n_head=4, n_kv_head=2, n_embd=32, d_ff=48, tie_weights=False,
                         norm='rmsnorm', norm_eps=1e-3, ffn='swiglu', pos='rope', rope_theta=50.0, **config))
    behind = {'post_attention_layernorm': 'attn_mid_norm', 'post_feedforward_layernorm': 'ffn_mid_norm'}
    names = OURS | (behind if family == 'Olmo2' else {})
    rename = re.compile('|'.join(map(re.escape, names)))
    ours.load_state_dict({rename.sub(lambda m: names[m[0]], name): p for name, p in theirs.state_dict().items()})
    close(ours(tokens(3, 16))[0], theirs(tokens(3, 16)).logits, tol)


# ----------------------------------------------------------------------------- norms and attentions

def attention_layer(**config):
    """One attention whose W_o is the identity, so that its output is the heads'."""
    attn = build(**config).h[0].attn
    attn.wo.weight.data.copy_(torch.eye(len(attn.wo.weight)))
    return attn


@pytest.mark.parametrize('attention', ['l2', 'l2_tied'])
@pytest.mark.parametrize('qk_norm', [False, True])
@pytest.mark.parametrize('dtype, tol', [(torch.float64, 1e-9), (torch.float32, 1e-2), (torch.bfloat16, 2 ** -8)])
@torch.no_grad()
def test_l2_attention_keeps_its_precision_at_large_norms(dtype, tol, qk_norm, attention):
    # ‖k‖² is in the ten thousands but ‖q − k‖² is not: with ‖k‖² in bf16 the logits would be off by tens.
    # In bf16 the bound is the roundings of a plain attention: one of each probability, and one of the output.
    attn = attention_layer(attention=attention, qk_norm=qk_norm, n_head=1, bias=True)
    for name, p in attn.named_parameters():
        if name in ('wq.bias', 'wk.bias'):
            p.fill_(60.0)
        elif name in ('q_norm.weight', 'k_norm.weight'):
            p.copy_(torch.linspace(30, 90, 16))
    attn.wo.bias.zero_()
    attn.to(torch.promote_types(dtype, torch.float32))
    x = 0.5 * torch.randn(4, 32, 16).to(attn.wq.weight.dtype)
    wk, k_norm = (attn.wq, attn.q_norm) if attention == 'l2_tied' else (attn.wk, attn.k_norm)
    with torch.autocast('cpu', torch.bfloat16, enabled=dtype == torch.bfloat16):
        q, k, v, y = attn.q_norm(attn.wq(x)).to(dtype).double(), k_norm(wk(x)).to(dtype).double(), attn.wv(x), attn(x)
    assert v.dtype == y.dtype == dtype and k.square().sum(-1).min() > 40000
    distance = (q[:, :, None] - k[:, None]).square().sum(-1)
    assert (y - causal_softmax(-distance / math.sqrt(16)) @ v.double()).abs().max() < tol * v.abs().max()


@pytest.mark.long
@pytest.mark.skipif(not (shutil.which('g++') or shutil.which('c++')), reason='torch.compile on a CPU needs a C++ compiler')
@torch.no_grad()
def test_l2_attention_keeps_its_precision_when_compiled():
    """A compiler may compute in fp32 what is written in bf16, and so lose the parts of ‖k‖² that a cast would have left."""
    attn = attention_layer(attention='l2', n_head=1)
    q, k = (60 + 3 * torch.randn(2, 2, 1, 32, 16)).bfloat16()
    v = torch.randn(2, 1, 32, 16).bfloat16()
    y = torch.compile(attn.attend)(q, k, v)
    distance = (q.double()[..., :, None, :] - k.double()[..., None, :, :]).square().sum(-1)
    assert (y - causal_softmax(-distance / math.sqrt(16)) @ v.double()).abs().max() < 2 ** -8 * v.abs().max()


def test_layers_share_the_tables_of_rope():
    buffers = dict(GPT(GPTConfig(**SIZES | dict(n_layer=3, pos='rope'))).named_buffers())
    assert sorted(name.split('.')[-1] for name in buffers) == ['cos', 'sin']


# ----------------------------------------------------------------------------- plain blocks and their variants

@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('config', [
    dict(), dict(ffn='swiglu', pos='rope', n_kv_head=2), dict(**MID_NORM, **POST_NORM, qk_norm=True)])
def test_variants_equal_the_plain_block_at_the_defaults(config, attention):
    """Bit for bit, with gradients and a step's dropout. An edit of one must stand in the other"""
    config = GPTConfig(**SIZES | config | dict(n_layer=1, attention=attention, dropout=0.1, n_kv_head=0 if attention in (
        'l2_tied', 'ngpt') else config.get('n_kv_head', 0)))
    plain, variant, found = Block(config, 1), VariantBlock(config, 1), []
    variant.attn, variant.ffn = VARIANT_ATTENTIONS[attention](config), VariantFFN(config)
    assert type(plain.attn) is ATTENTIONS[attention] and type(plain.ffn) is FFN
    variant.load_state_dict(plain.state_dict())
    for block in plain, variant:
        torch.manual_seed(0)
        x = torch.randn(2, 8, 16, requires_grad=True)
        y = block(x)
        y.square().sum().backward()
        found.append([y, x.grad, *(p.grad for _, p in sorted(block.named_parameters()))])
    assert all(map(torch.equal, *found))


# ----------------------------------------------------------------------------- the papers' propositions

def block(**config):
    """One block, with an ε that is nothing beside the mean squares."""
    return build(norm_eps=1e-12, **config).h[0]


def branch(b, name):
    """x → Δt f(x), one branch of a block; the other is silenced."""
    (b.ffn.w2 if name == 'attn' else b.attn.wo).weight.data.zero_()
    return lambda x: b(x) - x


def jacobian(f, x):
    return torch.autograd.functional.jacobian(f, x).reshape(x.numel(), x.numel())


@pytest.mark.parametrize('norm', NORMALIZING)
@pytest.mark.parametrize('attention', CHOICES['attention'])
@pytest.mark.parametrize('name', ['attn', 'ffn'])
def test_p2_pre_norm_forgets_the_scale_of_each_token(name, attention, norm):
    f, x = branch(block(norm=norm, attention=attention), name), torch.randn(2, 7, 16).double()
    close(f(x * (10 * torch.rand(2, 7, 1) + 0.1)), f(x), 1e-7)


@pytest.mark.parametrize('norm', NORMALIZING)
@pytest.mark.parametrize('mid_norm', [True, False])
@pytest.mark.parametrize('name, matrix', [('attn', 'wv'), ('attn', 'wo'), ('ffn', 'w1'), ('ffn', 'w2')])
def test_p3_p7_p8_the_scale_of_the_weights_is_forgotten_with_mid_norm_only(name, matrix, mid_norm, norm):
    b, x = block(norm=norm, **dict.fromkeys(MID_NORM, mid_norm), ffn='relu'), torch.randn(1, 3, 16).double()
    f, factor = branch(b, name), 1 if mid_norm else 7
    value, slope = f(x), jacobian(f, x)
    b.get_submodule(f'{name}.{matrix}').weight.data *= 7
    close(f(x), factor * value, 1e-6)
    close(jacobian(f, x), factor * slope, 1e-6)


@pytest.mark.parametrize('norm', NORMALIZING)
def test_p4_post_norm_divides_the_jacobian_by_the_length_of_its_input(norm):
    b = block(norm=norm, norm_alpha=0.3, **POST_NORM)
    first, second = b.attn_post_norm, b.ffn_post_norm
    for matrix in b.attn.wo, b.ffn.w2:                                  # leaves Norm(Norm(x))
        matrix.weight.data.zero_()

    def slope(gain, x):
        """γ d^α / ‖z‖ (I − z zᵀ / ‖z‖²), z = x or, in LayerNorm, the centered x"""
        center = torch.eye(16).double() - (1 / 16 if norm == 'layernorm' else 0)
        z, alpha = center @ x, 0.3 if norm == 'stablenorm' else 0.5
        return gain[:, None] * 16 ** alpha / z.norm() * (center - torch.outer(z, z) / z.norm() ** 2)

    for length in 1.0, 10.0, 1000.0:
        x = length * torch.randn(16).double()
        expected = slope(second.weight, first(x)) @ slope(first.weight, x)
        close(length * jacobian(b, x.view(1, 1, 16)), length * expected, 1e-6)


@pytest.mark.parametrize('norm', NORMALIZING)
@pytest.mark.parametrize('attention', CHOICES['attention'])
@pytest.mark.parametrize('pos', CHOICES['pos'])
def test_p5_qk_norm_forgets_the_scale_of_queries_and_keys(attention, norm, pos):
    b, x = block(norm=norm, attention=attention, qk_norm=True, pos=pos), torch.randn(2, 7, 16).double()
    before = b(x)
    for matrix in ['wq'] if attention == 'l2_tied' else ['wq', 'wk']:
        b.attn.get_submodule(matrix).weight.data *= 7
        close(b(x), before, 1e-7)


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('norm', NORMALIZING)
@pytest.mark.parametrize('pre_norm', [True, False])
@pytest.mark.parametrize('dt', [1.0, 0.1])
@pytest.mark.parametrize('mid_norm', [True, False])
def test_t4_mid_norm_bounds_the_hidden_states_whatever_the_weights(mid_norm, dt, pre_norm, norm, bias):
    model = build(n_layer=4, **dict.fromkeys(MID_NORM, mid_norm), attn_pre_norm=pre_norm, ffn_pre_norm=pre_norm,
                  residual_scale=dt, norm=norm, bias=bias)
    output_norms = [(name, p.abs().max().item()) for name, p in model.named_parameters() if '_mid_norm.' in name]
    gamma = max((size for name, size in output_norms if name.endswith('weight')), default=1.0)     # none in Pre-LN
    beta = max((size for name, size in output_norms if name.endswith('bias')), default=0.0)
    for name, p in model.named_parameters():
        if block_type(name) in ('qk', 'vo', 'ffn'):
            p.data *= 100
    states = []
    model.h[0].register_forward_pre_hook(lambda module, args: states.append(args[0]))
    model.h[-1].register_forward_hook(lambda module, args, output: states.append(output))
    model(tokens(1, 8))
    first, last = states
    bound = first.norm() / math.sqrt(8 * 16) + 2 * dt * 4 * (gamma + beta)
    assert (last.abs().mean() <= bound) == mid_norm                     # without MidNorm the same weights exceed it
    assert (last.var() <= 8 * 16 * bound ** 2 / (8 * 16 - 1)) == mid_norm


# ----------------------------------------------------------------------------- initialization

@pytest.mark.parametrize('gain', [1.0, 0.5])
@pytest.mark.parametrize('tied', [True, False])
@pytest.mark.parametrize('init', CHOICES['init'])
def test_init_is_the_table_of_stds(init, tied, gain):
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=64, vocab_size=384, n_layer=3, n_head=4, n_kv_head=2, n_embd=128, d_ff=320,
                          bias=True, qk_norm=True, **MID_NORM, ffn='swiglu',
                          init=init, init_gain=gain, tie_weights=tied))
    for name, p in model.named_parameters():
        if p.dim() == 1:
            assert (p == (0 if name.endswith('bias') else 1)).all(), name
            continue
        n_out, n_in = p.shape
        std = gain * {'gpt2': 0.02, 'normal': 0.02, 'torchtitan': 0.02, 'xavier': math.sqrt(2 / (n_in + n_out)),
                      'xavier_trunc': math.sqrt(2 / (n_in + n_out)), 'stable': 1 / (math.sqrt(n_in) + math.sqrt(n_out)),
                      'magneto': math.sqrt(2 / (n_in + n_out))}[init]
        if name in ('wte.weight', 'wpe.weight'):
            std = 0.02
        elif init == 'gpt2' and name.split('.')[-2] in ('wo', 'w2'):
            std /= math.sqrt(2 * 3)
        elif init == 'torchtitan' and name.split('.')[-2] in ('wo', 'w2', 'w3'):
            std /= math.sqrt(2 * int(name[2]) + 2)
        elif init == 'torchtitan' and name == 'lm_head.weight':
            std = gain / math.sqrt(n_in)
        elif init == 'magneto' and block_type(name) in ('vo', 'ffn'):
            std *= math.sqrt(math.log(2 * 3))
        sampling = 5 / math.sqrt(2 * p.numel())                         # five standard errors
        assert p.std().item() == pytest.approx(std, rel=sampling), name
        assert abs(p.mean().item()) < 5 * std / math.sqrt(p.numel()), name
        if init == 'xavier_trunc' and block_type(name) not in ('emb', 'pos'):
            assert 2.2 * std < p.abs().max() <= 2 * std / 0.8796        # a deviation that cutting at two of it leaves 0.8796 of


def test_embedding_std():
    """emb_std is that of wte and wpe; with emb_init=head, a tied wte starts as a matrix of `init`, by init_gain too."""
    sizes = dict(n_layer=1, n_head=4, n_embd=128, vocab_size=512, block_size=256, init='xavier', init_gain=2.0)
    like_head = 2 * (2 / (512 + 128)) ** 0.5
    for tied, emb_init, emb_std, wte, wpe in ((True, 'normal', 0.1, 0.1, 0.1), (True, 'head', 0.02, like_head, 0.02),
                                              (False, 'head', 0.02, 0.02, 0.02), (False, 'normal', 0.3, 0.3, 0.3)):
        torch.manual_seed(0)
        model = GPT(GPTConfig(**sizes, tie_weights=tied, emb_init=emb_init, emb_std=emb_std))
        assert model.wte.weight.std().item() == pytest.approx(wte, rel=0.03)
        assert model.wpe.weight.std().item() == pytest.approx(wpe, rel=0.03)
        assert model.lm_head.weight.std().item() == pytest.approx(wte if tied else like_head, rel=0.03)


@pytest.mark.parametrize('more, rows', [({}, 3 * 128), (dict(n_kv_head=2), 128 + 2 * 64), (dict(attention='l2_tied'), 2 * 128)])
def test_fused_qkv_init(more, rows):
    """W_q, W_k, W_v start by the shape of one matrix with all of their rows; the others by their own."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(n_layer=2, n_head=4, n_embd=128, vocab_size=64, block_size=16, init='xavier', fused_qkv_init=True,
                          **more))
    for block in model.h:
        for name, w in block.attn.named_parameters():
            wanted = (2 / ((rows if name[:2] in ('wq', 'wk', 'wv') else 128) + 128)) ** 0.5
            assert w.std().item() == pytest.approx(wanted, rel=0.04), name


@pytest.mark.parametrize('more', [dict(residual='hyper'), dict(residual='hyper', streams=1), dict(residual='gpas'),
                                  dict(norm='seednorm'), dict(norm_gain='zero_centred'), dict(norm_gain='none'),
                                  dict(embedding_skip=True)], ids=str)
def test_what_starts_as_the_plain_model(more):
    """Hyper-connections, GPAS, SeeDNorm and embedding skips start as Pre-LN with RMSNorm, and gains of other forms are 1"""
    models = []
    for keys in {}, more:
        torch.manual_seed(0)
        models.append(GPT(GPTConfig(**SIZES, **{'norm': 'rmsnorm', 'n_layer': 3, 'norm_eps': 1e-12} | keys)))
    idx = tokens(2, 7)
    close(models[1](idx)[0], models[0](idx)[0], 1e-5)


@pytest.mark.parametrize('keys, names, value', [
    (dict(residual='hyper'), 'sa sb', 0.01), (dict(residual='mhc'), 's', 0.01), (dict(residual='mhc_lite'), 's', 0.01),
    (dict(residual='attnres'), 'query', 0.0),           # each branch reads the mean of the embedding and the branches so far
    (dict(norm='dyt', norm_alpha=0.2), 'attn_pre_norm.alpha ffn_pre_norm.alpha final_norm.alpha', 0.2),
    (dict(norm='derf', norm_alpha=0.2, attn_norm_alpha=0.8), 'attn_pre_norm.alpha', 0.8),
    (dict(norm='derf'), 'shift', 0.0), (dict(emb_gain=True), 'emb_gain.weight', 4.0),               # √n_embd
    (dict(branch_gain='rezero'), 'attn_gain.weight ffn_gain.weight', 0.0),
    *((dict(branch_gain='layerscale', n_layer=n_layer), 'attn_gain.weight ffn_gain.weight', start)                     # CaiT's
      for n_layer, start in ((2, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)))], ids=str)
def test_what_starts_at_a_value(keys, names, value):
    model = GPT(GPTConfig(**SIZES | dict(n_layer=2) | keys))
    for name in names.split():
        found = [p for key, p in model.named_parameters() if f'.{key}'.endswith(f'.{name}')]
        assert found and all(torch.allclose(p, torch.tensor(value), rtol=1e-6, atol=0) for p in found), name


@pytest.mark.parametrize('residual', ['mhc', 'mhc_lite'])
def test_mhc_starts_with_its_streams_apart(residual):
    start = GPT(GPTConfig(**SIZES, n_layer=1, residual=residual)).h[0].ffn_residual
    close(start.mixing(start.c[8:]), torch.eye(4), 0.01)


@pytest.mark.parametrize('ffn, init', [('gelu', 'gpt2'), ('swiglu', 'xavier')])
def test_deepnorm_starts_smaller(ffn, init):
    """By (8N)^(−1/4) in W_v, W_o and the FFN, of 8 blocks α is 2 (Wang et al. 2022, figure 2, decoder-only). Keel does not"""
    models = []
    for skip_scale in ('one', 'keel', 'deepnorm'):
        torch.manual_seed(0)
        models.append(GPT(GPTConfig(**SIZES, n_layer=8, init=init, init_gain=2.0, ffn=ffn, skip_scale=skip_scale)))
    one, keel, deep = (dict(model.named_parameters()) for model in models)
    close(keel, one, 0)
    for name, p in deep.items():
        factor = 64 ** -0.25 if name.split('.')[-2] in ('wv', 'wo', 'w1', 'w2', 'w3') else 1
        close(p, factor * one[name], 1e-6)
    close(models[2].h[3].ffn_residual.skip(torch.ones(3)), 2 * torch.ones(3), 1e-6)


# ----------------------------------------------------------------------------- names, errors, counts

def test_block_types():
    table = {path.split('.')[-1]: row.type for path, row in PARAMS.items()}
    table |= dict.fromkeys(
        'emb_gain head_gain attn_gain ffn_gain w1_gain w3_gain qk_gain rate x_gain x0_gain v_gain v1_gain query sink'.split(),
        'gain')
    table |= dict.fromkeys('input_norm final_norm q_norm k_norm v_norm attn_pre_norm attn_mid_norm attn_post_norm '
                           'ffn_pre_norm ffn_mid_norm ffn_post_norm inner_norm x_norm y_norm'.split(), 'norm')
    for config in COVERING:
        with torch.device('meta'):
            model = GPT(GPTConfig(**SIZES | config))
        assert model.state_dict().keys() == dict(model.named_parameters(remove_duplicate=False)).keys()      # and no constants
        for name, _ in model.named_parameters():
            *_, module, leaf = name.split('.')
            assert block_type(name) == table[leaf if leaf in table else module], name


def test_block_types_of_an_edit():
    """A vector or a number is a gain or, in a norm, of a norm; a matrix needs a row, its own or around it. Names of ours in
    another place, such as w1 outside of the FFN, have none."""
    for name, kind in (('h.0.attn.temperature', 'gain'), ('h.1.block_norm.weight', 'norm'), ('gate.bias', 'gain'),
                       ('h.0.attn.wq.inner.weight', 'qk'), ('h.0.attn_residual.mixture', 'gain'),
                       ('h.0.my_norm.inner.weight', 'norm'), ('h.0.my_norm.down.weight', 'mix'), ('h.0.ffn_residual.w', 'mix')):
        assert block_type(name) == kind
    for name, path in (('h.0.attn.conv.weight', 'attn.conv'), ('h.0.attn.table', 'attn.table'),
                       ('h.0.memory.w1.weight', 'memory.w1'), ('h.0.ffn.experts.3.w1.weight', 'ffn.experts.w1'),
                       ('tower.0.attn.wq.weight', 'tower.attn.wq')):
        model = torch.nn.Module()
        *modules, leaf = name.split('.')
        inner = model
        for part in modules:
            inner.add_module(part, torch.nn.Module())
            inner = inner.get_submodule(part)
        inner.register_parameter(leaf, torch.nn.Parameter(torch.ones(3, 3)))
        with pytest.raises(ValueError, match=f"{name} .* to PARAMS in model.py, such as  '{path}'"):
            check_rows(model)
        for around in path, path.rpartition('.')[0]:
            table = PARAMS | {around: Row('mine')}
            check_rows(model, table)
            assert block_type(name, table) == 'mine'


def test_a_number_without_a_dimension():
    model = GPT(GPTConfig(**SIZES))
    model.h[0].gain = torch.nn.Parameter(torch.tensor(2.0))
    with pytest.raises(ValueError, match=r'h.0.gain has no dimension, .* use torch.full'):
        check_rows(model)


def test_a_linear_map_without_a_start():
    """A row around it is not enough: it would keep the start of nn.Linear"""
    model = GPT(GPTConfig(**SIZES))
    model.h[0].attn.wq.inner = torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"h.0.attn.wq.inner.weight \(3, 3\) has no row .* 'attn.wq.inner': MATRIX"):
        check_rows(model)
    model = GPT(GPTConfig(**SIZES))
    torch.nn.utils.parametrizations.weight_norm(model.h[0].attn.wq)
    with pytest.raises(ValueError, match='attn.wq.parametrizations.weight.original0 .* has no row'):
        check_rows(model)


def test_a_matrix_that_is_no_module(monkeypatch):
    """Starts as its row says"""
    monkeypatch.setitem(PARAMS, 'mixing', Row('ffn', 'matrix'))
    build = Block.__init__
    monkeypatch.setattr(Block, '__init__', lambda self, *given: (
        build(self, *given), setattr(self, 'mixing', torch.nn.Parameter(torch.zeros(64, 64))))[0])
    assert GPT(GPTConfig(**SIZES)).h[0].mixing.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize('field', CHOICES)
def test_a_wrong_choice_is_answered_with_all_choices(field):
    with pytest.raises(ValueError) as error:
        GPTConfig(**{field: 'nonsense'})
    message = str(error.value)
    assert field in message and 'nonsense' in message
    named = message.split('one of ')[1].split(', ')
    assert sorted(named) == sorted(CHOICES[field]), f'teach the reference {field}, see docs/editing.md'


@pytest.mark.parametrize('wrong, words', [
    (dict(n_embd=30, n_head=4), 'n_embd=30 n_head=4'),
    (dict(n_head=12, n_kv_head=5), 'n_head=12 n_kv_head=5'),
    (dict(n_embd=36, n_head=4, pos='rope'), 'rope n_embd=36 n_head=4'),
    (dict(n_head=4, n_kv_head=2, attention='l2_tied'), 'n_kv_head=2 l2_tied 0 4'),
    *[({f.name: -1}, f'{f.name}=-1 {0 if f.name in ("n_kv_head", "d_ff") else 1}')
      for f in fields(GPTConfig) if f.type is int],
    *[({name: 0}, f'{name}=0 1') for name in ('block_size', 'vocab_size', 'n_layer', 'n_head', 'n_embd')],
    (dict(dropout=1.0), 'dropout=1.0 1'), (dict(dropout=-0.1), 'dropout=-0.1 0'),
    (dict(norm_eps=-1.0), 'norm_eps=-1.0'), (dict(mix_ln=1.5), 'mix_ln=1.5 1'), (dict(mix_ln=-0.5), 'mix_ln=-0.5 0'),
    (dict(init_gain=-1.0), 'init_gain=-1.0'),
    (dict(residual='mhc_lite', streams=7), 'mhc_lite streams=7 6'),
    *((dict(qk_clip=100.0, **norm), 'qk_clip=100.0 undoes') for norm in (
        dict(qk_norm=True), dict(linear_norm=True), dict(attention='stable'), dict(attention='l2'))),
    (dict(n_layer=2.5), 'n_layer=2.5 int'), (dict(bias='False'), 'bias=\'False\' bool')])
def test_an_impossible_config_is_an_error_that_names_field_and_value(wrong, words):
    with pytest.raises(ValueError) as error:
        GPTConfig(**dict(n_embd=48, n_head=4) | wrong)
    for word in words.split():
        assert word in str(error.value)


def test_a_config_that_was_changed_is_resolved_and_checked_again():
    config = GPTConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=32)
    config.n_head = 4
    assert GPT(config).h[0].attn.head_dim == 4
    config.n_head = 3
    with pytest.raises(ValueError, match='n_embd=16, n_head=3'):
        GPT(config)


def test_a_module_may_not_have_an_attribute_that_every_module_gets():
    module = torch.nn.Linear(1, 1)
    module.aux = True
    with pytest.raises(ValueError, match='Linear has an attribute aux'):
        attach_aux_and_logged(module)


def test_a_sequence_longer_than_block_size_is_an_error():
    with pytest.raises(ValueError, match='9.*block_size=8'):
        build()(tokens(1, 9))


DNT = dict(norm='rmsnorm', input_norm=True, ffn_pre_norm=False, **MID_NORM, qk_norm=True, init='xavier')
LLAMA = dict(norm='rmsnorm', ffn='swiglu', pos='rope', tie_weights=False)
PARALLEL = dict(parallel_ffn=True, ffn_pre_norm=False)


@pytest.mark.parametrize('millions, n_layer, n_head, n_embd, config', [
    (124.4, 12, 12, 768, DNT), (774.0, 36, 20, 1280, DNT), (1438.0, 48, 24, 1536, DNT), (354.6, 24, 16, 1024, {}),
    (133.9, 6, 12, 768, LLAMA), (237.2, 8, 16, 1024, LLAMA), (522.0, 15, 20, 1280, LLAMA), (743.3, 13, 26, 1664, LLAMA),
    (1174.9, 22, 32, 2048, LLAMA | dict(n_kv_head=4, d_ff=5632)), (1682.0, 22, 32, 2048, LLAMA),
    (66.4, 8, 8, 512, LLAMA | dict(vocab_size=32100)), (1003.8, 22, 25, 1600, LLAMA | dict(vocab_size=32100))])
def test_the_papers_models_have_their_number_of_parameters(millions, n_layer, n_head, n_embd, config):
    with torch.device('meta'):
        model = GPT(GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, **config))
    assert model.num_params() / 1e6 == pytest.approx(millions, rel=6e-4)


def test_flops_per_token_by_hand():
    with torch.device('meta'):
        gpt2 = GPT(GPTConfig())
        llama = GPT(GPTConfig(**LLAMA, block_size=32, vocab_size=100, n_layer=3, n_head=4, n_kv_head=2, n_embd=64,
                              d_ff=160))
    n = 50304 * 768 + 12 * (12 * 768 ** 2 + 2 * 768) + 768              # nanoGPT's N: all but the position embeddings
    assert gpt2.num_params() == n + 1024 * 768
    assert gpt2.flops_per_token() == 6 * n + 12 * 12 * 12 * 64 * 1024
    n = 100 * 64 + 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    assert llama.flops_per_token() == 6 * n + 12 * 3 * 4 * 16 * 32


# ----------------------------------------------------------------------------- generation

@pytest.mark.parametrize('attention, n_kv_head, prompt, pos', [         # up to block_size and past it
    *((attention, n_kv_head, prompt, pos) for attention, n_kv_head in (
        ('dot', 0), ('dot', 2), ('stable', 0), ('stable', 1), ('l2', 0), ('l2', 2), ('l2_tied', 0))
      for prompt, pos in ((1, 'rope'), (12, 'learned'), (1, 'learned'), (12, 'rope'))[:4 if attention == 'dot' else 2]),
    ('dot', 0, 3, 'rope'), ('dot', 0, 8, 'learned'), ('l2', 2, 8, 'rope')])
@torch.no_grad()
def test_generation_with_a_cache_equals_full_forward_passes(attention, n_kv_head, prompt, pos):
    model, logits = build(attention=attention, n_kv_head=n_kv_head, pos=pos, qk_norm=True), []
    idx = greedy = tokens(5, prompt)
    for _ in range(9):
        greedy = torch.cat((greedy, model(greedy[:, -8:])[0][:, -1:].argmax(-1)), 1)
    for how in dict(temperature=0), dict(top_k=1), dict(top_p=1e-6):
        assert torch.equal(model.generate(idx, 9, **how), greedy)
    hook = model.lm_head.register_forward_hook(lambda module, args, output: logits.append(output.view(5, -1, 11)))
    drawn = model.generate(idx, 9, temperature=3.0)                     # varied tokens, and more than their argmax
    hook.remove()
    assert len(logits) == 9 and drawn.shape == (5, prompt + 9) and torch.equal(drawn[:, :prompt], idx)
    for length, step in enumerate(logits, start=prompt):
        close(step[:, -1], model(drawn[:, :length][:, -8:])[0][:, -1], 1e-9)


@pytest.mark.parametrize('config', [*(dict(residual=name) for name in CHOICES['residual']), PARALLEL], ids=str)
@torch.no_grad()
def test_residual_states_generate_with_a_cache(config):
    model, greedy = build(**config), tokens(2, 3)
    for _ in range(4):
        greedy = torch.cat((greedy, model(greedy)[0][:, -1:].argmax(-1)), 1)
    assert torch.equal(model.generate(tokens(2, 3), 4, temperature=0), greedy)


def test_generation_feeds_each_token_once_until_the_window_slides():
    model, lengths = build(), []
    model.wte.register_forward_hook(lambda module, args, output: lengths.append(args[0].size(1)))
    model.generate(tokens(2, 3), 8)
    assert lengths == [3, 1, 1, 1, 1, 1, 8, 8]


@pytest.mark.parametrize('how', [{}, dict(temperature=0.5), dict(temperature=3.0), dict(top_k=3), dict(top_k=100),
                                 dict(top_p=0.9), dict(top_p=1.0), dict(temperature=4.0, top_p=0.5),
                                 dict(temperature=4.0, top_p=0.8), dict(temperature=2.0, top_k=4)])
@torch.no_grad()
def test_generation_draws_from_the_distribution_it_names(how):
    model, prompt, n = build(final_norm=False), tokens(1, 4), 4000
    torch.manual_seed(0)
    drawn = model.generate(prompt.expand(n, -1), 1, **how)[:, -1].bincount(minlength=11) / n
    logits = model(prompt)[0][0, -1] / how.get('temperature', 1.0)
    likeliest = logits.argsort(descending=True).tolist()[:how.get('top_k')]
    while sum(logits.softmax(-1)[likeliest[:-1]]) >= how.get('top_p', 1.0):     # the fewest that reach top_p
        likeliest.pop()
    expected = torch.zeros(11).double()
    expected[likeliest] = logits[likeliest].softmax(-1)
    assert (drawn[expected == 0] == 0).all()
    assert ((drawn - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt()).all()       # five standard errors


# ----------------------------------------------------------------------------- dropout, autocast

@pytest.mark.parametrize('ffn, fused', [('gelu', True), ('swiglu', False)])
@torch.no_grad()
def test_dropout_acts_in_training_only(ffn, fused):
    model, without, idx, states = build(ffn=ffn, dropout=0.5), build(ffn=ffn, dropout=0.0), tokens(2, 8), []
    with_kernel(model, fused)
    close(model.eval()(idx)[0], without(idx)[0], 1e-12)
    b, x = model.h[0], model.wte(idx)
    b.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    quiet = b.attn(x)
    model.train()(idx)
    for values in states[0], b.attn(x), b.ffn(x):
        assert 0.3 < (values == 0).double().mean() < 0.7
    kept = (y := b.attn(x)) != 0
    assert not torch.allclose(y[kept], 2 * quiet[kept])                 # the attention map is dropped from as well


def test_embedding_skips_add_the_embedding_with_its_dropout():
    model, seen = build(embedding_skip=True, dropout=0.5), []
    for block in model.h:
        block.register_forward_pre_hook(lambda module, args: seen.append(args))
    model(tokens(2, 8))
    (x, *_), (state, *_) = seen
    assert x is state.x0


@pytest.mark.parametrize('config', [dict(dropout=0.5), DNT, LLAMA | dict(n_kv_head=2), dict(attention='l2', residual_scale=0.3),
                                    dict(residual='attnres'), PARALLEL])
def test_recomputed_blocks_keep_less_and_have_the_same_gradients(config):
    found = []
    for recompute in (False, True):
        model, kept = build(**config), []
        model.recompute = recompute
        torch.manual_seed(0)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            loss = model(tokens(2, 8), tokens(2, 9)[:, 1:])[1]
        loss.backward()
        found.append((len(kept), loss, *(p.grad for p in model.parameters())))
        text = model.eval().generate(tokens(2, 3), 5, temperature=0)                    # with its cache
        found[-1] += (text,)
    (all_kept, *plain), (few_kept, *again) = found
    assert few_kept < all_kept / 3
    close(again, plain, 1e-12)


@pytest.mark.long
@pytest.mark.parametrize('config, fused, recompute', [
    (DNT, False, False), (LLAMA | dict(n_kv_head=2), False, True), (dict(dropout=0.1), True, False),
    (dict(attention='stable', norm='stablenorm', **POST_NORM), True, True), (dict(attention='l2'), True, False),
    (dict(residual='attnres'), True, True), (dict(residual='mhc_lite'), True, False), (dict(residual='siamese'), True, False)])
def test_compiles_without_a_break_and_not_again(config, fused, recompute):
    # The back end is none, since what may break is the capture of the graph.
    model = with_kernel(GPT(GPTConfig(**SIZES | dict(n_layer=2) | config)), fused)
    model.recompute = recompute
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    torch._dynamo.reset()

    def train_and_evaluate(batch):
        model.aux.clear(), model.logged.clear()         # as the loop does
        with torch.autocast('cpu', torch.bfloat16):
            compiled.train()(batch[:, :-1], batch[:, 1:])[1].backward()
            with torch.no_grad():
                compiled.eval()(batch[:, :-1], batch[:, 1:])

    train_and_evaluate(tokens(2, 9))
    with torch.compiler.set_stance('fail_on_recompile'):
        for _ in range(3):
            train_and_evaluate(tokens(2, 9).flip(0))


@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize('config', [
    dict(), DNT, LLAMA | dict(n_kv_head=2), dict(**MID_NORM, **POST_NORM, attention='l2', bias=True),
    dict(norm='stablenorm', attention='stable', norm_alpha=0.475, pos='rope', **MID_NORM),
    dict(attention='l2_tied', qk_norm=True, pos='rope'), *(dict(residual=name) for name in CHOICES['residual'][1:]), PARALLEL,
    *(dict(norm=norm, linear_norm=True, v_norm=True, branch_gain='layerscale', skip_scale='keel', norm_depth_scale=True,
           embedding_skip=True) for norm in ('dyt', 'derf'))])
def test_bf16_autocast_keeps_norms_and_loss_in_fp32(config, fused):
    model, idx, targets, dtypes = with_kernel(build(**config).float(), fused), tokens(16, 8), tokens(16, 9)[:, 1:], {}
    expected = model(idx, targets)[1]
    for name, module in model.named_modules():
        if name.endswith('norm') and list(module.parameters()):
            module.register_forward_hook(lambda module, args, output, name=name: dtypes.update({name: output.dtype}))
    with torch.autocast('cpu', torch.bfloat16):
        loss = model(idx, targets)[1]
        assert model(idx)[0].dtype == torch.bfloat16
        assert model.generate(idx[:, :3], 8, temperature=0).shape == (16, 11)
    loss.backward()
    assert loss.dtype == torch.float32
    assert dtypes and set(dtypes.values()) == {torch.float32}
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
    assert model.bfloat16()(idx, targets)[1].dtype == torch.float32     # without autocast, too
