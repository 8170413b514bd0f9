"""
lab/measure/ against computations of another kind: the explicit Gauss–Newton matrix, full Jacobians, numpy, a forward pass by
hand, and what the papers' propositions say exactly. Weights are random, so that none can be left out unseen.
"""
from configurator import read_config

import copy
import itertools
import json
import math
import os
import sys
from dataclasses import fields
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import ROOT, call, flags, strict_json

from data.tokens import Tokens, write_tokens
from engine.files import finite
from lab import measure as m
from lab.measure.gradients import diagonal_estimate
from lab.measure.preflight import effects, growth
from lab.measure.tools import mean_gradient, slope
from model import GPT, GPTConfig, block_type
from test_model import causal_softmax, reference, with_kernel

ARCHS = sorted(path.stem for path in (ROOT / 'config' / 'arch').glob('*.py'))
VARIANTS = [*((arch, {}) for arch in ARCHS), ('llama', dict(n_kv_head=1)), ('pre', dict(attention='l2_tied', qk_norm=True)),
            ('s2', dict(attention='l2', pos='rope', residual_scale=0.3)), ('peri', dict(bias=True, residual_scale=0.3)),
            ('s5', dict(norm='stablenorm', norm_alpha=0.25, attn_post_norm=True, ffn_post_norm=True)),
            ('hyper', dict(attn_mid_norm=True, ffn_mid_norm=True)), ('attnres', dict(attn_mid_norm=True, ffn_mid_norm=True))]
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
    """The residual stream as it enters the blocks and behind each branch, by the block's equation; what enters each branch."""
    c, (states, entered) = model.config, ([], [])
    positions = model.wpe(torch.arange(x.size(1))) if model.wpe is not None else 0
    embedded = (math.sqrt(c.n_embd) if c.emb_scale else 1) * model.wte(x) + positions
    embedded = model.input_norm(embedded * (model.emb_gain.weight if c.emb_gain else 1))
    states.append(model.h[0].attn_residual.expand(embedded))
    alpha, v1 = dict(one=1, deepnorm=(2 * c.n_layer) ** 0.25, keel=2 * c.n_layer)[c.skip_scale], None
    for i, b in enumerate(model.h):
        x = x_in = entering(model, i, states)
        for name in ('attn', 'ffn'):
            pre, mid, post = (getattr(b, f'{name}_{place}_norm') for place in ('pre', 'mid', 'post'))
            residual = getattr(b, f'{name}_residual')
            scaled = c.norm_depth_scale and not isinstance(pre, torch.nn.Identity)
            entered.append(entered[-1] if c.parallel_ffn and name == 'ffn' else
                           pre(residual.read(x)) / (math.sqrt(i + 1) if scaled else 1))
            gain = 1 if c.branch_gain == 'none' else getattr(b, f'{name}_gain').weight
            f, v = b.attn(entered[-1], v1) if name == 'attn' else (b.ffn(entered[-1]), None)
            v1, f = (v if v1 is None else v1), gain * mid(f)
            # test_model.py has the equations of the other residuals
            x = alpha * x + c.residual_scale * f if c.residual == 'add' else residual(x, f, c.residual_scale)
            x = post(x + x_in if c.b2t and name == 'ffn' else x)
            states.append(x)
    return states, entered


# ----------------------------------------------------------------------------- gradients

@pytest.mark.parametrize('arch, more', FEW)
def test_gradients_of_each_kind_of_matrix(arch, more):
    """Those of the mean loss over all batches, by .backward(); their statistics over all layers and layer by layer"""
    model, batches = build(arch, more), data()
    (sum(model(x, y)[1] for x, y in batches) / len(batches)).backward()
    found = mean_gradient(model, batches)
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, p in model.named_parameters():
        close(found[name], p.grad)
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
    if not model.config.tie_weights:
        assert result['emb']['zeros'] == pytest.approx(4 / 11)          # tokens that do not occur
    assert m.sharpness(model, batches, generator(1)) != result


# ----------------------------------------------------------------------------- hidden states

