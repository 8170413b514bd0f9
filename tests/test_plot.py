"""
lab/plot: each picture and page is drawn and shows the numbers of the files made here; and how they name runs.
"""
from configurator import read_config

import json
import math
import re
import sys
from dataclasses import asdict, fields

import matplotlib.pyplot
import numpy as np
import pytest
import torch
from helpers import ROOT, call
from matplotlib.text import Text

from engine.log import write_row
from lab import plot
from lab.measure import MEASUREMENTS, measure
from lab.plot.lines import TYPES
from lab.plot.names import grouped_by_seed, labels, titles
from lab.plot.runs import smoothed
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


def write_table(folder, axes, points, tuning=()):
    """table.csv of [(labels …, mean loss, standard error, done, diverged)]"""
    folder.mkdir(exist_ok=True)
    head = [*axes, 'val_loss', 'standard_error', 'done', 'diverged', *['tuning_loss'] * bool(tuning)]
    lines = [head, *([*point, *rest] for point, *rest in zip(points, *[tuning] * bool(tuning)))]
    (folder / 'table.csv').write_text('\n'.join(','.join(map(str, line)) for line in lines) + '\n')
    return str(folder)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """Two runs, the second of which measured while it trained, what their measure.json hold, nine runs, and two sweeps"""
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
    for i in range(9):
        config = {**asdict(build('s5').config), 'optimizer': 'lion', 'learning_rate': 0.1 * i}
        write_log(place / f'run-{i}', [5.6, *[2.0 + i / 20] * 4], {2: 3.0, 4: 2.0 - i / 10}, config, grad_norm=1.0 + i)
    nothing = math.nan, math.nan, 0, 2
    write_table(place / 'sweep', ['arch', 'learning_rate'],
                [('s1', '0.1', 2.0, 0.25, 3, 0), ('s1', '0.3', 1.5, 0.5, 2, 1), ('s1', '1.0', *nothing),
                 ('s5', '0.1', math.nan, math.nan, 0, 0), ('s5', '0.3', 1.25, math.nan, 1, 0), ('s5', '1.0', *nothing)])
    rates = dict(adamw=['1e-3', '2e-3'], lion=['1e-4', '2e-4'], sgdw=['0.1', '0.3', '1.0'])
    write_table(place / 'sweep-2', ['arch', 'optim', 'learning_rate'],
                [(arch, optim, rate, 2.0, 0.1, 1, 0) for arch in ('pre', 'peri', 's5') for optim in rates
                 for rate in rates[optim]])
    return place, measured


PAIRS, LABELS = ['out-a', 'out-b'], ['out-a (peri, adamw, n_kv_head=0)', 'out-b (llama, sgdw, n_kv_head=1)']
NINE = [f'run-{i}' for i in range(9)]
CASES = [(what, PAIRS) for what in plot.pictures() if what != 'sweep']
CASES += [('loss', ['out-a']), ('loss', NINE), ('grad_norm', NINE), ('grad_norms', PAIRS), ('sweep', ['sweep', 'sweep-2'])]


@pytest.fixture(scope='module')
def described(place):
    """(what, names) → the picture as Lines or a figure"""
    return lambda what, names, **more: plot.describe(what, [place[0] / name for name in names], **more)


def of(curves, dash='-'):
    """[(x, y)] of the curves with this dash that are not empty"""
    return [(list(curve.x), list(curve.y)) for curve in curves if curve.dash == dash and not curve.is_empty()]


@pytest.mark.parametrize('what, names', CASES, ids=lambda value: value if isinstance(value, str) else str(len(value)))
def test_each_picture_and_page_is_drawn(described, place, tmp_path, what, names):
    """The picture names each run, its axes say what they are, and each entry of the legend has a curve"""
    folders, picture = [place[0] / name for name in names], described(what, names)
    figure = plot.picture(what, folders)
    figure.draw_without_rendering()
    written = ' '.join(text.get_text().replace('\n', ' ') for text in figure.findobj(Text))
    if names == PAIRS:
        assert all(name in written for name in (['Peri-LN', 'LLaMA'] if what == 'preflight' else LABELS))
    if what in ('preflight', 'heat'):
        return
    panels = [panel for panel in picture.panels if panel]
    curves = [curve for panel in panels for curve in panel.curves if not curve.is_empty()]
    entries = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert sorted({curve.name for curve in curves if curve.name}) == sorted(entry.replace('\n', ' ') for entry in entries)
    assert all(panel.x and (panel.y or panel.title) for panel in panels)
    plot.draw(what, folders, str(tmp_path / 'x.html'))
    page = (tmp_path / 'x.html').read_text(encoding='utf-8')
    assert (tmp_path / 'plotly.min.js').exists() and page.count('"type":"scatter"') >= len(curves)
    assert re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]*)"', page) == ['plotly.min.js'], 'it loads nothing else'


