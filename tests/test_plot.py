"""
lab/plot: what its pictures and pages show of files made here, that they can be read, and how they name runs.
"""
from configurator import read_config

import base64
import functools
import itertools
import json
import math
import operator
import re
import sys
from dataclasses import asdict, fields
from types import SimpleNamespace

import matplotlib.pyplot
import numpy as np
import pandas
import pytest
import torch
from helpers import ROOT, call
from matplotlib.text import Text

from engine.log import write_row
from lab import plot
from lab.measure import MEASUREMENTS, measure
from lab.plot import __main__ as command
from lab.plot.lines import TYPES
from lab.plot.measured import short, symbols
from lab.plot.names import grouped_by_seed, labels, titles
from lab.plot.runs import smoothed
from lab.plot.sweeps import rows_of
from model import GPT, GPTConfig

ARCHS = sorted(path.stem for path in (ROOT / 'config' / 'arch').glob('*.py'))
KINDS = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')


@torch.no_grad()
def build(arch, more={}, noise=0.3):
    """A small model of this fragment of config/arch, with random weights."""
    keys = read_config(str(ROOT / 'config' / 'arch' / f'{arch}.py'), {'model': 'gpt'})
    config = {f.name: keys[f.name] for f in fields(GPTConfig) if f.name in keys}
    torch.manual_seed(0)
    model = GPT(GPTConfig(**config | dict(block_size=6, vocab_size=11, n_layer=2, n_head=2, n_embd=8) | more))
    for p in model.parameters():
        p.add_(noise * torch.randn_like(p))
    return model.eval()


def data(batches=2):
    rng = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(7, (3, 5), generator=rng) for _ in 'xy') for _ in range(batches)]


def write_run(folder, arch, optimizer, more={}, measured={}):
    """A run's config.json and measure.json → what the latter holds."""
    folder.mkdir()
    model, results = build(arch, more), measured
    if not measured:
        results = measure(model, data(), MEASUREMENTS, 0)
        results.update(measure(build('s1', dict(n_head=1)), data(), ['attention_growth'], 0))      # it is of such models alone
    (folder / 'config.json').write_text(json.dumps({**asdict(model.config), 'optimizer': optimizer}))
    with open(folder / 'measure.json', 'w', encoding='utf-8') as f:
        write_row(f, dict(iter=7, tokens=30, **results))
    return json.loads((folder / 'measure.json').read_text())


def write_rows(path, rows):
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def write_log(folder, losses, evaluations=(), config={}, **more):
    """A run of these training losses and evaluations, {iteration: validation loss}"""
    folder.mkdir(parents=True)
    if config:
        (folder / 'config.json').write_text(json.dumps(config))
    rows = [dict(iter=it, loss=loss, lr=0.1, **more) for it, loss in enumerate(losses)]
    rows += [dict(iter=it, val_loss=v) for it, v in dict(evaluations).items()]
    write_rows(folder / 'log.jsonl', sorted(rows, key=lambda row: row['iter']))
    return str(folder)


POINTS = [('s1', '0.1', 2.0, 0.25, 3, 0), ('s1', '0.3', 1.5, 0.5, 2, 1), ('s1', '1.0', math.inf, math.nan, 0, 3),
          ('s5', '0.1', math.inf, math.nan, 0, 0), ('s5', '0.3', 1.25, math.nan, 1, 0), ('s5', '1.0', math.inf, math.nan, 0, 2)]


