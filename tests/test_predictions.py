"""The measurements that stand beside a paper's bound or prediction, against plain computations in float64."""
import itertools
import math
import sys

import pytest
import test_measure
import torch
from test_measure import generator, states_by_hand

from lab import measure as m
from lab.measure.sharpness import diagonal_estimate
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


@pytest.mark.parametrize('arch', ['pre', 'peri', 's5', 'stable'])
def test_variance_of_one_entry_over_sequences_and_the_bounds(arch, data):
    model = build(arch)
    rows, found = m.hidden(model, data, generator()), states(model, data)
    c, gains = model.config, []
    for block in model.h:
        for norm in (block.attn_mid_norm, block.ffn_mid_norm) if c.attn_mid_norm else ():
            gain = norm.weight.abs().max().item() * getattr(norm, 'scale', 1.0)
            gains.append((gain, norm.bias.abs().max().item() if c.bias else 0.0))
    for k, (row, s) in enumerate(zip(rows, found)):
        entry = s.var(0, unbiased=False)
        assert row['entry_var'] == pytest.approx(entry.mean().item())
        assert row['entry_var_max'] == pytest.approx(entry.max().item())
        if c.attn_mid_norm:
            reach = k * c.residual_scale * math.sqrt(6 * 8) * (max(g for g, _ in gains) + max(b for _, b in gains))
            bound = torch.stack([(x.norm() + reach) ** 2 for x in found[0]]).mean().item()          # T5; T4 is of each sequence
            assert row['entry_var_bound'] == pytest.approx(bound) and entry.max() <= bound
            assert row['var_bound'] == pytest.approx(bound / (6 * 8 - 1))
            assert row['ma_bound'] == pytest.approx((found[0].norm(dim=(1, 2)).mean().item() + reach) / math.sqrt(6 * 8))
            assert row['ma'] <= row['ma_bound'] and row['var'] <= row['var_bound']
        else:
            assert 'entry_var_bound' not in row


@pytest.mark.parametrize('arch', ['pre', 'peri', 's5', 'stable'])
def test_transport(arch, data):
    """Against the cheapest of all ways to match one half with the other; and the bounds hold."""
    model = build(arch)
    rows, found = m.transport(model, data, generator()), states(model, data)
    c = model.config
    gain = max((norm.weight.abs().max().item() * getattr(norm, 'scale', 1.0) for block in model.h
                for norm in (block.attn_mid_norm, block.ffn_mid_norm) if c.attn_mid_norm), default=None)
    first = {}
    for k, (row, s) in enumerate(zip(rows, found)):
        for p in (1, 2):
            costs = [sum(((s[i] - s[3 + j]).abs() ** p).sum().item() for i, j in enumerate(order)) / 3
                     for order in itertools.permutations(range(3))]
            assert row[f'w{p}'] == pytest.approx(min(costs) ** (1 / p))
            first.setdefault(p, row[f'w{p}'])
        if gain:
            reach = 4 * (k / 2) * c.residual_scale * math.sqrt(6 * 8) * gain         # 4 Δt D √(nd) γ_max, D blocks of two each
            assert row['w2_bound'] == pytest.approx(math.sqrt(2) * (first[2] + reach))
            assert row['w1_bound'] == pytest.approx(math.sqrt(6 * 8) * (first[1] + reach))
            assert row['w1'] <= row['w1_bound'] and row['w2'] <= row['w2_bound']
        else:
            assert 'w2_bound' not in row


