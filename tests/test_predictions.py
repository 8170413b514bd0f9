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
    return torch.stack([torch.cat(parts) for parts in zip(*(states_by_hand(model, x)[0] for x, _ in data))])


def mid_norms(model):
    """(γ_max, γ_max + β_max) over the MidNorms, None without them"""
    c = model.config
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm) if c.attn_mid_norm]
    gains = [norm.weight.abs().max().item() * getattr(norm, 'scale', 1.0) for norm in norms]
    biases = [norm.bias.abs().max().item() if c.bias else 0.0 for norm in norms]
    return (max(gains), max(gains) + max(biases)) if norms else None


@pytest.mark.parametrize('arch', ['pre', 'peri', 's5', 'stable'])
def test_variance_of_one_entry_over_sequences_and_the_bounds(arch, data):
    """T5; T4 is of each sequence"""
    model = build(arch)
    rows, found, gains = m.hidden(model, data, generator()), states(model, data), mid_norms(model)
    for k, (row, s) in enumerate(zip(rows, found)):
        entry = s.var(0, unbiased=False)
        assert [row['entry_var'], row['entry_var_max']] == pytest.approx([entry.mean().item(), entry.max().item()])
        assert ('entry_var_bound' in row) == bool(gains)
        if gains:
            reach = k * model.config.residual_scale * math.sqrt(6 * 8) * gains[1]
            bound = torch.stack([(x.norm() + reach) ** 2 for x in found[0]]).mean().item()
            assert row['entry_var_bound'] == pytest.approx(bound) and entry.max() <= bound
            assert row['var_bound'] == pytest.approx(bound / (6 * 8 - 1))
            assert row['ma_bound'] == pytest.approx((found[0].norm(dim=(1, 2)).mean().item() + reach) / math.sqrt(6 * 8))
            assert row['ma'] <= row['ma_bound'] and row['var'] <= row['var_bound']


@pytest.mark.parametrize('arch', ['pre', 'peri', 's5', 'stable'])
def test_transport(arch, data):
    """Against the cheapest of all ways to match one half with the other; and the bounds hold."""
    model = build(arch)
    rows, found, gains = m.transport(model, data, generator()), states(model, data), mid_norms(model)
    for k, (row, s) in enumerate(zip(rows, found)):
        assert ('w2_bound' in row) == bool(gains)
        for p, factor in (1, math.sqrt(6 * 8)), (2, math.sqrt(2)):
            costs = [sum(((s[i] - s[3 + j]).abs() ** p).sum().item() for i, j in enumerate(order)) / 3
                     for order in itertools.permutations(range(3))]
            assert row[f'w{p}'] == pytest.approx(min(costs) ** (1 / p))
            if gains:
                reach = 4 * (k / 2) * model.config.residual_scale * math.sqrt(6 * 8) * gains[0]         # 4 Δt D √(nd) γ_max
                assert row[f'w{p}'] <= row[f'w{p}_bound'] == pytest.approx(factor * (rows[0][f'w{p}'] + reach))


def test_t3_bounds_attention_alone(data):
    """X ← X + Δt attn(X), block after block, for Pre-LN with one head and RMSNorm (eq. 82): MA(X) is at most
    ‖X_0‖_F / √(nd) · Π (1 + Δt √n √d ‖γ‖_∞ max_j 1/‖x_j‖ ‖W_o W_v‖), where √d is for our RMSNorm"""
    dt, model = 0.2, build('s1', residual_scale=0.2)
    with torch.no_grad():
        x = states_by_hand(model, data[0][0][:1])[0][0][0]
        bound = x.norm() / math.sqrt(6 * 8)
        for block in model.h:
            w = torch.linalg.matrix_norm(block.attn.wo.weight @ block.attn.wv.weight, 2)
            largest = block.attn_pre_norm.weight.abs().max() / x.norm(dim=1).min()
            bound *= 1 + dt * math.sqrt(6) * math.sqrt(8) * largest * w
            x = x + dt * block.attn(block.attn_pre_norm(x[None]))[0][0]
            assert x.abs().mean() <= bound


def test_what_has_no_bound_is_left_out(data):
    """One sequence has no variance over sequences"""
    model, one = build('peri'), [(data[0][0][:1], data[0][1][:1])]
    assert all('entry_var' not in row for row in m.hidden(model, one, generator())) and m.transport(model, one, generator()) == []


def layers(model):
    """(attention or FFN of a block, with its norms) as a function of x (T, D): what is added to x, and all that follows it"""
    for b in model.h:
        for pre, f, mid, post in ((b.attn_pre_norm, lambda x, b=b: b.attn(x)[0], b.attn_mid_norm, b.attn_post_norm),
                                  (b.ffn_pre_norm, b.ffn, b.ffn_mid_norm, b.ffn_post_norm)):
            yield lambda x, pre=pre, f=f, mid=mid: model.config.residual_scale * mid(f(pre(x[None])))[0], post