def test_a_notebook_keeps_its_backend(place):
    """pyplot gets no figure, and matplotlib's settings are as they were"""
    before, figures = {'backend': matplotlib.get_backend(), **matplotlib.rcParams}, matplotlib.pyplot.get_fignums()
    plot.picture('loss', [place[0] / 'out-a'])
    assert dict(matplotlib.rcParams) == before and matplotlib.pyplot.get_fignums() == figures


def test_heat_maps(tmp_path):
    """Each layer's numbers at their iterations; where columns are many, the largest of each stays, and null is no number"""
    rows = [dict(iter=it, loss=1.0, layers=dict(update_norms=dict(qk=[1.0, 1e-5 * (it + 1)])),
                 **(dict(val_loss=1.0, max_logits=[0.5 * it, math.nan]) if it % 5 == 0 else {})) for it in range(1000)]
    rows[677]['layers']['update_norms']['qk'][0] = 50.0
    write_rows(tmp_path / 'log.jsonl', rows)
    figure = plot.picture('heat', [tmp_path])
    updates, logits = (ax.collections[0] for ax in figure.axes if ax.get_title())
    first, second = updates.get_array()
    assert 300 < len(first) <= 400 and first.max() == 50 and (first == 1).sum() == len(first) - 1
    assert second.max() == pytest.approx(0.01) and isinstance(updates.norm, matplotlib.colors.LogNorm)
    assert logits.get_array()[1].mask.all() and [*logits.get_array()[0]] == [2.5 * i for i in range(200)]
    assert updates.get_coordinates()[0, :3, 0].tolist() == [0, 3, 6]
    with pytest.raises(ValueError, match='has logged no number per layer'):
        plot.picture('heat', [write_log(tmp_path / 'none', [3.0, 2.0])])


# ----------------------------------------------------------------------------- the loss

def test_loss(described):
    """A half-written last line is left out; many losses have panels of their own, the best first"""
    loss, lr = described('loss', PAIRS).panels
    for i in 0, 1:
        assert of(loss.curves)[2 * i:2 * i + 2] == [([0, 1, 2, 3], [5 + i / 2, 4 + i / 2, 3 + i / 2, 2 + i / 2]),
                                                    ([2, 3], [2.25 + i / 2, 2.5 + i / 2])]
        assert of(lr.curves)[i] == ([0, 1, 2, 3], pytest.approx([0, 0.1, 0.2, 0.3]))
    assert [curve.name for curve in loss.curves[1::2]] == [f'{LABELS[0]}: 2.250', f'{LABELS[1]}: 2.750']
    train, val, _ = described('loss', NINE).panels
    assert 'training' in train.y and 'validation' in val.y
    assert [curve.y[-1] for curve in val.curves] == pytest.approx([2 - i / 10 for i in reversed(range(9))])


def test_the_start_is_left_out_of_long_runs_alone(tmp_path):
    """So that 2.20 and 2.28 differ by a twentieth of the axis or more, also beside a run that diverged"""
    falls = [5.5 * 0.5 ** it for it in range(3)]
    runs = [write_log(tmp_path / name, falls + [end + (2.8 - end) * (200 - it) / 197 for it in range(3, 200)],
                      {0: 5.5, 100: 2.5, 200: end}) for name, end in (('a', 2.2), ('b', 2.28))]
    with open(write_log(tmp_path / 'high', [3.0] * 150 + [1e6] * 49) + '/log.jsonl', 'a') as f:
        f.write('{"iter": 199, "diverged": "the loss"}\n')
    low, top = plot.describe('loss', [*runs, tmp_path / 'high']).panels[0].ylim
    assert low < 2.2 < 2.8 < top < 3.5 and 0.08 > 0.05 * (top - low)
    for losses in [5.0, 3.0, 2.0, 1.9], [5.0], []:
        run = write_log(tmp_path / str(len(losses)), losses, {0: 5.0})
        assert plot.describe('loss', [run]).panels[0].ylim == (None, None)
        plot.picture('loss', [run]).draw_without_rendering()


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path):
    """Their mean at the iterations that all have, in a band from the lowest to the highest"""
    runs = [write_log(tmp_path / f'out-x-seed{seed}', [seed + 1.0] * (5 - seed), {2: 2.0 * seed, 3: 1.0 * seed},
                      config=dict(n_layer=2, seed=seed, out_dir=str(seed))) for seed in (0, 1)]
    other = write_log(tmp_path / 'out-y', [9.0] * 5, {2: 8.0, 3: 7.0}, config=dict(n_layer=3, seed=0))
    train, val, *_ = plot.describe('loss', [*runs, other]).panels[0].curves
    assert val.name == 'out-x (n_layer=2), 2 seeds: 0.500'
    assert of([train, val]) == [([0, 1, 2, 3], [1.5] * 4), ([2, 3], [1.0, 0.5])]
    assert (list(val.low), list(val.high)) == ([0, 0], [2, 1])
    with open(f'{runs[1]}/log.jsonl', 'a') as f:
        f.write('{"iter": 3, "diverged": "the loss"}\n')
    found = plot.describe('loss', [*runs, other]).panels[0].curves[1].name
    assert found == 'out-x (n_layer=2), 2 seeds: 0.000, 1 diverged'
    assert all(len(group) == 1 for _, group in grouped_by_seed([*runs, runs[0]])), 'the same run twice'


