"""
lab/measure/ against computations of another kind: the explicit Gauss–Newton matrix, full Jacobians, numpy, a forward pass by
hand, and what the papers' propositions say exactly. Weights are random, so that none can be left out unseen.
"""
from configurator import read_config

import itertools
import json
import math
import sys
from dataclasses import fields
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import ROOT, TINY, call, flags

from data.tokens import Tokens
from engine.files import finite
from lab import measure as m
from lab.measure.gradients import diagonal_estimate
from lab.measure.preflight import CAUSES, growth
from model import GPT, GPTConfig, State, VariantBlock, block_type, run_blocks
from test_model import causal_softmax, reference, with_kernel

# one of each residual, place of a norm, and attention, for what follows a forward pass by hand
VARIANTS = [*((arch, {}) for arch in ('stable', 'keel', 'embskip', 'attnres', 'value_residual', 'ngpt')),
            ('llama', dict(n_kv_head=1)), ('pre', dict(attention='l2_tied', qk_norm=True)),
            ('s2', dict(attention='l2', pos='rope', residual_scale=0.3)), ('peri', dict(bias=True, residual_scale=0.3)),
            ('s5', dict(norm='stablenorm', norm_alpha=0.25, attn_post_norm=True, ffn_post_norm=True)),
            ('hyper', dict(attn_mid_norm=True, ffn_mid_norm=True))]
# one of each norm, attention, FFN and sharing of parameters, for what only groups the parameters by their names
FEW = [('s5', {}), ('stable', {}), ('llama', dict(n_kv_head=1)), ('pre', dict(attention='l2_tied', qk_norm=True, bias=True))]
MATRICES = ('wq', 'wk', 'wv', 'wo', 'wg', 'w1', 'w2', 'w3')


@torch.no_grad()
def build(arch, more={}, dtype=torch.float64, noise=0.3, **sizes):
    """A small model of this fragment of config/arch in which every weight, gain and bias is far from where it starts."""
    fragment = read_config(str(ROOT / 'config' / 'arch' / f'{arch}.py'), {'model': 'gpt'})
    config = {f.name: fragment[f.name] for f in fields(GPTConfig) if f.name in fragment}
    torch.manual_seed(0)
    model = GPT(GPTConfig(**config | dict(block_size=6, vocab_size=11, n_layer=2, n_head=2, n_embd=8) | more | sizes)).to(dtype)
    for p in model.parameters():
        p.add_(noise * torch.randn_like(p))
    return model.eval()


def data(batches=2, size=3, length=5, seed=1):
    """Batches of tokens 0 … 6, so that four of the eleven never occur."""
    rng = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(7, (size, length), generator=rng) for _ in 'xy') for _ in range(batches)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def matrices(model, kind):
    """Those of one kind, layer by layer."""
    return [p for name, p in model.named_parameters() if name.endswith(f'.{kind}.weight')]


def close(a, b, tol=1e-9):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def entering(model, i, states):
    """What block i reads, of the states in front of the branches"""
    b, x = model.h[i], states[2 * i]
    return b.x_gain * x + b.x0_gain * states[0] if model.config.embedding_skip else x


@torch.no_grad()
def states_by_hand(model, x):
    """The residual stream as it enters the blocks and behind each branch, by the block's equation"""
    c, v1 = model.config, None
    positions = model.wpe(torch.arange(x.size(1))) if model.wpe is not None else 0
    embedded, is_plain = model.input_norm(model.wte(x) + positions), not isinstance(model.h[0], VariantBlock)
    states = [embedded if is_plain else model.h[0].attn_residual.expand(embedded)]
    alpha = dict(one=1, deepnorm=(2 * c.n_layer) ** 0.25, keel=2 * c.n_layer)[c.skip_scale]
    for i, b in enumerate(model.h):
        x = entering(model, i, states)
        for name in ('attn', 'ffn'):
            pre, mid, post = (getattr(b, f'{name}_{place}_norm') for place in ('pre', 'mid', 'post'))
            residual = getattr(b, f'{name}_residual', None)
            f = pre(x if is_plain else residual.read(x))
            f = b.ffn(f) if name == 'ffn' else b.attn(f, None, v1) if c.value_residual else b.attn(f)
            f, v1 = (f[0], f[1] if v1 is None else v1) if isinstance(f, tuple) else (f, v1)
            f = mid(f) * (1 if c.branch_gain == 'none' else getattr(b, f'{name}_gain').weight)
            # test_model.py has the equations of the other residuals
            x = post(alpha * x + c.residual_scale * f if c.residual == 'add' else residual(x, f, c.residual_scale))
            states.append(x)
    return states