def write_table(folder, axes, points, tuning=()):
    """table.csv of [(labels …, mean loss, standard error, done, diverged)]"""
    folder.mkdir(exist_ok=True)
    head = [*axes, 'val_loss', 'standard_error', 'done', 'diverged', *['tuning_loss'] * bool(tuning)]
    lines = [head, *([*point, *rest] for point, *rest in zip(points, *[tuning] * bool(tuning)))]
    (folder / 'table.csv').write_text('\n'.join(','.join(map(str, line)) for line in lines) + '\n')
    return str(folder)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """Two runs, the second of which measured while it trained, what their measure.json hold, twelve runs, and sweeps"""
    place, patch = tmp_path_factory.mktemp('plot'), pytest.MonkeyPatch()
    patch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))
    for name in ('preflight', 'sensitivity'):           # any number, and at once
        patch.setattr(sys.modules[f'lab.measure.{name}'], 'jacobian_norm', lambda f, x, start, steps=1: f(x).norm().item())
    measured = [write_run(place / 'out-a', 'peri', 'adamw'), write_run(place / 'out-b', 'llama', 'sgdw', dict(n_kv_head=1))]
    patch.undo()
    for name, shift in ('out-a', 0.0), ('out-b', 0.5):
        rows = [dict(iter=it, loss=5 - it + shift, lr=0.1 * it, grad_norms=dict(qk=1.0 + it, ffn=2.0, gate=3.0))
                for it in range(4)]
        rows[2:2] = [dict(iter=it, val_loss=val + shift, residual_rms=[1.0 * it, 2.0], max_logits=[3.0, 1.0 * it])
                     for it, val in ((2, 2.25), (3, 2.5))]
        write_rows(place / name / 'log.jsonl', rows)
        with open(place / name / 'log.jsonl', 'a') as f:
            f.write('{"iter": 4, "loss"')
        of_one = dict(moves={str(2 ** i): [0.1 + shift, (1 + shift) * i ** 2] for i in (5, 6, 8)}, exponent=1.0)
        (place / name / 'coordinates.json').write_text(json.dumps(dict(
            steps=2, activations=dict(ffn=of_one, attention_logits=of_one))))
    with open(place / 'out-b' / 'measure.jsonl', 'w', encoding='utf-8') as f:
        for it in 0, 5, 10:
            model = build('llama', dict(n_kv_head=1), noise=0.1 + it / 50)
            write_row(f, dict(iter=it, **measure(model, data(1), ['sharpness', 'attention'], 0), updates=dict(qk=0.1 * it)))
    for i in range(12):
        config = {**asdict(build(ARCHS[i % 3]).config), 'optimizer': 'lion', 'learning_rate': 0.1 * i}
        write_log(place / f'run-{i}', [5.6, *[2.0 + i / 20] * 4], {2: 3.0, 4: 1.0 + (7 * i % 12) / 10}, config, grad_norm=1.0 + i)
    write_table(place / 'sweep', ['arch', 'learning_rate'], POINTS)
    write_table(place / 'sweep-12', ['arch', 'learning_rate'],
                [(f'arch{i}', f'{rate}e-3', 2 + i / 10, 0.1, 2, 0) for i in range(12) for rate in (1, 2, 4, 8, 16)])
    rates = dict(adamw=['1e-3', '2e-3'], lion=['1e-4', '2e-4'], sgdw=['0.1', '0.3', '1.0'])
    write_table(place / 'sweep-2', ['arch', 'optim', 'learning_rate'],
                [(arch, optim, rate, 2.0, 0.1, 1, 0) for arch in ('pre', 'peri', 's5') for optim in rates
                 for rate in rates[optim]])
    write_table(place / 'sweep-one', ['arch', 'learning_rate'], [(f'a long name {i}', '0.1', *POINTS[i][2:]) for i in range(6)])
    return place, measured


PAIRS, LABELS = ['out-a', 'out-b'], ['out-a (peri, adamw, n_kv_head=0)', 'out-b (llama, sgdw, n_kv_head=1)']
TWELVE = [f'run-{i}' for i in range(12)]
CASES = [(what, PAIRS[:runs]) for what in plot.pictures() if what != 'sweep' for runs in (1, 2)]
CASES += [('loss', TWELVE[:6]), ('loss', TWELVE), ('grad_norm', TWELVE), ('grad_norms', PAIRS), ('hidden', PAIRS * 3)]
CASES += [('sweep', ['sweep']), ('sweep', ['sweep-12']), ('sweep', ['sweep-2']), ('sweep', ['sweep-one']),
          ('sweep', ['sweep', 'sweep-2'])]


@pytest.fixture(scope='module')
def described(place):
    """(what, names) → the picture as Lines or a figure"""
    return lambda what, names, **more: plot.describe(what, [place[0] / name for name in names], **more)


def of(curves, dash='-'):
    """[(x, y)] of the curves with this dash that are not empty"""
    return [(list(curve.x), list(curve.y)) for curve in curves if curve.dash == dash and not curve.is_empty()]


def overlap(a, b):
    """Do two boxes share more than a point of their edges?"""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def check_can_be_read(figure):
    """No text over another, no legend over data, and a width that fits a page; savefig cuts at the outermost text."""
    figure.draw_without_rendering()
    hidden = set()                                      # labels of ticks beyond the limits
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        hidden |= {label for tick in (*axis.majorTicks, *axis.minorTicks) if not low <= tick.get_loc() <= high
                   for label in (tick.label1, tick.label2)}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in hidden]
    level = [(text, text.get_window_extent()) for text in texts if text.get_rotation() in (0, 90)]
    for (a, box_a), (b, box_b) in itertools.combinations(level, 2):
        assert not overlap(box_a, box_b), (a.get_text(), b.get_text())
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
    assert not any(overlap(legend.get_window_extent(), ax.bbox) for legend in legends for ax in figure.axes)
    assert all(text.get_fontsize() >= 7 for text in texts) and figure.get_tightbbox().width < 8.5