def singular_values(f, x):
    matrix = torch.autograd.functional.jacobian(lambda v: f(v.view_as(x)).flatten(), x.flatten())
    return torch.linalg.svdvals(matrix)


@pytest.mark.parametrize('arch, more', [('s5', dict(n_head=2)), ('peri', dict(n_layer=1)), ('pre', dict(n_layer=1, **POST_NORM))])
def test_spectra_of_jacobians(arch, more, data, monkeypatch):
    """Against the dense Jacobian of each layer and of its branch alone, at the first 4 of 6 tokens; the largest singular value of
    a branch is what `sensitivity` finds by power iteration."""
    monkeypatch.setattr(sys.modules['lab.measure.sensitivity'], 'ENTRIES', 4 * 8)
    model, x = build(arch, **more), data[0][0][0][:4]
    rows, by_power = m.jacobian(model, data, generator()), m.sensitivity(model, [(x[None], x[None])], generator())
    at = model.input_norm(model.wte(x) + model.wpe(torch.arange(4))).detach()
    for k, (row, (f, post)) in enumerate(zip(rows, layers(model), strict=True)):
        scale = model.config.residual_scale
        for name, function in ('layer', lambda v: post(v + f(v))), ('branch', lambda v: f(v) / scale):
            sigma = singular_values(function, at).tolist()
            rank = math.exp(-sum(x / sum(sigma) * math.log(x / sum(sigma)) for x in sigma))         # Roy and Vetterli's
            found, noise = row[name], 1e-14 * sigma[0]
            assert [found['largest'], found['effective_rank']] == pytest.approx([sigma[0], rank])
            assert [found['median'], found['smallest']] == pytest.approx([sigma[len(sigma) // 2], sigma[-1]], abs=noise)
            assert found['condition'] == (pytest.approx(sigma[0] / sigma[-1], rel=0.01) if sigma[-1] > noise else math.inf)
        assert by_power[k // 2][('attn', 'ffn')[k % 2]] == pytest.approx(row['branch']['largest'], rel=0.02)
        at = post(at + f(at)).detach()


@pytest.mark.parametrize('arch', ['s5', 'peri'])
def test_angles_between_branches_and_stream(arch, data):
    """‖x + f‖² is ‖x‖² + ‖f‖² + 2 ‖x‖ ‖f‖ cos, so that it is the sum of squares where all branches are orthogonal"""
    model = build(arch)
    rows, found = m.jacobian(model, data, generator()), states(model, data[:1])
    squares = found[0].square().sum(-1)
    for row, before, behind in zip(rows, found, found[1:]):
        f = behind - before
        cos = (f * before).sum(-1) / f.norm(dim=-1) / before.norm(dim=-1)
        squares = squares + f.square().sum(-1)
        assert [row['cos'], row['cos_rms']] == pytest.approx([cos.mean().item(), cos.square().mean().sqrt().item()])
        assert row['norm'] == pytest.approx(behind.norm(dim=-1).mean().item())
        assert row['orthogonal'] == pytest.approx(squares.sqrt().mean().item())
    assert not any('orthogonal' in row for row in m.jacobian(build(arch, **POST_NORM), data, generator()))


def test_jacobian_to_the_end():
    """J_{i:D} of each block, against the product of the blocks' full Jacobians"""
    model, x = build('pre', n_layer=2, n_embd=4), torch.tensor([[1, 7, 4]])
    rows, found = m.sensitivity(model, [(x, x)], generator()), states_by_hand(model, x)[0]
    product = torch.eye(3 * 4, dtype=torch.float64)
    for i in reversed(range(2)):
        def flat(v, block=model.h[i]):
            return block(v.view(1, 3, 4))[0].flatten()
        product = product @ torch.autograd.functional.jacobian(flat, found[2 * i].flatten())
        assert rows[i]['to_end'] == pytest.approx(torch.linalg.svdvals(product)[0].item(), rel=0.02)      # as far as it iterates


def test_layers(data):
    """Layer 0 is the embeddings; what comes after the blocks is in none"""
    model = build('s5', tie_weights=False, embedding_skip=True)
    h, found = diagonal_estimate(model, data, generator()), m.layers(model, data, generator())
    own = {0: ('wte', 'wpe', 'input_norm'), **{i + 1: (f'h.{i}.',) for i in range(3)}}
    for layer, prefixes in own.items():
        values = torch.cat([value.flatten() for name, value in h.items() if name.startswith(prefixes)])
        assert found[layer]['log10_mean'] == pytest.approx(values.mean().log10().item())
        positive = values[values > 0]
        assert found[layer]['mean_log10'] == pytest.approx(positive.log10().mean().item())