@pytest.mark.parametrize('arch, more', VARIANTS)
def test_hidden_states_equal_a_forward_pass_by_hand(arch, more):
    model, batches = build(arch, more), data()
    states = [torch.cat(parts).flatten(1).numpy() for parts in zip(*(states_by_hand(model, x)[0] for x, _ in batches))]
    rows = m.hidden(model, batches, generator())
    assert [row['at'] for row in rows] == ['input', '1.attn', '1.ffn', '2.attn', '2.ffn']
    tol = 1e-7 if model.config.norm_depth_scale or model.config.emb_scale else 1e-9        # constants of float32
    close([row['ma'] for row in rows], [np.abs(s).mean(1).mean() for s in states], tol)
    close([row['var'] for row in rows], [s.var(1, ddof=1).mean() for s in states], tol)
    bounded = model.config.attn_mid_norm and not model.config.attn_post_norm and model.config.residual == 'add'
    assert all(('ma_bound' in row) == ('var_bound' in row) == bounded for row in rows)


# ----------------------------------------------------------------------------- parameters

@pytest.mark.parametrize('arch, more', FEW)
def test_norms_of_parameters(arch, more):
    """Frobenius and spectral norm against torch.linalg; power iteration ends below, here by a twelfth at most"""
    model = build(arch, more, dtype=torch.float64 if more else torch.float32)
    for name, p in model.named_parameters():
        if name.endswith('norm.weight'):
            p.data[0] = -3.0                            # a gain's sign does not matter
    result, params, squares = m.parameters(model, data(), generator()), dict(model.named_parameters()), {}
    assert set(result) & set(MATRICES) == {kind for kind in MATRICES if matrices(model, kind)}
    for kind in set(result) & set(MATRICES):
        for found, p in zip(result[kind], matrices(model, kind), strict=True):
            assert found == dict(frobenius=pytest.approx(torch.linalg.matrix_norm(p, 'fro').item(), rel=1e-5), spectral=mock.ANY)
            assert 0.92 < found['spectral'] / torch.linalg.matrix_norm(p, 2).item() < 1.00001
    assert result['embedding'] == pytest.approx(dict(frobenius=model.wte.weight.norm().item()))
    for place, mean in result['means'].items():         # the parameters of this name in the blocks
        sizes = [p.norm().item() for name, p in params.items() if name.endswith(f'.{place}.weight')]
        assert len(sizes) == len(model.h) and mean == pytest.approx(math.fsum(sizes) / len(sizes))
    for name, p in params.items():
        squares[block_type(name)] = squares.get(block_type(name), 0) + p.detach().square().sum().item()
    assert result['types'] == pytest.approx({kind: math.sqrt(value) for kind, value in squares.items()})
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


def test_copying_without_scores(capsys):
    """An attention that does not call its kernel has losses alone. Short sequences have nothing."""
    model = build('s1')
    model.h[0].attn.forward = lambda x, *more: (torch.zeros_like(x), None)
    result = m.copying(model, data(), generator())
    assert result['induction'] == [] and result['first'] > 0 and m.copying(model, data(length=3), generator()) == {}
    m.copying.show(result)
    assert 'again' in capsys.readouterr().out


# ----------------------------------------------------------------------------- sensitivity

def largest_singular_value(f, x):
    return torch.linalg.matrix_norm(torch.autograd.functional.jacobian(f, x).reshape(x.numel(), -1), 2).item()