@pytest.mark.parametrize('what, names', CASES, ids=lambda value: value if isinstance(value, str) else str(len(value)))
def test_a_picture_can_be_read(described, place, what, names):
    """It names each run, and its axes say what they are; each entry of the legend has a curve, and each curve with a name one"""
    figure = plot.picture(what, [place[0] / name for name in names])
    check_can_be_read(figure)
    written = ' '.join(text.get_text().replace('\n', ' ') for text in figure.findobj(Text))
    if what != 'sweep' and len(names) <= 2:
        known = ['Peri-LN', 'LLaMA'] if what == 'preflight' else LABELS if len(names) == 2 else ['out-a (peri, adamw)', 'out-b']
        assert [name in written for name in known] == [True, len(names) == 2]
    picture = described(what, names)
    if what != 'preflight':
        panels = [panel for panel in picture.panels if panel]
        drawn = {curve.name for panel in panels for curve in panel.curves if curve.name and not curve.is_empty()}
        entries = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert sorted(drawn) == sorted(entry.replace('\n', ' ') for entry in entries)
        assert all(panel.x and (panel.y or panel.title) for panel in panels)


def test_a_notebook_keeps_its_backend(place):
    """No figure is known to pyplot, and matplotlib's settings are as they were"""
    before = {'backend': matplotlib.get_backend(), **matplotlib.rcParams}
    plot.picture('loss', [place[0] / 'out-a'])
    assert dict(matplotlib.rcParams) == before and matplotlib.pyplot.get_fignums() == []


# ----------------------------------------------------------------------------- the loss

def test_loss(described):
    """A half-written last line is left out; seven and more losses have panels of their own"""
    loss, lr = described('loss', PAIRS).panels
    for i in 0, 1:
        assert of(loss.curves)[2 * i:2 * i + 2] == [([0, 1, 2, 3], [5 + i / 2, 4 + i / 2, 3 + i / 2, 2 + i / 2]),
                                                    ([2, 3], [2.25 + i / 2, 2.5 + i / 2])]
        assert of(lr.curves)[i] == ([0, 1, 2, 3], pytest.approx([0, 0.1, 0.2, 0.3]))
    assert [curve.name for curve in loss.curves[1::2]] == [f'{LABELS[0]}: 2.250', f'{LABELS[1]}: 2.750']
    train, val, _ = described('loss', TWELVE).panels
    assert 'training' in train.y and 'validation' in val.y and len(val.curves) == len(train.curves) == 12
    assert [curve.y[-1] for curve in val.curves] == pytest.approx([1 + i / 10 for i in range(12)]), 'the best first'


def test_the_start_is_left_out_of_long_runs_alone(tmp_path):
    """So that 2.20 and 2.28 differ by a twentieth of the axis or more, also beside a run that diverged; the untrained model's
    evaluation is not drawn. A short run is seen whole, and one with a row or none is no traceback."""
    falls = [5.5 * 0.5 ** it for it in range(3)]
    runs = [write_log(tmp_path / name, falls + [end + (2.8 - end) * (200 - it) / 197 for it in range(3, 200)],
                      {0: 5.5, 100: 2.5, 200: end}) for name, end in (('a', 2.2), ('b', 2.28))]
    with open(write_log(tmp_path / 'high', [3.0] * 150 + [1e6] * 49) + '/log.jsonl', 'a') as f:
        f.write('{"iter": 199, "diverged": "the loss"}\n')
    panel = plot.describe('loss', [*runs, tmp_path / 'high']).panels[0]
    low, top = panel.ylim
    assert low < 2.2 < 2.8 < top < 3.5 and 0.08 > 0.05 * (top - low) and panel.remark == 'above: the first 2% of the iterations'
    assert ([100, 200], [2.5, 2.2]) in of(panel.curves)
    short_run = write_log(tmp_path / 'short', [5.0, 3.0, 2.0, 1.9, 1.8])
    assert plot.describe('loss', [short_run]).panels[0].ylim == (None, None)
    for losses, evaluations in ([5.0], {}), ([5.0], {0: 5.0, 1: 4.0}), ([], {0: 5.0}):
        run = write_log(tmp_path / f'{len(losses)}-{len(evaluations)}', losses, evaluations)
        check_can_be_read(plot.picture('loss', [run], smooth=5, log='y'))
    with pytest.raises(ValueError, match='none has no row in its log.jsonl yet'):
        plot.picture('loss', [write_log(tmp_path / 'none', [])])


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path):
    """Their mean at the iterations that all have, in a band from the lowest to the highest"""
    runs = [write_log(tmp_path / f'out-x-seed{seed}', [seed + 1.0] * (5 - seed), {2: 2.0 * seed, 3: 1.0 * seed},
                      config=dict(n_layer=2, seed=seed, out_dir=str(seed))) for seed in (0, 1)]
    other = write_log(tmp_path / 'out-y', [9.0] * 5, {2: 8.0, 3: 7.0}, config=dict(n_layer=3, seed=0))
    picture = plot.describe('loss', [*runs, other])
    train, val, *_ = picture.panels[0].curves
    assert (val.name, 'mean and range' in picture.legend) == ('out-x (n_layer=2), 2 seeds: 0.500', True)
    assert of([train, val]) == [([0, 1, 2, 3], [1.5] * 4), ([2, 3], [1.0, 0.5])]
    assert (list(val.low), list(val.high)) == ([0, 0], [2, 1])
    check_can_be_read(picture.figure())
    with open(f'{runs[1]}/log.jsonl', 'a') as f:
        f.write('{"iter": 3, "diverged": "the loss"}\n')
    found = plot.describe('loss', [*runs, other]).panels[0].curves[1].name
    assert found == 'out-x (n_layer=2), 2 seeds: 0.000, 1 diverged'
    assert all(len(group) == 1 for _, group in grouped_by_seed([*runs, runs[0]])), 'the same run twice'