# ----------------------------------------------------------------------------- gradients

@pytest.mark.parametrize('arch, more', FEW)
def test_gradients_of_each_kind_of_matrix(arch, more):
    """Those of the mean loss over all batches, by .backward(); their statistics over all layers and layer by layer"""
    model, batches = build(arch, more), data()
    (sum(model(x, y)[1] for x, y in batches) / len(batches)).backward()
    result = m.gradients(model, batches, generator())
    assert set(result) == {kind for kind in MATRICES if matrices(model, kind)}
    for kind, stats in result.items():
        layers = [p.grad.flatten() for p in matrices(model, kind)]
        for stats, g in zip([stats, *stats['layers']], [torch.cat(layers), *layers], strict=True):
            expected = statistics(g.numpy())
            hill = expected.pop('hill')                 # of the differences of logarithms that are nearly equal
            assert {key: stats[key] for key in expected} == pytest.approx(expected, rel=1e-4)
            assert stats['hill'] == pytest.approx(hill, rel=1e-3)
        assert result[kind]['histogram'] == numpy_histogram(torch.cat(layers).numpy())


def statistics(x):
    magnitude = np.sort(np.abs(x))
    p50, p90, p99, p999 = (np.quantile(magnitude, q, method='inverted_cdf') for q in (0.5, 0.9, 0.99, 0.999))
    k = max(2, len(x) // 100)
    return dict(p50=p50, p90=p90, p99=p99, p999=p999, max=magnitude[-1], tail=p999 / p50,
                kurtosis=np.mean((x - x.mean()) ** 4) / np.var(x) ** 2,
                hill=(k - 1) / sum(math.log(x / magnitude[-k]) for x in magnitude[-k + 1:]))


def numpy_histogram(x):
    """Of log10 |x|, ten bins to a decade from 10^-30 to 10^10, without those at the ends that are empty."""
    counts, edges = np.histogram(np.log10(np.abs(x[x != 0])), bins=400, range=(-30, 10))
    held = np.flatnonzero(counts)
    return dict(start=pytest.approx(edges[held[0]]), width=pytest.approx(0.1), counts=counts[held[0]:held[-1] + 1].tolist())


# ----------------------------------------------------------------------------- sharpness

def gauss_newton(model, batches):
    """Its exact diagonal: the mean over tokens of Σ_c p_c g_c², g_c being the gradient of −log p_c."""
    names, params = zip(*model.named_parameters())
    total, tokens = [torch.zeros_like(p) for p in params], 0
    for x, _ in batches:
        for token in model(x)[0].log_softmax(-1).flatten(0, 1):
            tokens += 1
            for log_p in token:
                for t, g in zip(total, torch.autograd.grad(-log_p, params, retain_graph=True)):
                    t += log_p.detach().exp() * g.square()
    return {name: t / tokens for name, t in zip(names, total)}


def test_sharpness_estimates_the_diagonal_of_gauss_newton():
    """For every parameter the mean over draws is within four standard errors of the exact value, but for one in a hundred, whose
    draws are skewed, within six; and so is the sum; here of a batch that is cut into micro-batches"""
    model, (batch,) = build('llama', dict(n_kv_head=1, d_ff=12), n_layer=1), data(1, size=4, length=4)
    exact = torch.cat([h.flatten() for h in gauss_newton(model, [batch]).values()])
    batches, rng = list(zip(*(part.chunk(2) for part in batch))), generator()
    draws = torch.stack([torch.cat([h.flatten() for h in diagonal_estimate(model, batches, rng).values()]) for _ in range(120)])
    error, standard = draws.mean(0) - exact, draws.std(0) / math.sqrt(len(draws))
    assert (error[exact == 0] == 0).all()                   # of tokens that do not occur
    z = (error / standard)[exact > 0].abs()
    assert z.max() < 6 and (z > 4).double().mean() <= 0.01
    assert abs(error.sum()) < 4 * draws.sum(1).std() / math.sqrt(len(draws))


@pytest.mark.parametrize('arch, more', FEW)
def test_sharpness_of_each_block_type(arch, more):
    """Every parameter in its type, none twice; means, zeros and histogram by numpy, in all and layer by layer"""
    model, batches = build(arch, more), data()
    h = {name: value.numpy() for name, value in diagonal_estimate(model, batches, generator()).items()}
    result = m.sharpness(model, batches, generator())
    assert set(result) == {block_type(name) for name in h}
    counted = 0
    for kind, found in result.items():
        of_kind = {name: value for name, value in h.items() if block_type(name) == kind}
        inside = [[value for name, value in of_kind.items() if name.startswith(f'h.{i}.')]
                  for i in range(2)]
        groups = [of_kind.values(), *(layer for layer in inside if layer)]
        for found, values in zip([found, *found['layers']], groups, strict=True):
            x = np.concatenate([value.ravel() for value in values])
            assert found['log10_mean'] == pytest.approx(np.log10(x.mean()))
            assert found['mean_log10'] == pytest.approx(np.log10(x[x > 0]).mean())
            assert found['zeros'] == pytest.approx(np.mean(x == 0))
            if 'histogram' in found:
                assert found['histogram'] == numpy_histogram(x)
                counted += x.size
    assert counted == model.num_params()


@pytest.mark.parametrize('arch, more', VARIANTS)
def test_hidden_states_equal_a_forward_pass_by_hand(arch, more):
    model, batches = build(arch, more), data()
    states = [torch.cat(parts).flatten(1).numpy() for parts in zip(*(states_by_hand(model, x) for x, _ in batches))]
    rows = m.hidden(model, batches, generator())
    assert [row['at'] for row in rows] == ['input', '1.attn', '1.ffn', '2.attn', '2.ffn']
    close([row['ma'] for row in rows], [np.abs(s).mean(1).mean() for s in states])
    close([row['var'] for row in rows], [s.var(1, ddof=1).mean() for s in states])
    bounded = model.config.attn_mid_norm and not model.config.attn_post_norm and model.config.residual == 'add'
    assert all(('ma_bound' in row) == ('var_bound' in row) == bounded for row in rows)


@pytest.mark.parametrize('arch, more', FEW)
def test_norms_of_parameters(arch, more):
    """Frobenius and spectral norm against torch.linalg; power iteration ends below, here by a twelfth at most"""
    model = build(arch, more, noise=2.0)                # a gain's sign does not matter
    result, params = m.parameters(model, data(), generator()), dict(model.named_parameters())
    assert set(result) & set(MATRICES) == {kind for kind in MATRICES if matrices(model, kind)}
    for kind in set(result) & set(MATRICES):
        for found, p in zip(result[kind], matrices(model, kind), strict=True):
            assert found == dict(frobenius=pytest.approx(torch.linalg.matrix_norm(p, 'fro').item(), rel=1e-5), spectral=mock.ANY)
            assert 0.92 < found['spectral'] / torch.linalg.matrix_norm(p, 2).item() < 1.00001
    assert result['embedding'] == pytest.approx(dict(frobenius=model.wte.weight.norm().item()))
    for place, mean in result['means'].items():         # the parameters of this name in the blocks
        sizes = [p.norm().item() for name, p in params.items() if name.endswith(f'.{place}.weight')]
        assert len(sizes) == len(model.h) and mean == pytest.approx(math.fsum(sizes) / len(sizes))
    assert result['gains'] == {
        name.removesuffix('.weight'): pytest.approx(dict(mean=p.abs().mean().item(), max=p.abs().max().item(),
                                                         frobenius=p.norm().item()))
        for name, p in params.items() if name.endswith('norm.weight')}


# ----------------------------------------------------------------------------- attention

@torch.no_grad()
def weights_by_hand(model, x):
    """The logits and the weights of attention, (B, T, T), of each layer's heads, by the equations in test_model.py."""
    heads, c = [], model.config
    with mock.patch('test_model.causal_softmax', lambda logits: heads.append((logits, causal_softmax(logits))) or heads[-1][1]):
        reference(c, model.state_dict(), x)
    return [heads[i:i + c.n_head] for i in range(0, len(heads), c.n_head)]


def four_heads(arch, more):
    return build(arch, more, n_head=4, n_kv_head=2 if 'n_kv_head' in more else 0)


@pytest.mark.parametrize('arch, more, fused', [(arch, more, i % 2 == 0) for i, (arch, more) in enumerate(VARIANTS)])
def test_attention_by_hand(arch, more, fused):
    """The largest logit that a query has among its own past, and the mean entropy of its weights, over that of equal ones"""
    model, batches = with_kernel(four_heads(arch, more), fused), data()
    result, past = m.attention(model, batches, generator()), torch.ones(5, 5).tril().bool()
    batches = [weights_by_hand(model, x) for x, _ in batches]
    for i, h in itertools.product(range(2), range(4)):
        logits, weights = (torch.stack(parts) for parts in zip(*(batch[i][h] for batch in batches)))
        entropies = torch.special.entr(weights).sum(-1)
        assert result['entropy'][i][h] == pytest.approx(entropies.mean().item() / np.log(np.arange(1, 6)).mean(), abs=1e-5)
        if not model.config.attention.startswith('l2'):         # whose logits are without −‖q‖² here, and with it there
            assert result['max_logit'][i][h] == pytest.approx(logits[..., past].max().item(), abs=1e-5)


@pytest.mark.parametrize('arch, more', VARIANTS)
@torch.no_grad()
def test_copying_by_hand(arch, more):
    """Losses of a sequence's second tokens, then of the repetition's, and the probability of the token behind the earlier one"""
    model, batches, rng = four_heads(arch, more), data(length=6), generator()
    kinds, losses, scores = torch.cat([x.flatten() for x, _ in batches]).unique(), [], []
    for _ in batches:
        x = kinds[torch.randint(len(kinds), (3, 3), generator=rng)].repeat(1, 2)
        losses.append(-model(x)[0][:, :-1].log_softmax(-1).gather(2, x[:, 1:, None]))
        scores.append([[weights[:, [3, 4], [1, 2]].mean().item() for _, weights in heads] for heads in weights_by_hand(model, x)])
    result, losses = m.copying(model, batches, generator()), torch.stack(losses)
    close([result['first'], result['again']], [losses[:, :, :2].mean(), losses[:, :, 3:].mean()])
    close(result['induction'], np.mean(scores, 0), 1e-5)


# ----------------------------------------------------------------------------- sensitivity

def largest_singular_value(f, x):
    return torch.linalg.matrix_norm(torch.autograd.functional.jacobian(f, x).reshape(x.numel(), -1), 2).item()


@pytest.mark.parametrize('arch, more', [('keel', {}), ('embskip', {}), ('layerscale', {}), *VARIANTS[-3:-1]])
def test_sensitivity_is_the_norm_of_the_full_jacobian(arch, more):
    """Power iteration stays below, and by a few percent at most. The branch's response to ten times W_o or W_2 is 10, and 1
    under a MidNorm (P7, P8), as long as there are no biases."""
    model, batches = build(arch, more, dtype=torch.float32), data()
    rows, states = m.sensitivity(model, batches, generator()), states_by_hand(model, batches[0][0][:1])
    for i, (row, b) in enumerate(zip(rows, model.h, strict=True)):
        def branch(x, name):
            if isinstance(b, VariantBlock):
                return b.ffn_branch(x) if name == 'ffn' else b.attn_branch(x)[0]
            return getattr(b, f'{name}_mid_norm')(getattr(b, name)(getattr(b, f'{name}_pre_norm')(x)))

        def through(blocks, x):                         # x₀ does not move
            x = run_blocks(blocks, State(x, states[0]) if isinstance(b, VariantBlock) else x)
            return x[0] if isinstance(x, State) else x

        functions = dict(block=(lambda x: through([b], x), states[2 * i]),
                         to_end=(lambda x: through(model.h[i:], x), states[2 * i]),
                         attn=(lambda x: branch(x, 'attn'), entering(model, i, states)),
                         ffn=(lambda x: branch(x, 'ffn'), states[2 * i + 1]))
        for name, (f, at) in functions.items():
            assert 0.95 < row[name] / largest_singular_value(f, at) < 1.0001, name
        for name in ('attn', 'ffn') if not model.config.bias else ():
            assert row[f'{name}_response'] == pytest.approx(1 if model.config.attn_mid_norm else 10, rel=3e-4)


# ----------------------------------------------------------------------------- before training

IMMUNE = dict.fromkeys(('attention logits', 'attention branch', 'FFN branch', 'attention Jacobian', 'FFN Jacobian',
                        'last hidden state', *(f'gradient of {kind}' for kind in ('wq', 'wk', 'wv', 'wo', 'w1', 'w2'))), 0)


def only(effects):
    """What is immune to a cause, but for the gradients of the matrices that grow: these shrink in proportion."""
    return IMMUNE | {f'gradient of {kind}': -1 for kind in effects.split()}


# what theory says exactly, with ReLU and an ε that is nothing
READS = {'attention logits': 0, 'attention branch': 0, 'attention Jacobian': -1}       # a PreNorm's view of a larger input
WRITES = {'W_v W_o': only('wv wo'), 'W_1': only('w1'), 'W_2': only('w2')}
FFN = {'attention branch': 0, 'FFN branch': 1, 'FFN Jacobian': 1}
EXPONENTS = {
    'pre': {'W_q W_k': {'attention logits': 2}, 'W_1': FFN, 'W_2': FFN, 'input of block 1': READS, 'embeddings': READS,
            'W_v W_o': {'attention logits': 0, 'attention branch': 2, 'attention Jacobian': 2}},
    'post': dict.fromkeys(CAUSES, {'last hidden state': 0}),
    'peri': {'W_q W_k': {'attention logits': 2}, 'input of block 1': READS, **WRITES},
    's5': {'embeddings': IMMUNE, 'W_q W_k': only('wq wk'), 'input of block 1': READS, **WRITES},
    'stable': {'W_q W_k': only('wq wk'), 'W_v W_o': {'attention branch': 2, 'attention Jacobian': 2}},
}


@pytest.mark.parametrize('arch', EXPONENTS)
def test_exponents_that_theory_gives(arch, monkeypatch):
    """And how the stream grows from the first block to the second if all matrices of the blocks are ten times as large"""
    monkeypatch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))          # two points make a line
    model, batches = build(arch, dict(ffn='relu', norm_eps=1e-14), noise=0.1), data(1, size=2, length=4)
    result = m.preflight(model, batches, generator())
    for cause, wanted in EXPONENTS[arch].items():
        found = result['invariance'][cause]
        assert {key: found[key] for key in wanted} == pytest.approx(wanted, abs=0.03), cause
        assert [*found] == [*IMMUNE]
    for p in [p for kind in MATRICES for p in matrices(model, kind)]:
        p.data *= 10
    first, second = (row['ma'] for row in m.hidden(model, batches, generator()) if 'ffn' in row['at'])
    assert result['growth']['blocks × 10']['ma']['factor_per_layer'] == pytest.approx(second / first)