@pytest.mark.parametrize('arch, more', [('keel', {}), ('embskip', {}), ('simplenorm', {}), ('layerscale', {}), *VARIANTS[-5:-2]])
def test_sensitivity_is_the_norm_of_the_full_jacobian(arch, more):
    """Power iteration stays below, and by a few percent at most. The branch's response to ten times W_o or W_2 is 10, and 1
    under a MidNorm (P7, P8), as long as there are no biases."""
    model, batches = build(arch, more, dtype=torch.float32), data()
    rows, c = m.sensitivity(model, batches, generator()), model.config
    alpha = dict(one=1, deepnorm=(2 * c.n_layer) ** 0.25, keel=2 * c.n_layer)[c.skip_scale]
    for row, b, i in zip(rows, model.h, range(2), strict=True):
        states = states_by_hand(model, batches[0][0][:1])[0]
        x, between = entering(model, i, states), states[2 * i + 1]
        def attn(x): return b.attn_gain(b.attn_mid_norm(b.attn(b.attn_pre_scale(b.attn_pre_norm(x)))[0]))
        def ffn(x): return b.ffn_gain(b.ffn_mid_norm(b.ffn(b.ffn_pre_scale(b.ffn_pre_norm(x)))))
        def block(x):
            x = b.x_gain * x + b.x0_gain * states[0] if c.embedding_skip else x         # x₀ does not move
            x = b.attn_post_norm(alpha * x + c.residual_scale * attn(x))
            return b.ffn_post_norm(alpha * x + c.residual_scale * ffn(x))
        for name, f, at in ('block', block, states[2 * i]), ('attn', attn, x), ('ffn', ffn, between):
            assert 0.95 < row[name] / largest_singular_value(f, at) < 1.0001, name
        for name in ('attn', 'ffn') if not c.bias else ():
            assert row[f'{name}_response'] == pytest.approx(1 if c.attn_mid_norm or c.linear_norm else 10, rel=3e-4)


def test_sensitivity_of_a_branch_that_starts_at_zero():
    """There is none, and no response"""
    model = build('pre', dtype=torch.float32)
    model.h[0].attn.wo.weight.data.zero_()
    row = m.sensitivity(model, data(), generator())[0]
    assert row['attn'] == 0 and math.isnan(row['attn_response']) and row['ffn_response'] == pytest.approx(10)


# ----------------------------------------------------------------------------- before training

CAUSES = ('embeddings', 'input of block 1', 'W_q W_k', 'W_v W_o', 'W_1', 'W_2')
EFFECTS = ('attention logits', 'attention branch', 'FFN branch', 'attention Jacobian', 'FFN Jacobian', 'last hidden state',
           *(f'gradient of {kind}' for kind in ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')))
IMMUNE = dict.fromkeys(EFFECTS, 0)


def only(effects, exponent=-1):
    """What is immune to a cause, but for the gradients of the matrices that grow: these shrink in proportion."""
    return IMMUNE | {f'gradient of {kind}': exponent for kind in effects.split()}


# what theory says exactly, with ReLU and an ε that is nothing
EXPONENTS = {
    ('pre', ''): {'W_q W_k': {'attention logits': 2},
                  'W_v W_o': {'attention logits': 0, 'attention branch': 2, 'attention Jacobian': 2},
                  'W_1': {'attention branch': 0, 'FFN branch': 1, 'FFN Jacobian': 1},
                  'W_2': {'attention branch': 0, 'FFN branch': 1, 'FFN Jacobian': 1},
                  'input of block 1': {'attention logits': 0, 'attention branch': 0, 'attention Jacobian': -1},
                  'embeddings': {'attention logits': 0, 'attention branch': 0, 'attention Jacobian': -1}},
    ('post', ''): {cause: {'last hidden state': 0} for cause in CAUSES},
    ('peri', ''): {'W_q W_k': {'attention logits': 2}, 'W_v W_o': only('wv wo'), 'W_1': only('w1'), 'W_2': only('w2'),
                   'input of block 1': {'attention logits': 0, 'attention branch': 0, 'attention Jacobian': -1}},
    ('s5', ''): {'embeddings': IMMUNE, 'W_q W_k': only('wq wk'), 'W_v W_o': only('wv wo'), 'W_1': only('w1'), 'W_2': only('w2'),
                 'input of block 1': {'attention logits': 0, 'attention branch': 0, 'attention Jacobian': -1}},
    ('stable', ''): {'W_q W_k': only('wq wk'), 'W_v W_o': {'attention branch': 2, 'attention Jacobian': 2}},
    ('pre', 'l2_tied'): {'W_q W_k': {'attention logits': 2}, 'input of block 1': {'attention logits': 0}},
}


@pytest.mark.parametrize('arch, attention', EXPONENTS)
def test_exponents_that_theory_gives(arch, attention, monkeypatch):
    monkeypatch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))          # two points make a line
    model = build(arch, dict(ffn='relu', norm_eps=1e-14) | (dict(attention=attention) if attention else {}), noise=0.1)
    found = m.preflight(model, data(1, size=2, length=4), generator())['invariance']
    assert tuple(found) == CAUSES
    for cause, wanted in EXPONENTS[arch, attention].items():
        wanted = {key: value for key, value in wanted.items() if key in found[cause]}
        assert {key: found[cause][key] for key in wanted} == pytest.approx(wanted, abs=0.03), cause
        assert tuple(found[cause]) == tuple(key for key in EFFECTS if attention != 'l2_tied' or key != 'gradient of wk')