def test_zoom_and_smooth(described):
    """Means of the training loss over the last iterations, not of the learning rate; limits and scales of the first panel"""
    loss, lr = described('loss', ['out-a'], smooth=2, xlim=(1, 3), ylim=(2, None), log='y').panels
    assert of(loss.curves)[0] == ([0, 1, 2, 3], [5, 4.5, 3.5, 2.5]) and of(loss.curves)[1][1] == [2.25, 2.5]
    assert of(lr.curves) == of(described('loss', ['out-a']).panels[1].curves)
    assert smoothed([(0, 1.0), (1, math.nan), (2, 3.0), (3, 5.0)], 2) == [(0, 1.0), (2, 3.0), (3, 4.0)]
    assert (loss.log, lr.log, loss.xlim, lr.xlim, loss.ylim, lr.ylim) == ('y', '', (1, 3), (1, 3), (2, None), (None, None))
    with pytest.raises(ValueError, match='are for curves, and preflight has none'):
        described('preflight', ['out-a'], ylim=(1, 2))


# ----------------------------------------------------------------------------- measurements

HALVES = [0, 0.5, 1, 1.5, 2]                                # behind each attention and each FFN
# picture: where its points stand, and of each panel where its rows are, their key, and that of the dashed curves
CURVES = {
    'hidden': (HALVES, [((), key, f'{key}_bound') for key in ('ma', 'var', 'entry_var')]),
    'drift': (HALVES, [((), key, '') for key in ('distance', 'relative')]),
    'transport': (HALVES, [((), key, f'{key}_bound') for key in ('w2', 'w1')]),
    'sensitivity': ([1, 2], [((), key, '') for key in ('block', 'attn', 'ffn', 'to_end')]),
    'attention_growth': ([1, 2], [((), 'ma', 'ma_bound')]),
    'parameters': ([1, 2], [((kind,), 'spectral', '') for kind in KINDS]),
    'output_spectrum': ([1, 2], [((kind,), 'measured', 'predicted') for kind in KINDS])}


@pytest.mark.parametrize('what', CURVES)
def test_curves(place, described, what):
    """A curve for each run in each panel; bounds and predictions dashed, where there are any; what is compared shares an axis"""
    picture, (x, shown) = described(what, PAIRS), CURVES[what]
    for panel, (path, solid, dashed) in zip(picture.panels, shown, strict=True):
        of_runs = [functools.reduce(operator.getitem, path, measured[what]) for measured in place[1]]
        for dash, key in ('-', solid), ('--', dashed):
            assert of(panel.curves, dash) == [(x, [row[key] for row in of_run]) for of_run in of_runs if key in of_run[0]]
        assert panel.log == ('' if what == 'parameters' else 'y')
    assert picture.sharey == ('none' if what in ('hidden', 'drift', 'attention_growth') else 'all')


def shares(histogram):
    counts = np.array(histogram['counts'])
    inside = np.arange(*np.flatnonzero(counts > 1e-4 * counts.sum())[[0, -1]] + [0, 1])
    return pytest.approx(histogram['start'] + (inside + 0.5) * 0.1), pytest.approx(counts[inside] / counts.sum())


def test_jacobian_attention_and_coordinates(place, described):
    """Spectra from the first layer on; heads as their mean with bars from the lowest to the highest; the last and first step"""
    for panel, key in zip(described('jacobian', PAIRS).panels,
                          ('largest', 'smallest', 'condition', 'effective_rank', 'cos', 'ratio'), strict=True):
        rows = [[{**row, **row['layer'], 'ratio': row['norm'] / row['orthogonal']}[key] for row in measured['jacobian']]
                for measured in place[1]]
        assert of(panel.curves) == [(HALVES[1:], row) for row in rows]
    for panel, key in zip(described('attention', PAIRS).panels, ('max_logit', 'entropy'), strict=True):
        for curve, measured in zip(panel.curves, place[1], strict=True):
            heads = np.array(measured['attention'][key])
            assert curve.y == pytest.approx(heads.mean(1)) and curve.x == pytest.approx([1, 2], abs=0.2)
            assert curve.low == heads.min(1).tolist() and curve.high == heads.max(1).tolist() and curve.bars
    for panel in described('coordinates', PAIRS).panels:
        assert of(panel.curves) == [([32, 64, 256], [(1 + shift) * i ** 2 for i in (5, 6, 8)]) for shift in (0.0, 0.5)]
        assert of(panel.curves, '--') == [([32, 64, 256], [0.1 + shift] * 3) for shift in (0.0, 0.5)] and panel.log == 'xy'