def test_smooth(described):
    """Means of the training loss over the last iterations, not of the learning rate"""
    loss, lr = described('loss', ['out-a'], smooth=2).panels
    assert of(loss.curves)[0] == ([0, 1, 2, 3], [5, 4.5, 3.5, 2.5]) and of(loss.curves)[1][1] == [2.25, 2.5]
    assert of(lr.curves) == of(described('loss', ['out-a']).panels[1].curves)
    assert smoothed([(0, 1.0), (1, math.nan), (2, 3.0), (3, 5.0)], 2) == [(0, 1.0), (2, 3.0), (3, 4.0)]


# ----------------------------------------------------------------------------- measurements

HALVES = [0, 0.5, 1, 1.5, 2]                                # behind each attention and each FFN
# picture: where its points stand, and the keys of each panel's curves and of its dashed ones
CURVES = {
    'hidden': (HALVES, [(key, f'{key}_bound') for key in ('ma', 'var', 'entry_var')]),
    'drift': (HALVES, [(key, '') for key in ('distance', 'relative')]),
    'transport': (HALVES, [(key, f'{key}_bound') for key in ('w2', 'w1')]),
    'sensitivity': ([1, 2], [(key, '') for key in ('block', 'attn', 'ffn', 'to_end')]),
    'attention_growth': ([1, 2], [('ma', 'ma_bound')]),
    'parameters': ([1, 2], [('spectral', '')] * 6),
    'output_spectrum': ([1, 2], [('measured', 'predicted')] * 6)}


@pytest.mark.parametrize('what', CURVES)
def test_curves(place, described, what):
    """A curve for each run in each panel; bounds and predictions dashed, where there are any"""
    x, shown = CURVES[what]
    for i, (panel, (solid, dashed)) in enumerate(zip(described(what, PAIRS).panels, shown, strict=True)):
        of_runs = [measured[what] for measured in place[1]]
        if what in ('parameters', 'output_spectrum'):
            of_runs = [of_run[KINDS[i]] for of_run in of_runs]
        for dash, key in ('-', solid), ('--', dashed):
            assert of(panel.curves, dash) == [(x, [row[key] for row in of_run]) for of_run in of_runs if key in of_run[0]]


def test_attention_and_coordinates(place, described):
    """Heads as their mean with bars from the lowest to the highest; the last and first step"""
    for panel, key in zip(described('attention', PAIRS).panels, ('max_logit', 'entropy'), strict=True):
        for curve, measured in zip(panel.curves, place[1], strict=True):
            heads = np.array(measured['attention'][key])
            assert curve.y == pytest.approx(heads.mean(1)) and curve.x == pytest.approx([1, 2], abs=0.2)
            assert curve.low == heads.min(1).tolist() and curve.high == heads.max(1).tolist() and curve.bars
    for panel in described('coordinates', PAIRS).panels:
        assert of(panel.curves) == [([32, 64, 256], [(1 + shift) * i ** 2 for i in (5, 6, 8)]) for shift in (0.0, 0.5)]
        assert of(panel.curves, '--') == [([32, 64, 256], [0.1 + shift] * 3) for shift in (0.0, 0.5)] and panel.log == 'xy'


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


def test_the_seed_that_chose_the_rate_is_the_line(tmp_path):
    """And the mean of the others a star, so that the line's minimum is the rate that was chosen"""
    nothing = math.nan, math.nan, 0, 0
    points = [('s1', '0.1', *nothing), ('s1', '0.3', 1.9, 0.1, 2, 0), ('s1', '1.0', *nothing)]
    panel, = plot.describe('sweep', [write_table(tmp_path, ['arch', 'learning_rate'], points, (2.0, 1.5, 3.0))]).panels
    line, star = panel.curves
    assert line.y == [2.0, 1.5, 3.0] and (star.marker, star.dash) == ('*', '') and star.y[1] == 1.9


# ----------------------------------------------------------------------------- any key

ROWS = [dict(iter=it, loss=1.0, lr=0.1, mine=it ** 2, gap=None, note='text', flag=True, of=dict(qk=it, vo=[it, 2 * it]),
             deep=[10.0 ** (layer + it) for layer in range(12)]) for it in range(3)]