def test_preflight_is_in_float64(monkeypatch):
    """An exponent is the slope of a line through the logarithms of sizes; growth is that of the model, then of larger blocks"""
    monkeypatch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1, 10, 100))
    model, (batch,) = build('pre', n_layer=3, dtype=torch.float32), data(1, size=2)
    result, double, sizes = m.preflight(model, [batch], generator()), copy.deepcopy(model).double(), []
    assert next(model.parameters()).dtype == torch.float32
    for factor in 1, 10, 10:
        for p in matrices(double, 'w2'):
            p.data *= factor
        sizes.append(np.log(effects(double, batch, 0)['gradient of wv']))
    assert result['invariance']['W_2']['gradient of wv'] == pytest.approx((sizes[2] - sizes[0]) / np.log(100), abs=1e-9)
    double = copy.deepcopy(model).double()
    for p in [p for kind in MATRICES for p in matrices(double, kind)]:
        p.data *= 10
    sizes = [row['ma'] for row in m.hidden(double, [batch], generator()) if 'ffn' in row['at']]
    assert result['growth']['blocks × 10']['ma']['power'] == pytest.approx(np.polyfit(np.log([1, 2, 3]), np.log(sizes), 1)[0])


@pytest.mark.parametrize('shape, power, size', [
    ('flat', 0, lambda n: 3.0), ('√depth', 0.5, lambda n: 0.1 * math.sqrt(n)), ('linear', 1, lambda n: 7 * n),
    ('faster than linear', 2, lambda n: n ** 2), ('exponential', None, lambda n: 0.01 * 3.0 ** n),
    ('unknown', math.nan, lambda n: max(0.0, n - 2.0))])                       # one is nothing
def test_growth(shape, power, size):
    found = growth([size(n) for n in range(1, 13)])
    assert found['shape'] == shape
    if power is None:
        assert found['factor_per_layer'] == pytest.approx(3)
    else:
        assert found['power'] == pytest.approx(power, nan_ok=True)


def test_slope():
    """That of numpy, and the root mean square of what the line through the logarithms misses"""
    x, y = [1.0, 2.0, 4.0, 8.0], [3.0, 1.0, 5.0, 4.0]
    line, residual = np.polyfit(x, y, 1, full=True)[:2]
    assert slope(x, np.exp(y).tolist()) == pytest.approx((line[0], math.sqrt(residual[0] / 4)))


# ----------------------------------------------------------------------------- what a measurement leaves behind

def traces(model):
    """All that a measurement could change, as values that can be compared."""
    def content(tensor):
        return None if tensor is None else (id(tensor), tensor.detach().numpy().tobytes(), content(tensor.grad))

    tensors = {name: content(p) for name, p in (*model.named_parameters(), *model.named_buffers())}
    hooks = [(module.training, *(list(getattr(module, f'_{kind}_hooks').values())
                                 for kind in ('forward', 'forward_pre', 'backward'))) for module in model.modules()]
    return tensors, hooks, torch.get_rng_state().tolist(), [block.attn.kernel for block in model.h], torch.is_grad_enabled()