def test_gradients_sharpness_and_layers(place, described):
    """Histograms as shares, with the figures of their tails or their means; the mean over training where it was measured"""
    for panel, kind in zip(described('gradients', PAIRS).panels, KINDS, strict=True):
        for curve, measured in zip(panel.curves, place[1], strict=True):
            stats = measured['gradients'][kind]
            assert (curve.x, curve.y) == shares(stats['histogram']) and 0.99 < sum(curve.y) <= 1 + 1e-9
            assert short(stats['tail']) in panel.title
    assert [short(x) for x in (0.01234, 12.345, 1234.5, math.nan)] == ['0.0123', '12.3', '1,234', 'nan']
    panels = described('sharpness', PAIRS).panels
    for top, measured in zip(panels[::2], place[1]):
        found = measured['sharpness']
        assert of(top.curves) == [shares(found[kind]['histogram']) for kind in found]
        assert of(top.curves, '') == [([found[kind]['log10_mean']], [0]) for kind in found]
        assert [curve.color for curve in top.curves[::2]] == [TYPES[kind] for kind in found]
    rows = [json.loads(line) for line in (place[0] / 'out-b' / 'measure.jsonl').read_text().splitlines()]
    assert of(panels[3].curves) == [([0, 5, 10], [row['sharpness'][kind]['log10_mean'] for row in rows]) for kind in found]
    assert of(panels[1].curves) == [] and panels[1].title == 'not measured while training'
    for i, measured in enumerate(place[1]):
        of_layers, *theorems = described('layers', PAIRS).panels[3 * i:3 * i + 3]
        factors = measured['layers']['factors']
        assert of(of_layers.curves) == [([0, 1, 2], [layer['log10_mean'] for layer in measured['layers']['sharpness']])]
        for panel, names in zip(theorems, (('ffn_pre_norm', 'w1', 'w2'), ('attn_pre_norm', 'wq', 'wk', 'wv', 'wo'))):
            assert of(panel.curves) == [([1, 2], factors[name]) for name in names]
            assert [y for _, y in of(panel.curves, ':')] == [factors['emb'] * 2]


def test_preflight(place, described):
    """The exponents as colours and as numbers, rows and columns by name, blank where a run has none; growth below"""
    axes = [ax for ax in described('preflight', PAIRS).axes if ax.images]
    effects = {symbols(effect): effect for measured in place[1] for effect in measured['preflight']['invariance']['W_1']}
    rows = [effects[text.get_text()] for text in axes[0].get_yticklabels()]
    for ax, measured in zip(axes, place[1], strict=True):
        invariance, grown = measured['preflight']['invariance'], measured['preflight']['growth']['as is']
        values = [[invariance[cause].get(effect, math.nan) for cause in invariance] for effect in rows]
        shown = ax.images[0].get_array().filled(math.nan)
        assert invariance['W_1'].keys() <= set(rows) and np.allclose(shown, values, equal_nan=True)
        numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text()}
        assert numbers == {(x, y): f'{value:.1f}'.replace('-0.0', '0.0').replace('-', '−').removesuffix('.0')
                           for y, row in enumerate(values) for x, value in enumerate(row) if not math.isnan(value)}
        assert [text.get_text() for text in ax.get_xticklabels()] == list(map(symbols, invariance))
        assert grown['ma']['shape'] in ax.get_xlabel().replace('\n', ' ')


@pytest.mark.parametrize('what', ['sharpness', 'preflight', 'gradients', 'output_spectrum'])
def test_what_is_null_or_not_there_is_left_out(place, what, tmp_path):
    """A type without gradients, the growth over one layer, more than half zeros, the W_k of tied attention"""
    measured = json.loads(json.dumps(place[1][0][what]))
    if what == 'sharpness':
        measured['qk'].update(log10_mean=None, mean_log10=None)
    elif what == 'gradients':
        measured['wq'].update(tail=None, kurtosis=None)
    elif what == 'preflight':
        measured['growth']['as is']['ma']['power'] = None
    else:
        del measured['wk']
    write_run(tmp_path / 'out-null', 'peri', 'adamw', measured={what: measured})
    check_can_be_read(plot.picture(what, [tmp_path / 'out-null']))


