"""The measurements that stand beside a paper's bound or prediction, against plain computations in float64."""
import itertools
import math
import sys

import pytest
import test_measure
import torch
from test_measure import generator, states_by_hand

from lab import measure as m
from lab.measure.gradients import diagonal_estimate
from test_model import MID_NORM, POST_NORM

VARIANTS = {'peri': dict(residual_scale=0.3, bias=True), 'stable': dict(norm_alpha=0.4, attention='dot', **MID_NORM)}


def build(arch, **more):
    return test_measure.build(arch, {**dict(n_layer=3, n_head=1), **VARIANTS.get(arch, {}), **more})


@pytest.fixture
def data():
    return test_measure.data(batches=3, size=2, length=6)


def states(model, data):
    """The residual stream of all sequences behind each sub-block (places, sequences, T, D)"""
    return torch.stack([torch.cat(parts) for parts in zip(*(states_by_hand(model, x) for x, _ in data))])


@pytest.mark.parametrize('arch', ['pre', 'peri', 's5', 'stable'])
def test_moments_transport_and_their_bounds(arch, data):
    """T4, T5 and T6. Transport is against the cheapest of all ways to match one half with the other"""
    model = build(arch)
    c, found = model.config, states(model, data)
    bounded, n = c.attn_mid_norm, 6 * 8
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm) if bounded]
    gain = max([norm.weight.abs().max().item() * getattr(norm, 'scale', 1.0) for norm in norms], default=0)
    bias = max([norm.bias.abs().max().item() for norm in norms if c.bias], default=0)
    moments, distances = m.hidden(model, data, generator()), m.transport(model, data, generator())
    for k, (row, far, s) in enumerate(zip(moments, distances, found, strict=True)):
        assert ('entry_var_bound' in row) == ('ma_bound' in row) == ('w2_bound' in far) == bounded
        entry = s.var(0, unbiased=False)
        assert [row['entry_var'], row['entry_var_max']] == pytest.approx([entry.mean().item(), entry.max().item()])
        if bounded:
            reach = k * c.residual_scale * math.sqrt(n) * (gain + bias)
            bound = torch.stack([(x.norm() + reach) ** 2 for x in found[0]]).mean().item()
            assert row['entry_var_bound'] == pytest.approx(bound) and entry.max() <= bound
            assert row['var'] <= row['var_bound'] == pytest.approx(bound / (n - 1))
            mean_norm = found[0].norm(dim=(1, 2)).mean().item()
            assert row['ma'] <= row['ma_bound'] == pytest.approx((mean_norm + reach) / math.sqrt(n))
        for p, factor in (1, math.sqrt(n)), (2, math.sqrt(2)):
            costs = [sum(((s[i] - s[3 + j]).abs() ** p).sum().item() for i, j in enumerate(order)) / 3
                     for order in itertools.permutations(range(3))]
            assert far[f'w{p}'] == pytest.approx(min(costs) ** (1 / p))
            if bounded:
                reach = 4 * (k / 2) * c.residual_scale * math.sqrt(n) * gain            # 4 Δt D √(nd) γ_max
                assert far[f'w{p}'] <= far[f'w{p}_bound'] == pytest.approx(factor * (distances[0][f'w{p}'] + reach))


def singular_values(f, x):
    matrix = torch.autograd.functional.jacobian(lambda v: f(v.view_as(x)).flatten(), x.flatten())
    return torch.linalg.svdvals(matrix).tolist()


@pytest.mark.parametrize('arch, more', [('s5', dict(n_head=2)), ('peri', dict(n_layer=1)), ('pre', dict(n_layer=1, **POST_NORM))])
def test_spectra_of_jacobians(arch, more, data, monkeypatch):
    """Against the dense Jacobian of each layer at the first 4 of 6 tokens"""
    monkeypatch.setattr(sys.modules['lab.measure.sensitivity'], 'ENTRIES', 4 * 8)
    model, x = build(arch, **more), data[0][0][0][:4]
    at = model.input_norm(model.wte(x) + model.wpe(torch.arange(4))).detach()
    for k, row in enumerate(m.jacobian(model, data, generator())):
        block, name = model.h[k // 2], ('attn', 'ffn')[k % 2]
        pre, mid, post = (getattr(block, f'{name}_{place}_norm') for place in ('pre', 'mid', 'post'))

        def layer(v):
            f = mid(getattr(block, name)(pre(v[None])))[0]
            return post(v + model.config.residual_scale * f)

        sigma, found = singular_values(layer, at), row['layer']
        rank, noise = math.exp(-sum(x / sum(sigma) * math.log(x / sum(sigma)) for x in sigma)), 1e-14 * sigma[0]
        assert [found['largest'], found['effective_rank']] == pytest.approx([sigma[0], rank])           # Roy and Vetterli's
        assert [found['median'], found['smallest']] == pytest.approx([sigma[len(sigma) // 2], sigma[-1]], abs=noise)
        assert found['condition'] == (pytest.approx(sigma[0] / sigma[-1], rel=0.01) if sigma[-1] > noise else math.inf)
        at = layer(at).detach()


@pytest.mark.parametrize('arch', ['s5', 'peri'])
def test_angles_between_branches_and_stream(arch, data):
    """‖x + f‖² is ‖x‖² + ‖f‖² + 2 ‖x‖ ‖f‖ cos, so that it is the sum of squares where all branches are orthogonal"""
    model = build(arch)
    rows, found = m.jacobian(model, data, generator()), states(model, data[:1])
    squares = found[0].square().sum(-1)
    for row, before, behind in zip(rows, found, found[1:]):
        f = behind - before
        cos, squares = (f * before).sum(-1) / f.norm(dim=-1) / before.norm(dim=-1), squares + f.square().sum(-1)
        wanted = cos.mean(), cos.square().mean().sqrt(), behind.norm(dim=-1).mean(), squares.sqrt().mean()
        assert [row[key] for key in ('cos', 'cos_rms', 'norm', 'orthogonal')] == pytest.approx([x.item() for x in wanted])
    assert not any('orthogonal' in row for row in m.jacobian(build(arch, **POST_NORM), data, generator()))


def test_layers(data):
    """Layer 0 is the embeddings; what comes after the blocks is in none"""
    model = build('s5', tie_weights=False, embedding_skip=True)
    h, found = diagonal_estimate(model, data, generator()), m.layers(model, data, generator())
    for layer, prefixes in enumerate((('wte', 'wpe', 'input_norm'), 'h.0.', 'h.1.', 'h.2.')):
        values = torch.cat([value.flatten() for name, value in h.items() if name.startswith(prefixes)])
        assert found[layer]['log10_mean'] == pytest.approx(values.mean().log10().item())
        assert found[layer]['mean_log10'] == pytest.approx(values[values > 0].log10().mean().item())