def test_attention_growth(data):
    """T3's product, with W = W_o W_v; and it bounds what attention alone does."""
    dt, x = 0.2, data[0][0][:1]
    model = build('s1', residual_scale=dt)
    rows = m.attention_growth(model, data, generator())
    with torch.no_grad():
        x = states_by_hand(model, x)[0][0][0]
        bound = x.norm().item() / math.sqrt(6 * 8)
        for block, row in zip(model.h, rows):
            w = torch.linalg.svdvals(block.attn.wo.weight @ block.attn.wv.weight)[0].item()
            shortest = min(token.norm().item() for token in x)
            bound *= 1 + dt * math.sqrt(6) * math.sqrt(8) * block.attn_pre_norm.weight.abs().max().item() / shortest * w
            x = x + dt * block.attn(block.attn_pre_norm(x[None]))[0][0]
            assert row['ma'] == pytest.approx(x.abs().mean().item()) and row['ma_bound'] == pytest.approx(bound)
            assert row['ma'] <= row['ma_bound']


def test_what_has_no_bound_is_left_out(data):
    """Attention's growth is of one head with RMSNorm alone; one sequence has no variance over sequences"""
    for arch, more in (('pre', {}), ('s5', {}), ('s1', dict(n_head=2)), ('s1', POST_NORM), ('s1', dict(v_norm=True)),
                       ('s1', dict(linear_norm=True))):
        assert m.attention_growth(build(arch, **more), data, generator()) == []
    model, one = build('peri'), [(data[0][0][:1], data[0][1][:1])]
    assert all('entry_var' not in row for row in m.hidden(model, one, generator())) and m.transport(model, one, generator()) == []


def test_output_spectrum(data):
    model = build('s5')
    found = m.output_spectrum(model, data, generator())
    assert set(found) == {'wq', 'wk', 'wv', 'wo', 'w1', 'w2'} and all(len(rows) == 3 for rows in found.values())
    with torch.no_grad():
        x = states(model, data[:1])[3].flatten(0, 1)        # (tokens, D) ahead of block 1's FFN
        w = model.h[1].ffn.w1.weight
        top = torch.linalg.svdvals(w)[0]
        measured = sum(top / (w @ token).norm() for token in x) / len(x)
        shape = (math.sqrt(32) + math.sqrt(8)) / math.sqrt(32 * 8)
        predicted = sum(shape / (token ** 2).mean().sqrt() for token in x) / len(x)
    assert found['w1'][1]['measured'] == pytest.approx(measured.item())
    assert found['w1'][1]['predicted'] == pytest.approx(predicted.item())


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
    monkeypatch.setattr(sys.modules['lab.measure.jacobian'], 'ENTRIES', 4 * 8)
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


def test_factors_and_layers(data):
    """n S ‖θ‖² of each weight is the sum of h over it times its squared norm, an embedding's that of its shortest row without
    its mean; layer 0 is the embeddings."""
    model = build('s5', tie_weights=False, embedding_skip=True)
    h = diagonal_estimate(model, data, generator())
    found = m.layers(model, data, generator())
    factors = found['factors']
    assert set(factors) == {'emb', 'wq', 'wk', 'wv', 'wo', 'attn_pre_norm', 'w1', 'w2'}         # S5 has no norm before its FFN
    for i, block in enumerate(model.h):
        for name, w in (('attn.wq', block.attn.wq.weight), ('attn.wo', block.attn.wo.weight), ('ffn.w2', block.ffn.w2.weight),
                        ('attn_pre_norm', block.attn_pre_norm.weight)):
            wanted = h[f'h.{i}.{name}.weight'].sum() * (w ** 2).sum()
            assert factors[name.split('.')[-1]][i] == pytest.approx(wanted.item())
    w = model.wte.weight
    shortest = min(((row - row.mean()) ** 2).sum().item() for row in w)
    assert factors['emb'] == [pytest.approx(h['wte.weight'].sum().item() * shortest)]
    own = {0: ('wte', 'wpe', 'input_norm'), **{i + 1: (f'h.{i}.',) for i in range(3)}}
    for layer, prefixes in own.items():
        values = torch.cat([value.flatten() for name, value in h.items() if name.startswith(prefixes)])
        assert found['sharpness'][layer]['log10_mean'] == pytest.approx(values.mean().log10().item())
        positive = values[values > 0]
        assert found['sharpness'][layer]['mean_log10'] == pytest.approx(positive.log10().mean().item())