def test_errors_of_measurements(place, tmp_path):
    write_run(tmp_path / 'run', 's1', 'adamw', measured=dict(attention_growth=[]))
    for what, folders, says in (('attention_growth', [tmp_path / 'run'], 'holds no attention_growth: make it with'),
                                ('logits', [write_log(tmp_path / 'a', [1.0])], 'a has no key max_logits: keys are'),
                                ('residual', [place[0] / 'out-a'] * 9, '^9 runs are too many for this picture: name at most 8')):
        with pytest.raises(ValueError, match=says):
            plot.picture(what, folders)


# ----------------------------------------------------------------------------- sweeps

def test_sweep(described):
    """A curve of means with their standard errors for each row; a cross where every run diverged, none over another and above all
    losses; a gap where none has ended"""
    panel, = described('sweep', ['sweep']).panels
    s1, s5 = (curve for curve in panel.curves if curve.marker != 'x')
    assert s1.y == pytest.approx([2.0, 1.5, math.nan], nan_ok=True) and (s1.low[0], s1.high[0]) == (1.75, 2.25)
    assert s5.y == pytest.approx([math.nan, 1.25, math.nan], nan_ok=True) and panel.log == 'x'
    crosses = [curve for curve in panel.curves if curve.marker == 'x']
    assert [curve.x for curve in crosses] == [[1.0], [1.0]] and 2.0 < crosses[0].y[0] < crosses[1].y[0]
    assert panel.ticks == {0.1: '0.1', 0.3: '0.3', 1.0: '1'}
    assert [panel.title for panel in described('sweep', ['sweep-12']).panels] == ['']
    one, = described('sweep', ['sweep-one']).panels
    assert one.curves[0].y == pytest.approx([2.0, 1.5, math.nan, math.nan, 1.25, math.nan], nan_ok=True)
    assert one.curves[1].x == [2, 5] and list(one.ticks.values()) == [f'a long name {i}' for i in range(6)]


def test_many_rows_are_split_by_an_axis(described, tmp_path):
    """By that which leaves a panel the fewest learning rates, each over its own, with the same colours"""
    picture = described('sweep', ['sweep-2'])
    assert [panel.title for panel in picture.panels] == ['optim: adamw', 'optim: lion', 'optim: sgdw']
    assert [[curve.name for curve in panel.curves] for panel in picture.panels] == [['pre', 'peri', 's5']] * 3
    assert [list(panel.ticks) for panel in picture.panels] == [[1e-3, 2e-3], [1e-4, 2e-4], [0.1, 0.3, 1.0]]
    assert len({curve.color for panel in picture.panels for curve in panel.curves}) == 3
    points = pandas.DataFrame([dict(a='x', b='', rate=1), dict(a='', b='x', rate=1)])
    assert list(rows_of(points, ['a', 'b'])) == ['x, –', '–, x']


def test_the_seed_that_chose_the_rate_is_the_line(tmp_path):
    """And the mean of the others a star, so that the line's minimum is the rate that was chosen"""
    nothing = math.nan, math.nan, 0, 0
    points = [('s1', '0.1', *nothing), ('s1', '0.3', 1.9, 0.1, 2, 0), ('s1', '1.0', *nothing)]
    panel, = plot.describe('sweep', [write_table(tmp_path, ['arch', 'learning_rate'], points, (2.0, 1.5, 3.0))]).panels
    line, star = panel.curves
    assert line.y == [2.0, 1.5, 3.0] and (star.marker, star.dash) == ('*', '') and star.y[1] == 1.9


# ----------------------------------------------------------------------------- any key

ROWS = [dict(iter=it, loss=1.0, lr=0.1, mine=it ** 2, gap=None, note='text', flag=True, of=dict(qk=it, vo=[it, 2 * it]))
        for it in range(3)]