def test_growth():
    """By a power of the layer, or by a factor"""
    for p in 0.0, 0.5, 2.0:
        assert growth([0.1 * n ** p for n in range(1, 13)]) == dict(power=pytest.approx(p, abs=1e-9), factor_per_layer=mock.ANY,
                                                                    shape='power')
    exponential = growth([0.01 * 3.0 ** n for n in range(1, 13)])
    assert exponential['factor_per_layer'] == pytest.approx(3) and exponential['shape'] == 'exponential'


# ----------------------------------------------------------------------------- what a measurement leaves behind

def traces(model):
    """All that a measurement could change, as values that can be compared."""
    tensors = {name: (id(t), t.detach().numpy().tobytes(), None if t.grad is None else t.grad.numpy().tobytes())
               for name, t in (*model.named_parameters(), *model.named_buffers())}
    hooks = [(part.training, *part._forward_hooks.values(), *part._forward_pre_hooks.values()) for part in model.modules()]
    return tensors, hooks, torch.get_rng_state().tolist(), [block.attn.kernel for block in model.h], torch.is_grad_enabled()


@pytest.mark.parametrize('name', m.MEASUREMENTS)
def test_a_measurement_leaves_no_trace(name, monkeypatch):
    """Nor does one that fails midway; and it is a function of its seed, without dropout"""
    monkeypatch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))
    monkeypatch.setattr(sys.modules['lab.measure.sensitivity'], 'ENTRIES', 16)
    model, batches = build('llama', dict(dropout=0.5), dtype=torch.float32).train(), data(2, size=2, length=4)
    model.wte.weight.grad = torch.ones_like(model.wte.weight)
    calls, fails_at = [], math.inf

    def fail(module, args, out):
        calls.append(module)
        if len(calls) == fails_at:
            raise KeyboardInterrupt

    model.h[-1].attn.wo.register_forward_hook(fail)
    before = traces(model)
    first = m.measure(model, batches, [name], 5)
    fails_at, calls = len(calls) // 2 + 1, []
    if name != 'parameters':                                # which runs no model
        assert traces(model) == before
        with pytest.raises(KeyboardInterrupt):
            m.measure(model, batches, [name], 5)
    assert traces(model) == before
    assert m.measure(model, batches, [name], 5) == first