def test_keys(place, described, tmp_path):
    """A number, a list with a curve for each layer, a key before several in the colours of the block types, what a user added; of
    more than eight layers the first, the last and some between; a log axis where most values span more than two decades"""
    assert of(described('updates.qk', ['out-b']).panels[0].curves) == [([0, 5, 10], pytest.approx([0, 0.5, 1]))]
    rows = [json.loads(line) for line in (place[0] / 'out-b' / 'measure.jsonl').read_text().splitlines()]
    heads = np.array([row['attention']['max_logit'] for row in rows]).mean(-1)
    assert of(described('attention.max_logit', ['out-b']).panels[0].curves) == [([0, 5, 10], pytest.approx(y)) for y in heads.T]
    residual = described('residual', PAIRS)
    assert [of(panel.curves) for panel in residual.panels] == [[([2, 3], [2.0, 3.0]), ([2, 3], [2.0, 2.0])]] * 2
    types = described('grad_norms', ['out-a']).panels[0]
    assert [curve.name for curve in types.curves] == ['qk', 'ffn', 'gate'] and of(types.curves)[0][1] == [1, 2, 3, 4]
    assert [curve.color for curve in types.curves[:2]] == [TYPES['qk'], TYPES['ffn']]
    write_rows(tmp_path / 'log.jsonl', [*ROWS, dict(iter=3, diverged='the loss', lr=0.5, norms={})])
    mine, lr, deep = (plot.describe(key, [tmp_path]).panels[0] for key in ('mine', 'lr', 'deep'))
    assert of(mine.curves) == [([0, 1, 2], [0, 1, 4])] and (mine.log, deep.log) == ('', 'y')
    assert of(lr.curves)[0][0] == [0, 1, 2], 'without the row of the divergence'
    assert [curve.name for curve in deep.curves] == ['1', '3', '4', '6', '7', '9', '10', '12']
    err = call('lab.plot', tmp_path, '--what=mines', code=1)
    assert err.startswith("error: what='mines'") and "did you mean 'mine'?" in err and err.count('\n') == 1


# ----------------------------------------------------------------------------- names

def test_runs_are_named_by_fragment_and_by_the_keys_in_which_they_differ(tmp_path):
    """Neither by what all have in common, nor by what the folder's name says; without a config.json by their folder alone"""
    assert labels([str(tmp_path / 'none')]) == titles([str(tmp_path / 'none')]) == ['none']
    for arch in ARCHS:
        config = {**asdict(build(arch).config), 'optimizer': 'lion'}
        assert labels([write_log(tmp_path / f'out-of-{arch}' / 'out-x', [1.0], config=config)]) == [f'out-x ({arch}, lion)']
    config = {**asdict(build('s5').config), 'optimizer': 'lion', 'learning_rate': 0.1, 'schedule': 'cosine', 'out_dir': 'x'}
    for name, more in (('out-a', {}), ('out-b', dict(learning_rate=0.2, mine=True)), ('out-c', dict(schedule='linear')),
                       ('out-d', dict(residual_scale=0.1)), ('out-s1', asdict(build('s1').config))):
        write_log(tmp_path / name, [1.0], config=config | more)
    a, b, c, d, s1 = (str(tmp_path / name) for name in ('out-a', 'out-b', 'out-c', 'out-d', 'out-s1'))
    assert labels([a, b]) == ['out-a (learning_rate=0.1)', 'out-b (learning_rate=0.2, mine=True)']
    assert labels([a, c]) == ['out-a (schedule=cosine)', 'out-c (schedule=linear)']
    assert labels([a, s1]) == ['out-a (s5)', 'out-s1'] and titles([c, s1]) == ['S5 = DNT', 'S1']
    assert labels([d]) == ['out-d (s5, residual_scale=0.1, lion)']


# ----------------------------------------------------------------------------- the command

def test_the_picture_goes_into_the_first_folder_or_where_it_is_told(place, tmp_path):
    """With an SVG that is the same each time, so that it changes in git only with what it shows"""
    first = place[0] / 'out-a'
    assert call('lab.plot', first, place[0] / 'out-b') == f'wrote {first / "loss.png"} and {first / "loss.svg"}\n'
    assert (first / 'loss.png').read_bytes().startswith(b'\x89PNG')
    call('lab.plot', first, place[0] / 'out-b', f'--out={tmp_path / "x.pdf"}')
    assert (tmp_path / 'x.svg').read_text() == (first / 'loss.svg').read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ['x.pdf', 'x.svg']
    err = call('lab.plot', first, '--what=preflight', f'--out={tmp_path / "x.html"}', code=1)
    assert 'preflight has no page' in err and err.count('\n') == 1