def test_keys(place, described, tmp_path):
    """A number, a list with a curve for each layer, a key before several in the colours of the block types, what a user added; of
    more than eight layers the first, the last and some between; a log axis where most values span more than two decades"""
    assert of(described('updates.qk', ['out-b']).panels[0].curves) == [([0, 5, 10], pytest.approx([0, 0.5, 1]))]
    rows = [json.loads(line) for line in (place[0] / 'out-b' / 'measure.jsonl').read_text().splitlines()]
    heads = np.array([row['attention']['max_logit'] for row in rows]).mean(-1)
    found = described('attention.max_logit', ['out-b']).panels[0]
    assert of(found.curves) == [([0, 5, 10], pytest.approx(layer)) for layer in heads.T] and found.y == 'largest attention logit'
    residual = described('residual', PAIRS)
    assert [of(panel.curves) for panel in residual.panels] == [[([2, 3], [2.0, 3.0]), ([2, 3], [2.0, 2.0])]] * 2
    assert residual.legend == 'layer' and [curve.name for curve in residual.panels[0].curves] == ['1', '2']
    types = described('grad_norms', ['out-a']).panels[0]
    assert [curve.name for curve in types.curves] == ['qk', 'ffn', 'gate'] and types.y == 'norm of the gradient'
    assert [curve.color for curve in types.curves[:2]] == [TYPES['qk'], TYPES['ffn']] and of(types.curves)[0][1] == [1, 2, 3, 4]
    deep = [dict(row, deep=[10.0 ** (layer + row['iter']) for layer in range(12)]) for row in ROWS]
    write_rows(tmp_path / 'log.jsonl', [*deep, dict(iter=3, diverged='the loss', lr=0.5, norms={})])
    drawn = {key: plot.describe(key, [tmp_path]) for key in ('mine', 'of.vo', 'deep', 'gap', 'lr')}
    assert of(drawn['mine'].panels[0].curves) == [([0, 1, 2], [0, 1, 4])] and drawn['mine'].panels[0].y == 'mine'
    assert of(drawn['of.vo'].panels[0].curves)[1] == ([0, 1, 2], [0, 2, 4])
    assert of(drawn['lr'].panels[0].curves)[0][0] == [0, 1, 2], 'without the row of the divergence'
    assert drawn['gap'].panels[0].curves[0].is_empty()
    assert [curve.name for curve in drawn['deep'].panels[0].curves] == ['1', '3', '4', '6', '7', '9', '10', '12']
    assert drawn['deep'].legend == 'layer, 8 of 12' and drawn['deep'].panels[0].log == 'y' and drawn['mine'].panels[0].log == ''


def test_an_unknown_key_is_answered_with_those_there_are(tmp_path):
    """In one line, in short, with the nearest"""
    write_rows(tmp_path / 'log.jsonl', ROWS)
    err = call('lab.plot', tmp_path, '--what=mines', code=1)
    assert err.startswith("error: what='mines' is none of the pictures loss, ")
    assert f"{tmp_path} has no key mines: did you mean 'mine'? keys are " in err
    assert err.endswith('keys are loss, lr, mine, gap, of.…\n') and err.startswith('error: ') and err.count('\n') == 1
    assert 'keys are of.qk, of.vo\n' in call('lab.plot', tmp_path, '--what=of.ffn', code=1)


# ----------------------------------------------------------------------------- names

@pytest.mark.parametrize('arch', ARCHS)
def test_a_run_is_named_by_its_fragment(arch, tmp_path):
    """And by its optimizer; by up to two fields that differ, by no fragment where more do, and by its folder alone where there is
    no config.json"""
    folder = tmp_path / 'out-x'
    folder.mkdir()
    assert labels([str(folder)]) == titles([str(folder)]) == ['out-x']
    config = {**asdict(build(arch).config), 'optimizer': 'lion'}
    odd = dict(residual_scale=0.1, init_gain=7.0, attn_tau=3.5)
    for differs, named in ((0, f'{arch}, lion'), (1, f'{arch}, residual_scale=0.1, lion'),
                           (2, f'{arch}, residual_scale=0.1, init_gain=7.0, lion'), (3, 'lion')):
        (folder / 'config.json').write_text(json.dumps({**config, **dict(list(odd.items())[:differs])}))
        found = labels([f'{folder}/'])[0].removeprefix('out-x (').removesuffix(')')
        assert sorted(found.split(', ')) == sorted(named.split(', '))
    assert titles([str(folder)]) == ['out-x']


def test_runs_are_named_by_the_keys_in_which_they_differ(tmp_path):
    """A rate, a schedule, a field of one's own; neither what all have in common, nor what the folder's name says; a key that an
    older run lacks is its default or left out"""
    config = {**asdict(build('s5').config), 'optimizer': 'lion', 'learning_rate': 0.1, 'schedule': 'cosine', 'out_dir': 'x'}
    for name, more in (('out-a', {}), ('out-b', dict(learning_rate=0.2, mine=True)), ('out-c', dict(schedule='linear')),
                       ('out-s1', asdict(build('s1').config))):
        write_log(tmp_path / name, [1.0], config=config | more)
    folders = [str(tmp_path / name) for name in ('out-a', 'out-b', 'out-c', 'out-s1')]
    assert labels(folders[:2]) == ['out-a (learning_rate=0.1)', 'out-b (learning_rate=0.2, mine=True)']
    assert labels([folders[0], folders[2]]) == ['out-a (schedule=cosine)', 'out-c (schedule=linear)']
    assert labels([folders[0], folders[3]]) == ['out-a (s5)', 'out-s1'] and titles(folders[2:]) == ['S5 = DNT', 'S1']
    for key in 'emb_std', 'fused_qkv_init':
        del config[key]
    old = write_log(tmp_path / 'old', [1.0], config=config)
    assert labels([old]) == ['old (s5, emb_std=0.02, fused_qkv_init=False, lion)']
    assert labels([folders[2], old, write_log(tmp_path / 'none', [1.0])]) == [
        'out-c (s5, lion, schedule=linear)', 'old (s5, emb_std=0.02, fused_qkv_init=False, lion, schedule=cosine)', 'none']