# ----------------------------------------------------------------------------- the command

KEYS = {**TINY, 'block_size': 8, 'n_embd': 8, 'max_iters': 3, 'learning_rate': 0.1, 'optimizer': 'sgdw'}


@pytest.fixture
def drawn(place, monkeypatch):
    """What would be drawn, in a folder with data/tiny"""
    pictures = []
    monkeypatch.setattr('lab.plot.draw', lambda *picture: pictures.append(picture))
    monkeypatch.chdir(place)
    return pictures


def measured(folder, *arguments):
    """The measure.json that `lab.measure` leaves in this folder"""
    call('lab.measure', f'--out_dir={folder.removesuffix("-init")}', *arguments, '--device=cpu')
    return json.loads(Path(folder, 'measure.json').read_text())


def expected(keys, names, count, weights=None):
    """What the functions find over the same windows, as JSON"""
    torch.manual_seed(1337)
    model, tokens = GPT(GPTConfig(**{f.name: keys[f.name] for f in fields(GPTConfig)})), Tokens('tiny', 'train', 8, 13)
    model.after_step()                                  # nGPT starts with weights of length 1
    model.load_state_dict(weights or model.state_dict())
    batches = [tokens.read(starts) for starts in tokens.eval_batches(count, 4)]
    return json.loads(json.dumps(finite(m.measure(model, batches, names, 1337))))