@pytest.mark.parametrize('name', m.MEASUREMENTS)
def test_a_measurement_leaves_no_trace(name, monkeypatch):
    """Not in weights, gradients, mode, hooks, random state, nor in torch; and it is a function of its seed, without dropout,
    also after one that failed midway"""
    monkeypatch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))
    model, batches = build('llama', dict(dropout=0.5), dtype=torch.float32).train(), data(2, size=2, length=4)
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    calls, fails_at = [], math.inf

    def fail(module, args, out):
        calls.append(module)
        if len(calls) == fails_at:
            raise KeyboardInterrupt

    model.h[-1].attn.wo.register_forward_hook(fail)
    before = traces(model)
    first = m.measure(model, batches, [name], 5)
    assert traces(model) == before
    json.dumps(first, allow_nan=False)
    if calls:                                               # some run no model
        fails_at, calls = len(calls) // 2 + 1, []
        with pytest.raises(KeyboardInterrupt):
            m.measure(model, batches, [name], 5)
        assert traces(model) == before
    fails_at = math.inf
    assert m.measure(model, batches, [name], 5) == first


# ----------------------------------------------------------------------------- the command

TINY = dict(dataset='tiny', vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=8, batch_size=3, max_iters=3, eval_iters=2,
            gradient_accumulation_steps=1, warmup_iters=0, min_lr=0.05, learning_rate=0.1, weight_decay=0.5, grad_clip=0.3,
            device='cpu', dtype='float32', compile=False, optimizer='sgdw')


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder with data/tiny and a run of 3 iterations on it, out-tiny."""
    folder = tmp_path_factory.mktemp('measure')
    os.makedirs(folder / 'data' / 'tiny')
    write_tokens(folder / 'data' / 'tiny', {split: [np.random.default_rng(0).integers(0, 11, 600)] for split in ('train', 'val')},
                 11, 'bytes')
    call('train.py', ROOT / 'config' / 'arch' / 'peri.py', *flags(**TINY, out_dir='out-tiny'), cwd=folder)
    return folder


def updates_by_hand(state, gradient):
    """‖Δw‖ / ‖w‖ of each block type: momentum SGDW in float64, with decay of matrices and the gradient clipped."""
    total = math.sqrt(sum(g.square().sum().item() for g in gradient.values()))
    moved, size = {}, {}
    for group in state['optimizer']['param_groups']:
        for number, name in zip(group['params'], group['param_names']):
            w, g = state['model'][name].double(), gradient[name].double() * min(1, 0.3 / total)
            step = 0.9 * state['optimizer']['state'][number]['momentum_buffer'].double() + g
            new = w * (1 - group['lr'] * (0.5 if w.dim() == 2 else 0)) - group['lr'] * step
            moved[block_type(name)] = moved.get(block_type(name), 0) + (new - w).square().sum().item()
            size[block_type(name)] = size.get(block_type(name), 0) + w.square().sum().item()
    return {kind: math.sqrt(moved[kind] / size[kind]) for kind in moved}


@pytest.fixture
def undrawn(place, monkeypatch):
    """What would be drawn; in the folder with the run"""
    drawn = []
    monkeypatch.setattr('lab.plot.draw', lambda *picture: drawn.append(picture))
    monkeypatch.chdir(place)
    return drawn


def measured(*arguments):
    """What `lab.measure` prints with these arguments, and the measure.json that it leaves"""
    out = call('lab.measure', *arguments, '--device=cpu')
    folder, = [arg.partition('=')[2] for arg in arguments if str(arg).startswith('--out_dir=')]
    with open(os.path.join(folder + '-init' * ('--init_only=True' in arguments), 'measure.json')) as f:
        return out, strict_json(f.read())


def test_measuring_a_run(undrawn):
    """measure.json has what the functions find over the same windows, and with the next update; and a picture of each"""
    names = [name for name in m.MEASUREMENTS if name != 'preflight']
    found = measured('--out_dir=out-tiny', '--batches=4')[1]
    assert list(found) == ['iter', 'tokens', *names, 'updates'] and found['iter'] == 3 and found['tokens'] == 4 * 3 * 6
    assert undrawn == [(name, ['out-tiny'], os.path.join('out-tiny', f'{name}.png')) for name in names if found[name]]
    state = torch.load('out-tiny/ckpt.pt', weights_only=True)
    model = GPT(GPTConfig(**{f.name: state['config'][f.name] for f in fields(GPTConfig)}))
    model.load_state_dict(state['model'])
    tokens = Tokens('tiny', 'train', 6, 11)
    batches = [tokens.read(starts) for starts in tokens.spread(4, 3)]
    expected = finite(m.measure(model, batches, names, state['config']['seed']))
    for name in names:
        assert_alike(found[name], expected[name])
    assert found['updates'] == pytest.approx(updates_by_hand(state, mean_gradient(model, batches)), rel=1e-4)


def test_the_next_update_is_clipped_too(undrawn):
    """By QK-Clip, as a step of training"""
    call('train.py', ROOT / 'config' / 'arch' / 'pre.py', *flags(**TINY, out_dir='out-clip', qk_clip=1e-3))
    assert measured('--out_dir=out-clip', '--what=parameters')[1]['updates']['qk'] > 0.1
    state = torch.load('out-clip/ckpt.pt', weights_only=True)
    state['config']['qk_clip'] = 0.0
    torch.save(state, 'out-clip/ckpt.pt')
    assert measured('--out_dir=out-clip', '--what=parameters')[1]['updates']['qk'] < 0.1


def assert_alike(a, b, rel=1e-3, abs=1e-6):
    """JSON of the same keys, strings and nulls, and of numbers that are close."""
    if isinstance(a, (dict, list)):
        assert type(a) is type(b) and len(a) == len(b) and (isinstance(a, list) or list(a) == list(b))
        for key in a if isinstance(a, dict) else range(len(a)):
            assert_alike(a[key], b[key], rel, abs)
    else:
        assert a == (b if isinstance(b, str) or b is None else pytest.approx(b, rel=rel, abs=abs))


def test_measuring_some(undrawn):
    """Of the best checkpoint: what was measured before is kept, unless it is of other batches"""
    os.makedirs('out-some')
    os.link('out-tiny/ckpt.pt', 'out-some/best.pt')
    keys = ['--out_dir=out-some', '--checkpoint=best.pt']
    found = measured(*keys, '--what=hidden', '--batches=1')[1]
    assert list(found) == ['iter', 'tokens', 'hidden'] and found['tokens'] == 18
    both = measured(*keys, '--what=layers', '--batches=1')[1]
    assert both == {**found, 'layers': both['layers']}
    assert list(measured(*keys, '--what=layers', '--batches=2')[1]) == ['iter', 'tokens', 'layers']


def test_help_lists_the_measurements():
    out = call('lab.measure', '--help')
    assert all(f'\n    {name} ' in out for name in m.MEASUREMENTS)


def test_measuring_before_training(undrawn, place):
    """--init_only: the model that train.py would start with, in a folder of its own, with the config by which plot.py names it"""
    arch = ROOT / 'config' / 'arch' / 'ngpt.py'
    Path('tiny.json').write_text(json.dumps(TINY))
    command = [arch, 'tiny.json', '--out_dir=out-new', '--init_only=True']
    found = measured(*command, '--what=hidden')[1]
    assert not Path('out-new').exists() and list(found) == ['iter', 'tokens', 'hidden'] and found['iter'] == 0
    keys = json.loads(Path('out-new-init', 'config.json').read_text())
    torch.manual_seed(1337)
    tokens, model = Tokens('tiny', 'train', 6, 11), GPT(GPTConfig(**{f.name: keys[f.name] for f in fields(GPTConfig)}))
    batches = [tokens.read(starts) for starts in tokens.spread(8, 3)]
    assert keys['unit_weights'] and keys['optimizer'] == 'sgdw'
    model.after_step()                                  # nGPT starts with weights of length 1
    assert_alike(found['hidden'], m.measure(model, batches, ['hidden'], 1337)['hidden'])
    assert list(measured(*command, '--what=layers')[1]) == ['iter', 'tokens', 'hidden', 'layers']
    assert list(measured(*command, '--what=layers', '--n_layer=1')[1]) == ['iter', 'tokens', 'layers'], 'of another model'