# ----------------------------------------------------------------------------- the command

def test_the_picture_goes_into_the_first_folder_or_where_it_is_told(place, tmp_path):
    """At 200 dots an inch, with an SVG that is the same each time, so that it changes in git only with what it shows"""
    first = place[0] / 'out-a'
    assert call('lab.plot', first, place[0] / 'out-b') == f'wrote {first / "loss.png"} and {first / "loss.svg"}\n'
    before = (first / 'loss.svg').read_text()
    call('lab.plot', first, place[0] / 'out-b', f'--out={tmp_path / "x.pdf"}')
    assert (tmp_path / 'x.svg').read_text() == before and sorted(path.name for path in tmp_path.iterdir()) == ['x.pdf', 'x.svg']
    assert (first / 'loss.png').read_bytes().startswith(b'\x89PNG')


def test_help_has_a_line_for_every_picture():
    out = call('lab.plot', '--help')
    for name, draw in plot.pictures().items():
        assert f'\n  {name:16} {draw.__doc__.partition(chr(10))[0]}\n' in out
    assert 'KEY' in out


def data_of(page):
    """The traces and the layout in a page of plotly, which loads nothing but the file beside it"""
    text = page.read_text(encoding='utf-8')
    assert re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]*)"', text) == ['plotly.min.js'] and len(text) < 200_000
    assert (page.parent / 'plotly.min.js').stat().st_size > 10 ** 6
    decoder, at = json.JSONDecoder(), text.index('Plotly.newPlot(') + len('Plotly.newPlot(')
    parts = []
    while len(parts) < 3:                               # its id, the traces, the layout
        at = re.compile(r'[\s,]*').match(text, at).end()
        part, at = decoder.raw_decode(text, at)
        parts.append(part)
    return parts[1:]


def values(of_trace):
    """The numbers of a trace, which may be packed"""
    packed = isinstance(of_trace, dict)
    found = np.frombuffer(base64.b64decode(of_trace['bdata']), of_trace['dtype']).tolist() if packed else of_trace
    return [math.nan if value is None else value for value in found]


@pytest.mark.parametrize('what, names', [case for case in CASES if case[0] != 'preflight' and len(case[1]) != 1],
                         ids=lambda value: value if isinstance(value, str) else str(len(value)))
def test_a_page_has_the_curves_of_the_picture(place, described, tmp_path, what, names):
    """All of their points; each name once in the legend, not pale; buttons that show the scale of now"""
    picture, page = described(what, names), tmp_path / 'x.html'
    plot.draw(what, [place[0] / name for name in names], str(page))
    traces, layout = data_of(page)
    curves = [curve for panel in picture.panels if panel for curve in panel.curves if not curve.is_empty()]
    drawn = [trace for trace in traces if trace.get('fill') is None]
    assert len(drawn) == len(curves)
    for trace, curve in zip(drawn, curves):
        assert values(trace['x']) == pytest.approx(list(curve.x))
        assert values(trace['y']) == pytest.approx(list(curve.y), nan_ok=True)
    shown = [trace for trace in traces if trace['showlegend']]
    assert len(shown) == len({trace['name'] for trace in shown}) == len({curve.name for curve in curves if curve.name})
    assert all(trace['opacity'] == 1 for trace in shown)
    for menu, axis in zip(layout['updatemenus'], 'yx'):
        assert menu['buttons'][menu['active']]['label'] == f'{axis} {layout[f"{axis}axis"]["type"]}'


def test_pages_that_there_are_not(place, tmp_path, monkeypatch):
    page = tmp_path / 'x.html'
    err = call('lab.plot', place[0] / 'out-a', '--what=preflight', f'--out={page}', code=1)
    assert err == f'error: {page}: preflight has no page, because it is not made of curves; name a .png\n'
    monkeypatch.setitem(sys.modules, 'plotly', None)
    err = call('lab.plot', place[0] / 'out-a', f'--out={page}', code=1)
    assert err == 'error: plotly is not installed: pip install -r requirements-lab.txt\n'


def test_watch_draws_until_the_runs_end(place, monkeypatch):
    """Again when a log has grown, and once more for its last rows; not before the first row"""
    folder, drawn, looks = str(place[0] / 'out-a'), [], []
    monkeypatch.setattr(command.time, 'sleep', lambda seconds: looks.append(seconds))
    monkeypatch.setattr(command, 'is_locked', lambda folder: len(looks) < 4)
    sizes = iter([0, 1, 1, 2, 2])
    monkeypatch.setattr(command.os, 'stat', lambda file: SimpleNamespace(st_size=next(sizes)))
    monkeypatch.setattr(command.os.path, 'exists', lambda file: file.endswith('out-a/log.jsonl'))
    command.watch([folder], lambda: drawn.append(len(looks)))
    assert drawn == [1, 3] and len(looks) == 4