def test_measuring_a_run(drawn):
    """A picture of each measurement that has a result. Earlier results stay, unless they are of other batches"""
    call('train.py', ROOT / 'config' / 'arch' / 'peri.py', *flags(**KEYS, out_dir='measured'))
    names, state = [name for name in m.MEASUREMENTS if name != 'preflight'], torch.load('measured/ckpt.pt', weights_only=True)
    found, wanted = measured('measured', '--batches=2'), expected(state['config'], names, 2, state['model'])
    plots = {name: m.MEASUREMENTS[name].plot for name in names if found[name]}
    assert drawn == [(plot, ['measured'], str(Path('measured', f'{name}.png'))) for name, plot in plots.items()]
    assert found == dict(iter=3, tokens=2 * 4 * 8, **wanted)
    more = measured('measured', '--checkpoint=best.pt', '--what=preflight', '--batches=2')
    assert more == {**found, 'preflight': more['preflight']}
    assert list(measured('measured', '--what=layers', '--batches=4')) == ['iter', 'tokens', 'layers']
    assert 'n_layer=1: measured has 2' in call('lab.measure', '--out_dir=measured', '--n_layer=1', code=1)


def test_measuring_before_training(drawn):
    """--init_only: the model that train.py would start with, in a folder of its own, with the config by which plot.py names it"""
    Path('tiny.json').write_text(json.dumps(KEYS))
    command = [ROOT / 'config' / 'arch' / 'ngpt.py', 'tiny.json', '--init_only=True', '--batches=2']
    found = measured('out-new-init', *command, '--what=hidden')
    keys = json.loads(Path('out-new-init', 'config.json').read_text())
    assert not Path('out-new').exists() and keys['unit_weights'] and keys['optimizer'] == 'sgdw'
    assert found == dict(iter=0, tokens=2 * 4 * 8, **expected(keys, ['hidden'], 2))
    assert list(measured('out-new-init', *command, '--what=layers', '--n_layer=1')) == ['iter', 'tokens', 'layers']
