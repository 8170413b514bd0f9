"""
lab/plot.py: what its pictures show of a measure.json, a measure.jsonl and a log.jsonl made here, that they can be read on a
page, and how they name runs.
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
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ROOT, call
from matplotlib.text import Text

from engine.log import write_row
from lab import plot
from lab.figures import (
    TYPES,
    VIEW,
    draw_histogram,
    draw_over_time,
    grouped_by_seed,
    labels,
    log_scale,
    panels,
    plt,
    short,
    titles,
)
from lab.measure import MEASUREMENTS, measure
from lab.measure.preflight import symbols
from model import BLOCK_TYPES, GPT, GPTConfig

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
    config = {key: value for key, value in asdict(model.config).items() if key not in more}     # so that labels are short
    (folder / 'config.json').write_text(json.dumps({**config, 'n_kv_head': 0, 'optimizer': optimizer}))
    with open(folder / 'measure.json', 'w', encoding='utf-8') as f:
        write_row(f, dict(iter=7, tokens=30, **results))
    return json.loads((folder / 'measure.json').read_text())


def write_rows(path, rows):
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """Two runs, the second of which measured while it trained, and what their measure.json hold."""
    place, patch = tmp_path_factory.mktemp('plot'), pytest.MonkeyPatch()
    patch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))
    for name in ('preflight', 'sensitivity'):           # any number, and at once
        patch.setattr(sys.modules[f'lab.measure.{name}'], 'jacobian_norm', lambda f, x, start, steps=1: f(x).norm().item())
    measured = [write_run(place / 'out-a', 'peri', 'adamw'), write_run(place / 'out-b', 'llama', 'sgdw', dict(n_kv_head=1))]
    patch.undo()
    for name, shift in ('out-a', 0.0), ('out-b', 0.5):
        rows = [dict(iter=it, loss=5 - it + shift, lr=0.1 * it, grad_norm=1.0) for it in range(4)]
        rows[2:2] = [dict(iter=it, train_loss=3.0, val_loss=val + shift, residual_rms=[1.0 * it, 2.0], max_logits=[3.0, 1.0 * it])
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
        f.write('{"iter": 15, "sharpn')
    for i, name in enumerate(['out-a', 'out-b'] * 5):
        (place / f'run-{i}').symlink_to(place / name)
    return place, measured


@pytest.fixture(autouse=True)
def closed():
    """pyplot keeps figures until it is told to forget them"""
    yield
    plt.close('all')


def picture_of(what, *folders):
    return plot.picture(what, list(map(str, folders)))


@pytest.fixture(scope='module')
def pictures(place):
    """(what, number of runs) → their picture, drawn once."""
    drawn = {}

    def picture(what, runs):
        if (what, runs) not in drawn:
            names = ['out-a', 'out-b'][:runs] if runs < 3 else [f'run-{i}' for i in range(runs)]
            drawn[what, runs] = picture_of(what, *(place[0] / name for name in names))
        return drawn[what, runs]

    return picture


@pytest.fixture
def figure(pictures, request):
    return pictures(*request.param)


def of(what):
    """Parametrizes by a picture of one run and of both."""
    return pytest.mark.parametrize('figure', [(what, 1), (what, 2)], indirect=True, ids=['one', 'two'])


def lines(ax, style='-'):
    """[(x, y)] of its lines of this style, in the order they were drawn."""
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines if line.get_linestyle() == style]


def legends(figure):
    return [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]


def entries(legend):
    return [text.get_text() for text in legend.get_texts()]


def title(legend):
    return legend.get_title().get_text()


LABELS = ['out-a (peri, adamw)', 'out-b (llama, sgdw)']
TITLES = ['Peri-LN', 'LLaMA']               # of pictures of architectures


def shares(histogram):
    counts = np.array(histogram['counts'])
    inside = np.arange(*np.flatnonzero(counts > 1e-4 * counts.sum())[[0, -1]] + [0, 1])
    return pytest.approx(histogram['start'] + (inside + 0.5) * 0.1), pytest.approx(counts[inside] / counts.sum())


# ----------------------------------------------------------------------------- each picture

def test_there_is_a_picture_of_every_measurement():
    assert set(plot.PICTURES) == {'loss', 'residual', 'logits', 'sweep', 'coordinates', *MEASUREMENTS}


def curves(ax):
    return [line for line in ax.lines if line.get_linestyle() != 'None']


def overlap(a, b):
    """Do two boxes share more than a point of their edges?"""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def check_can_be_read(figure):
    """At most eight curves in one axes; legends with a title, off the data and off one another; at least two labelled ticks on
    a log axis; no text below 7 points; nothing beyond the figure's edges."""
    figure.draw_without_rendering()
    for ax in figure.axes:
        assert len(curves(ax)) <= 8
        for axis in ax.xaxis, ax.yaxis:
            assert axis.get_scale() != 'log' or len(labelled_ticks(axis)) >= 2
    for legend in legends(figure):
        box = legend.get_window_extent()
        assert title(legend) and figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0
        assert not any(overlap(box, ax.bbox) for ax in figure.axes)
    for a, b in itertools.combinations(legends(figure), 2):
        assert not overlap(a.get_window_extent(), b.get_window_extent())
    assert all(text.get_fontsize() >= 7 for text in figure.findobj(Text) if text.get_visible() and text.get_text())
    whole, inches = figure.get_tightbbox(), figure.get_size_inches()
    assert whole.x0 > -0.05 and whole.y0 > -0.05 and whole.x1 < inches[0] + 0.05 and whole.y1 < inches[1] + 0.05
    assert inches[0] < 8


def labelled_ticks(axis):
    """What stands at the ticks within the axis."""
    (low, high), places = sorted(axis.get_view_interval()), axis.get_majorticklocs()
    return [text for at, text in zip(places, axis.get_major_formatter().format_ticks(places)) if text and low <= at <= high]


@pytest.mark.parametrize('runs', [1, 2])
@pytest.mark.parametrize('what', [what for what in plot.PICTURES if what != 'sweep'])
def test_a_picture_can_be_read(pictures, what, runs):
    """It names each run, and its axes say what they are"""
    figure = pictures(what, runs)
    if runs == 2:
        check_can_be_read(figure)
    axes = [ax for ax in figure.axes if ax.get_visible() and ax.get_label() != '<colorbar>']
    written = ' '.join([*(text for ax in axes for text in (ax.get_title(), ax.get_ylabel())),
                        *(text for legend in legends(figure) for text in entries(legend))])
    written = written.replace('\n', ' ')
    names = TITLES if what == 'preflight' else LABELS
    assert all(name in written for name in names[:runs]) and (names[1] in written) == (runs == 2)
    for ax in axes:
        place_in_grid = ax.get_subplotspec()
        assert ax.get_xlabel() or not place_in_grid.is_last_row()
        assert ax.get_ylabel() or ax.get_yticklabels() or not place_in_grid.is_first_col()


@pytest.mark.parametrize('what', ['loss', 'hidden', 'gradients', 'attention'])
def test_a_picture_of_eight_runs_can_be_read(pictures, what):
    """Where two curves of each would be too many for one axes, the losses stand apart, and the bounds are left out"""
    figure = pictures(what, 8)
    check_can_be_read(figure)
    assert max(len(curves(ax)) for ax in figure.axes) == 8
    assert len(legends(figure)[0].get_texts()) == 8


@pytest.mark.parametrize('what', ['sharpness', 'drift', 'residual'])
def test_nine_runs_are_too_many(place, what):
    with pytest.raises(ValueError, match='^9 runs are too many for this picture: name at most 8'):
        picture_of(what, *(place[0] / f'run-{i}' for i in range(9)))


@pytest.mark.parametrize('kind', ['.png', '', '.svg', '.pdf'])
def test_a_picture_is_written_at_200_dots_an_inch_and_as_svg_beside(place, kind, tmp_path, capsys, monkeypatch):
    """The SVG is the same each time, so that it changes in git only with what it shows"""
    monkeypatch.setattr(plot, 'picture', lambda *args: plt.figure(figsize=(2, 1)))
    written = []
    for _ in range(2):
        plot.draw('loss', ['x'], tmp_path / f'a{kind}')
        written.append((tmp_path / 'a.svg').read_text())
    first = 'a.pdf' if kind == '.pdf' else 'a.png'
    assert sorted(path.name for path in tmp_path.iterdir()) == [first, 'a.svg'] and written[0] == written[1]
    assert capsys.readouterr().out == f'wrote {tmp_path / first} and {tmp_path / "a.svg"}\n' * 2
    assert plt.get_fignums() == [] and written[0].startswith('<?xml')
    if kind != '.pdf':
        image = (tmp_path / 'a.png').read_bytes()
        assert image.startswith(b'\x89PNG') and [int.from_bytes(image[i:i + 4], 'big') for i in (16, 20)] == [400, 200]


@pytest.mark.parametrize('low, high', [(1, 1e6), (1e-30, 1e30), (0.18, 12), (0.9, 11), (2, 7), (2.1, 2.6), (1.001, 1.003),
                                       (1e-5, 3e-5), (3e-7, 3.1e-7), (12345, 12350)])
def test_a_log_axis_has_labelled_ticks_whatever_it_spans(low, high):
    figure, (ax,) = panels(1)
    log_scale(ax)
    ax.set_ylim(low, high)
    texts = labelled_ticks(ax.yaxis)
    assert 2 <= len(texts) <= 10 and len(set(texts)) == len(texts)


@of('loss')
def test_loss(figure):
    """A half-written last line is left out"""
    top, bottom = figure.axes
    legend, = legends(figure)
    for i, (training, validation) in enumerate(zip(*[iter(lines(top))] * 2)):
        assert training == ([0, 1, 2, 3], [5 + i / 2, 4 + i / 2, 3 + i / 2, 2 + i / 2])
        assert validation == ([2, 3], [2.25 + i / 2, 2.5 + i / 2])
        assert lines(bottom)[i] == ([0, 1, 2, 3], pytest.approx([0, 0.1, 0.2, 0.3]))
        assert entries(legend)[i] == f'{LABELS[i]}: {2.25 + i / 2:.3f}' and 'lowest validation loss' in title(legend)
    assert len(lines(top)) == 2 * len(lines(bottom)) and 'nats per token' in top.get_ylabel()


def test_losses_of_more_than_four_runs_stand_apart(pictures):
    """On axes that they share"""
    top, middle, bottom = pictures('loss', 8).axes
    assert lines(top)[3] == ([0, 1, 2, 3], [5.5, 4.5, 3.5, 2.5]) and lines(middle)[3] == ([2, 3], [2.75, 3.0])
    assert 'training' in top.get_ylabel() and 'validation' in middle.get_ylabel() and len(lines(bottom)) == 8
    assert top.get_shared_y_axes().joined(top, middle)


def test_a_curve_of_many_points_is_drawn_through_means():
    figure, (ax,) = panels(1)
    draw_over_time(ax, [(it, it % 2) for it in range(4 * VIEW['points'])])
    (places, values), = lines(ax)
    assert places == [4 * i + 1.5 for i in range(VIEW['points'])] and set(values) == {0.5}


def write_log(folder, losses, evaluations=(), config={}, **more):
    """A run of these training losses and evaluations, {iteration: validation loss}"""
    folder.mkdir(parents=True)
    if config:
        (folder / 'config.json').write_text(json.dumps(config))
    rows = [dict(iter=it, loss=loss, lr=0.1, **more) for it, loss in enumerate(losses)]
    write_rows(folder / 'log.jsonl', sorted([*rows, *(dict(iter=it, val_loss=v) for it, v in dict(evaluations).items())],
                                            key=lambda row: row['iter']))
    return folder


def test_the_axis_of_the_loss_leaves_out_the_start(tmp_path):
    """So that 2.20 and 2.28 differ by a twentieth of it or more; a run that diverged does not stretch it; and no line comes from
    the untrained model"""
    falls = [5.5 * 0.5 ** it for it in range(3)]
    runs = [write_log(tmp_path / name, falls + [end + (2.8 - end) * (200 - it) / 197 for it in range(3, 200)],
                      {0: 5.5, 100: 2.5, 200: end}) for name, end in (('a', 2.2), ('b', 2.28))]
    high = write_log(tmp_path / 'high', [3.0] * 150 + [1e6] * 49)
    with open(high / 'log.jsonl', 'a') as f:
        f.write('{"iter": 199, "diverged": "the loss"}\n')
    figure = picture_of('loss', *runs, high)
    low, top = figure.axes[0].get_ylim()
    assert low < 2.2 < 2.8 < top < 3.5 and 0.08 > 0.05 * (top - low)
    assert figure.axes[0].get_title(loc='right') == 'above: the first 2% of the iterations'
    drawn = lines(figure.axes[0])
    assert ([100, 200], [2.5, 2.2]) in drawn and not any(5.5 in y for _, y in drawn if len(y) < 9)


@pytest.mark.parametrize('tokenizer, unit', [('bytes', 'byte'), ('char', 'character'), ('gpt2', 'token'), (None, 'token')])
def test_units(tokenizer, unit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / 'run', [2.0, 1.0], {1: 1.0}, config=dict(dataset='mine'))
    if tokenizer:
        (tmp_path / 'data' / 'mine').mkdir(parents=True)
        (tmp_path / 'data' / 'mine' / 'meta.json').write_text(json.dumps(dict(tokenizer=tokenizer)))
    assert picture_of('loss', 'run').axes[0].get_ylabel() == f'loss (nats per {unit})'
    assert picture_of('val_loss', 'run').axes[0].get_ylabel() == f'validation loss (nats per {unit})'


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path):
    """Their mean at the iterations that all have, in a band from the lowest to the highest"""
    runs = [write_log(tmp_path / f'out-x-seed{seed}', [seed + 1.0] * (5 - seed), {2: 2.0 * seed, 3: 1.0 * seed},
                      config=dict(n_layer=2, seed=seed, out_dir=str(seed))) for seed in (0, 1)]
    other = write_log(tmp_path / 'out-y', [9.0] * 5, {2: 8.0, 3: 7.0}, config=dict(n_layer=3, seed=0))
    figure = picture_of('loss', *runs, other)
    legend, = figure.legends
    assert entries(legend) == ['out-x, 2 seeds: 0.500', 'out-y: 7.000'] and 'mean and range' in title(legend)
    assert lines(figure.axes[0])[:2] == [([0, 1, 2, 3], [1.5] * 4), ([2, 3], [1.0, 0.5])]
    band = figure.axes[0].collections[1].get_paths()[0].vertices
    assert {tuple(corner) for corner in band} == {(2, 0), (2, 2), (3, 0), (3, 1)} and len(figure.axes[0].collections) == 2
    check_can_be_read(figure)
    with open(runs[1] / 'log.jsonl', 'a') as f:
        f.write('{"iter": 3, "diverged": "the loss"}\n')
    assert entries(picture_of('loss', *runs, other).legends[0])[0] == 'out-x, 2 seeds: 0.000, 1 diverged'
    assert all(len(group) == 1 for _, group in grouped_by_seed([*runs, runs[0]])), 'the same run twice'


def test_many_runs_are_thin_and_labelled_at_their_ends(tmp_path):
    """With their places, the best first; no two labels overlap, none lies on the data"""
    runs = [write_log(tmp_path / f'run-{i}', [2.0] * 5, {2: 3.0, 4: 1.0 + (7 * i % 12) / 10}, grad_norm=1.0 + i)
            for i in range(12)]
    for what, best in ('loss', 'run-0: 1.000'), ('grad_norm', 'run-0'):
        figure = picture_of(what, *runs)
        figure.draw_without_rendering()
        ax = figure.axes[what == 'loss']
        texts = [text for text in ax.texts if text.get_text()[0].isdigit()]
        ranks = {int(text.get_text().split()[0]): text for text in texts}
        assert sorted(ranks) == list(range(1, 13)) and ranks[1].get_text() == f'1  {best}' and not figure.legends
        boxes = [Text.get_window_extent(text) for text in texts]         # without its line
        assert not any(overlap(a, b) for a, b in itertools.combinations([*boxes, ax.bbox], 2))
        assert all(line.get_linewidth() < 1 for line in ax.lines) and len({line.get_color() for line in ax.lines}) == 12
        heights = [Text.get_window_extent(ranks[place]).y0 for place in range(1, 13)]
        assert heights == sorted(heights), 'as the curves end'


@of('residual')
def test_the_health_of_a_run(pictures, figure):
    """A panel a run on one axis, a curve a block, from dark to light"""
    for runs, ax in enumerate(figure.axes, 1):
        assert lines(ax) == [([2, 3], [2.0, 3.0]), ([2, 3], [2.0, 2.0])] and ax.get_ylim() == figure.axes[0].get_ylim()
    assert entries(figure.legends[0]) == ['0', '1'] and figure.axes[0].get_ylabel().startswith('RMS of the residual stream')
    assert lines(pictures('logits', runs).axes[0]) == [([2, 3], [3.0, 3.0]), ([2, 3], [2.0, 3.0])]


def test_a_run_without_health(tmp_path):
    with pytest.raises(ValueError, match='a has no max_logits in its log: it is of an older version, or trained with p'):
        picture_of('logits', write_log(tmp_path / 'a', [1.0]))


def test_learning_rates_far_apart_are_on_a_log_axis(tmp_path):
    for name, peak in ('a', 1.0), ('b', 0.01):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / 'log.jsonl', [dict(iter=it, loss=1.0, lr=peak * (2 - it)) for it in range(3)])
    figure = picture_of('loss', tmp_path / 'a', tmp_path / 'b')
    assert figure.axes[1].get_yscale() == 'log'
    check_can_be_read(figure)


@of('gradients')
def test_gradients(place, figure):
    """Shares of the entries by log10 |g|, a panel for each kind of matrix, and the figures of its tail"""
    runs = len(lines(figure.axes[0]))
    assert title(figure.legends[0]) == 'run' and entries(figure.legends[0]) == LABELS[:runs]
    for ax, kind in zip(figure.axes, KINDS, strict=True):
        assert ax.get_title() == f'$W_{kind[1]}$' and len(lines(ax)) == runs
        assert title(ax.get_legend()) == 'run: p99.9/p50, kurtosis'
        for line, said, measured in zip(lines(ax), entries(ax.get_legend()), place[1], strict=False):
            stats = measured['gradients'][kind]
            assert line == shares(stats['histogram']) and 0.99 < sum(line[1]) <= 1 + 1e-9
            assert said == f'{short(stats["tail"])}, {short(stats["kurtosis"])}'
    assert [short(x) for x in (0.01234, 12.345, 1234.5, math.nan)] == ['0.0123', '12.3', '1,234', 'nan']


@of('sharpness')
def test_sharpness(place, figure):
    """A panel a run: shares of the parameters of each type, with a dot at their mean; below, the mean over training, where it
    was measured"""
    runs = len(figure.axes) // 2 or 1
    assert len(figure.axes) == {1: 1, 2: 4}[runs]
    for ax, name, measured in zip(figure.axes, LABELS, place[1]):
        found = measured['sharpness']
        kinds = [kind for kind in dict.fromkeys(BLOCK_TYPES.values()) if kind in found]
        assert ax.get_title() == name
        assert lines(ax) == [shares(found[kind]['histogram']) for kind in kinds]
        assert lines(ax, 'None') == [([found[kind]['log10_mean']], [0]) for kind in kinds]
        colors_of = [line.get_color() for line in ax.lines if line.get_linestyle() == '-']
        assert colors_of == [TYPES[kind] for kind in kinds]
    all_kinds = dict.fromkeys(kind for measured in place[1][:runs] for kind in measured['sharpness'])
    assert set(entries(figure.legends[0])) == set(all_kinds) and title(figure.legends[0]).startswith('block type')
    if runs == 2:
        rows = [json.loads(line) for line in (place[0] / 'out-b' / 'measure.jsonl').read_text().splitlines()[:3]]
        over_time = [([0, 5, 10], [row['sharpness'][kind]['log10_mean'] for row in rows]) for kind in kinds]
        assert lines(figure.axes[2]) == [] and lines(figure.axes[3]) == over_time
        assert 'iteration' in figure.axes[3].get_xlabel()
        assert [text.get_text() for text in figure.axes[2].texts] == ['not measured\nwhile training']
        colors = [[line.get_color() for line in ax.lines] for ax in figure.axes]
        assert colors[1][::2] == colors[1][1::2] == colors[3], 'a type keeps its colour'
        assert len(set(colors[3])) == len(kinds)


HALVES = [0, 0.5, 1, 1.5, 2]                                # behind each attention and each FFN
# picture: where its points stand, and of each panel where its rows are, their key, and that of the dashed curves
CURVES = {
    'hidden': (HALVES, [((), key, f'{key}_bound') for key in ('ma', 'var', 'entry_var')]),
    'drift': (HALVES, [((), key, '') for key in ('distance', 'relative')]),
    'transport': (HALVES, [((), key, f'{key}_bound') for key in ('w2', 'w1')]),
    'sensitivity': ([0, 1], [((), key, '') for key in ('block', 'attn', 'ffn', 'to_end')]),
    'attention_growth': ([1, 2], [((), 'ma', 'ma_bound')]),
    'parameters': ([0, 1], [((kind,), 'spectral', '') for kind in KINDS]),
    'output_spectrum': ([0, 1], [((kind,), 'measured', 'predicted') for kind in KINDS])}


@pytest.mark.parametrize('runs', [1, 2])
@pytest.mark.parametrize('what', CURVES)
def test_curves(place, pictures, what, runs):
    """A curve for each run in each panel; bounds and predictions dashed, where there are any; what is compared shares an axis"""
    figure, (x, shown) = pictures(what, runs), CURVES[what]
    for ax, (path, solid, dashed) in zip(figure.axes, shown, strict=True):
        of_runs = [functools.reduce(operator.getitem, path, measured[what]) for measured in place[1][:runs]]
        for style, key in ('-', solid), ('--', dashed):
            assert lines(ax, style) == [(x, [row[key] for row in of_run]) for of_run in of_runs if key in of_run[0]]
        assert ax.get_yscale() == ('linear' if what == 'parameters' else 'log')
        assert what in ('hidden', 'drift') or ax is figure.axes[0] or ax.get_shared_y_axes().joined(ax, figure.axes[0])
    assert entries(figure.legends[0]) == LABELS[:runs] and title(figure.legends[0]).startswith('run')


@of('jacobian')
def test_jacobian(place, figure):
    for ax, key in zip(figure.axes, ('largest', 'smallest', 'condition', 'effective_rank', 'cos', 'ratio'), strict=True):
        for (x, y), measured in zip(lines(ax), place[1]):
            values = [{**row, **row['layer'], 'ratio': row['norm'] / row['orthogonal']}[key] for row in measured['jacobian']]
            assert x == [0, 0.5, 1, 1.5, 2] and math.isnan(y[0]) and y[1:] == values
    assert entries(figure.legends[0]) == LABELS[:len(lines(ax))]


def test_the_label_of_an_older_run(tmp_path):
    """Keys that it does not have are at their defaults"""
    config = {**asdict(build('s5').config), 'optimizer': 'adamw'}
    for key in 'emb_std', 'fused_qkv_init':
        del config[key]
    (tmp_path / 'config.json').write_text(json.dumps(config))
    assert labels([str(tmp_path)]) == [f'{tmp_path.name} (s5, emb_std=0.02, fused_qkv_init=False, adamw)']


@of('layers')
def test_layers(place, figure):
    """Three panels a run: sharpness per layer, and the weights of two theorems, one curve each"""
    for first, measured in zip(range(0, len(figure.axes), 3), place[1]):
        of_layers, of_ffn, of_attention = figure.axes[first:first + 3]
        found = measured['layers']
        assert lines(of_layers) == [([0, 1, 2], [layer['log10_mean'] for layer in found['sharpness']])]
        for ax, names in (of_ffn, ('ffn_pre_norm', 'w1', 'w2')), (of_attention, ('attn_pre_norm', 'wq', 'wk', 'wv', 'wo')):
            assert lines(ax) == [([0, 1], found['factors'][name]) for name in names] and ax.get_yscale() == 'log'
            assert [y for _, y in lines(ax, ':')] == [found['factors']['emb'] * 2]


def test_output_spectrum_of_tied_attention(place, tmp_path):
    """Its panel of W_k has no curve, beside a run that has one or alone"""
    write_run(tmp_path / 'out-tied', 'pre', 'lion', dict(attention='l2_tied'))
    for others in [], [place[0] / 'out-b']:
        figure = picture_of('output_spectrum', tmp_path / 'out-tied', *others)
        check_can_be_read(figure)
        curves = dict(zip(KINDS, (len(lines(ax)) for ax in figure.axes)))
        assert curves == {kind: len(others) + (kind != 'wk') for kind in KINDS}


def test_attention_growth_of_another_model(place, tmp_path):
    write_run(tmp_path / 'run', 's1', 'adamw', measured=dict(attention_growth=[]))
    with pytest.raises(ValueError, match='has no bound to draw: it holds for one head, RMSNorm'):
        picture_of('attention_growth', tmp_path / 'run')


@of('attention')
def test_attention(place, figure):
    """The mean over heads, with bars from the lowest to the highest"""
    for ax, key in zip(figure.axes, ('max_logit', 'entropy'), strict=True):
        assert entries(figure.legends[0]) == LABELS[:len(ax.containers)]
        for (line, _, (bars,)), measured in zip(ax.containers, place[1]):
            heads = np.array(measured['attention'][key])
            assert list(line.get_ydata()) == pytest.approx(heads.mean(1))
            ends = np.array([segment[:, 1] for segment in bars.get_segments()])
            assert np.allclose(ends, np.stack([heads.min(1), heads.max(1)], 1))
            assert list(line.get_xdata()) == pytest.approx([0, 1], abs=0.2)


@of('coordinates')
def test_coordinates(place, figure):
    assert [ax.get_title() for ax in figure.axes] == ['ffn', 'attention logits']
    for ax in figure.axes:
        shifts = (0.0, 0.5)[:len(lines(ax))]
        assert lines(ax) == [([32, 64, 256], [(1 + shift) * i ** 2 for i in (5, 6, 8)]) for shift in shifts]
        assert lines(ax, '--') == [([32, 64, 256], [0.1 + shift] * 3) for shift in shifts]
        assert ax.get_xscale() == ax.get_yscale() == 'log'


@of('preflight')
def test_preflight(place, figure):
    """The exponents as colours and as numbers, rows and columns by name, blank where a run has none; growth below"""
    axes = [ax for ax in figure.axes if ax.images]
    effects = {symbols(effect): effect for measured in place[1] for effect in measured['preflight']['invariance']['W_1']}
    rows = [effects[text.get_text()] for text in axes[0].get_yticklabels()]
    for ax, name, measured in zip(axes, TITLES, place[1]):
        invariance, grown = measured['preflight']['invariance'], measured['preflight']['growth']['as is']
        assert invariance['W_1'].keys() <= set(rows)
        values = [[invariance[cause].get(effect, math.nan) for cause in invariance] for effect in rows]
        shown = ax.images[0].get_array().filled(math.nan)
        assert ax.get_title().replace('\n', ' ') == name
        assert np.allclose(shown, values, equal_nan=True) and ax.images[0].get_clim()[1] >= np.nanmax(np.abs(shown))
        numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text()}
        assert numbers == {(x, y): f'{value:.1f}'.replace('-0.0', '0.0').replace('-', '−').removesuffix('.0')
                           for y, row in enumerate(values) for x, value in enumerate(row) if not math.isnan(value)}
        assert [text.get_text() for text in ax.get_xticklabels()] == list(map(symbols, invariance))
        said = ' '.join(f'{name}: {grown[key]["shape"]}, {grown[key]["power"]:.2f}'.replace('-', '−')
                        for name, key in (('mean |x|', 'ma'), ('variance', 'var')))
        assert ax.get_xlabel().split() == said.split()


@pytest.mark.parametrize('order', [['out-b', 'out-tied'], ['out-tied', 'out-b']])
def test_preflight_names_the_rows_of_each_run(place, order, tmp_path):
    """A tied head of attention has no W_k, and only SwiGLU has a W_3"""
    invariance = {cause: {effect: value for effect, value in effects.items() if effect[-2:] not in ('wk', 'w3')}
                  for cause, effects in place[1][1]['preflight']['invariance'].items()}
    folder = {'out-b': place[0] / 'out-b', 'out-tied': tmp_path / 'out-tied'}
    write_run(folder['out-tied'], 'pre', 'lion', dict(attention='l2_tied'),
              dict(preflight=place[1][1]['preflight'] | dict(invariance=invariance)))
    figure = plot.PICTURES['preflight']([str(folder[name]) for name in order])
    for name, ax in zip(order, figure.axes):
        effects = json.loads((folder[name] / 'measure.json').read_text())['preflight']['invariance']['W_q W_k']
        names = [text.get_text() for text in ax.get_yticklabels() or figure.axes[0].get_yticklabels()]
        rows = dict(zip(names, ax.images[0].get_array()[:, 2]))
        assert {effect: rows.get(symbols(effect)) for effect in effects} == pytest.approx(effects)


def test_symbols():
    assert symbols('gradient of wq, W_v W_o of w2, weight') == 'gradient of $W_q$, $W_v$ $W_o$ of $W_2$, weight'


def test_bins_that_are_next_to_empty_are_cut_off_at_the_ends_only(place):
    figure, (ax,) = panels(1)
    draw_histogram(ax, dict(start=-2.0, width=0.5, counts=[1, 0, 50_000, 0, 40_000, 10_000, 1]))
    draw_histogram(ax, dict(start=-30.0, width=0.5, counts=[0]))
    assert lines(ax) == [(pytest.approx([-0.75, -0.25, 0.25, 0.75]), pytest.approx([0.5, 0, 0.4, 0.1], rel=1e-4))]


@pytest.mark.parametrize('what', ['sharpness', 'preflight', 'gradients'])
def test_what_is_null_is_left_out(place, what, tmp_path):
    """As measure.py writes of a type without gradients, of the growth over one layer, and where more than half are zeros"""
    measured = json.loads(json.dumps(place[1][0][what]))
    if what == 'sharpness':
        measured['qk'].update(log10_mean=None, mean_log10=None)
    elif what == 'gradients':
        measured['wq'].update(tail=None, kurtosis=None)
    else:
        measured['growth']['as is']['ma']['power'] = None
    write_run(tmp_path / 'out-null', 'peri', 'adamw', measured={what: measured})
    figure = picture_of(what, tmp_path / 'out-null')
    check_can_be_read(figure)


# ----------------------------------------------------------------------------- sweeps

def write_table(folder, axes, points):
    """table.csv of [(labels …, mean loss, standard error, done, diverged)]"""
    folder.mkdir(exist_ok=True)
    head = [*axes, 'val_loss', 'standard_error', 'done', 'diverged', 'failed', 'missing', 'stopped', 'test_loss',
            'test_standard_error']
    lines = [head, *([*p, 0, 0, 1, 3.5, 0.25] for p in points)]
    (folder / 'table.csv').write_text('\n'.join(','.join(map(str, line)) for line in lines) + '\n')
    return str(folder)


POINTS = [('s1', '0.1', 2.0, 0.25, 3, 0), ('s1', '0.3', 1.5, 0.5, 2, 1), ('s1', '1.0', math.inf, math.nan, 0, 3),
          ('s5', '0.1', math.inf, math.nan, 0, 0), ('s5', '0.3', 1.25, math.nan, 1, 0), ('s5', '1.0', math.inf, math.nan, 0, 2)]


BARS = '\n(bars: standard errors over seeds)'


def bars(ax):
    """[[x, y], …] of the points of each curve of means."""
    return [[[x, y] for x, y in zip(bar[0].get_xdata(), bar[0].get_ydata()) if not math.isnan(x + y)] for bar in ax.containers]


def crosses(ax):
    return [[list(line.get_xdata()), list(line.get_ydata())] for line in ax.lines if line.get_marker() == 'x']


@pytest.mark.parametrize('folders', [1, 2])
def test_sweep(tmp_path, folders):
    """A curve of means with their standard errors for each row; a cross where every run diverged, none over another; nothing
    where none has ended"""
    folder = write_table(tmp_path / 'out', ['arch', 'learning_rate'], POINTS)
    figure = picture_of('sweep', *[folder] * folders)
    assert len(figure.axes) == len(legends(figure)) == folders
    for ax, legend in zip(figure.axes, legends(figure)):
        assert bars(ax) == [[[0.1, 2.0], [0.3, 1.5]], [[0.3, 1.25]]] and crosses(ax) == [[[1.0], [0.98]], [[1.0], [0.94]]]
        assert list(ax.containers[0][2][0].get_segments()[0][:, 1]) == [1.75, 2.25]
        assert entries(legend) == ['s1', 's5'] and title(legend) == f'arch{BARS}\n(×: every run diverged)'
        assert ax.get_xscale() == 'log' and ax.get_xlabel() == 'learning rate'
        assert [text.get_text() for text in ax.get_xticklabels()] == ['0.1', '0.3', '1']
        assert ax.get_title() == ('out; with its own axis' if folders == 2 else '')
    check_can_be_read(figure)


def test_the_seed_that_chooses_has_the_line_and_the_others_a_star(tmp_path):
    """So that the star stands at the minimum of the line"""
    points = [('s1', '0.1', 2.0, math.nan, math.nan, 1, 0), ('s1', '0.2', 1.5, 1.75, 0.1, 3, 0),
              ('s1', '0.4', 1.625, math.nan, math.nan, 1, 0)]
    folder = write_table(tmp_path, ['arch', 'learning_rate', 'tuning_loss'], points)
    figure = picture_of('sweep', folder)
    assert bars(figure.axes[0]) == [[[0.2, 1.75]], [[0.1, 2.0], [0.2, 1.5], [0.4, 1.625]]]
    legend, = legends(figure)
    assert entries(legend) == ['s1'] and 'line: seed 1' in title(legend)
    check_can_be_read(figure)


def test_a_curve_is_broken_where_every_run_diverged(tmp_path):
    points = [('s1', '0.1', 2.0, 0.1, 1, 0), ('s1', '0.3', math.inf, math.nan, 0, 1), ('s1', '1.0', 3.0, 0.1, 1, 0)]
    figure = picture_of('sweep', write_table(tmp_path, ['arch', 'learning_rate'], points))
    assert list(figure.axes[0].containers[0][0].get_ydata()) == pytest.approx([2.0, math.nan, 3.0], nan_ok=True)


@pytest.mark.parametrize('rate', [None, '0.1'])
def test_a_sweep_of_one_learning_rate(tmp_path, rate):
    """A line of text and a point for each row"""
    points = [(arch + old, *([rate] if rate else []), *rest) for arch, old, *rest in POINTS]
    figure = picture_of('sweep', write_table(tmp_path, ['arch', *(['learning_rate'] if rate else [])], points))
    ax, = figure.axes
    assert bars(ax) == [[[2.0, 0], [1.5, 1], [1.25, 4]]] and crosses(ax) == [[[0.98, 0.98], [2, 5]]]
    assert [text.get_text() for text in ax.get_yticklabels()] == ['s10.1', 's10.3', 's11.0', 's50.1', 's50.3', 's51.0']
    assert list(ax.containers[0][2][0].get_segments()[0][:, 0]) == [1.75, 2.25]
    at = ' at the learning rate 0.1' if rate else ''
    assert ax.get_ylabel() == 'arch' and ax.get_xlabel() == f'validation loss (nats){at}{BARS}\n(×: every run diverged)'
    check_can_be_read(figure)


def test_many_rows_are_split_by_an_axis(tmp_path):
    """Of two axes with four values each, by the one that keeps the learning rates of a panel together; with one legend"""
    rates = dict(adamw=['1e-3', '2e-3'], lion=['1e-4', '2e-4'], sgdw=['0.1', '0.3', '1.0'], adam_mini=['1e-3'])
    points = [(arch, optim, rate, 2.0, 0.1, 1, 0) for arch in ('pre', 'peri', 's5', 'stable') for optim in rates
              for rate in rates[optim]]
    figure = picture_of('sweep', write_table(tmp_path, ['arch', 'optim', 'learning_rate'], points))
    assert [ax.get_title() for ax in figure.axes] == [f'optim: {optim}' for optim in rates]
    for ax, tried in zip(figure.axes, rates.values()):
        assert [[x for x, _ in bar] for bar in bars(ax)] == [list(map(float, tried))] * 4
    legend, = legends(figure)
    assert entries(legend) == ['pre', 'peri', 's5', 'stable'] and title(legend) == f'arch{BARS}'
    check_can_be_read(figure)


def test_many_rows_that_no_axis_splits(tmp_path):
    """Panels of about one size, each with its legend"""
    points = [(f'model {i}', rate, 2.0, 0.1, 1, 0) for i in range(11) for rate in ('1e-3', '2e-3')]
    figure = picture_of('sweep', write_table(tmp_path, ['model', 'learning_rate'], points))
    assert [entries(ax.get_legend()) for ax in figure.axes] == [[f'model {i}' for i in part] for part in (range(6), range(6, 11))]
    check_can_be_read(figure)


def test_rows_with_the_same_labels_on_other_axes_stay_apart():
    points = [dict(a='x', b=''), dict(a='', b='x')]
    assert plot.rows_of(points, ['a', 'b']) == {'x, –': points[:1], '–, x': points[1:]}


# ----------------------------------------------------------------------------- any key

ROWS = [dict(iter=it, loss=1.0, lr=0.1, mine=it ** 2, gap=None, note='text', flag=True, of=dict(qk=it, vo=[it, 2 * it]))
        for it in range(3)]


def test_quantities():
    """Numbers, lists of layers, lists of heads, and rows of places; no text, truth or histogram"""
    heads, places = [[1.0, 3.0], [5.0, 5.0]], [dict(at='input', ma=1.0), dict(at='0.attn', ma=2.0)]
    row = dict(iter=1, a=1, b=math.nan, s='x', t=True, heads=heads, places=places, layers=[dict(p=1), dict(p=2)],
               histogram=dict(counts=[1, 2]))
    found = plot.quantities(row)
    assert math.isnan(found.pop('b')[''])
    assert found == {'a': {'': 1}, 'heads': {'0': 2.0, '1': 5.0}, 'places.ma': {'input': 1.0, '0.attn': 2.0},
                     'layers.p': {'0': 1, '1': 2}}


@pytest.mark.parametrize('key, runs', [('grad_norm', 2), ('train_loss', 1), ('lr', 8)])
def test_a_key_of_the_log(pictures, key, runs):
    figure = pictures(key, runs)
    drawn = dict(grad_norm=[([0, 1, 2, 3], [1.0] * 4)], lr=[([0, 1, 2, 3], pytest.approx([0, 0.1, 0.2, 0.3]))],
                 train_loss=[([2, 3], [3.0, 3.0])])
    assert lines(figure.axes[0]) == drawn[key] * runs and len(figure.axes) == 1
    assert title(figure.legends[0]) == 'run' and len(entries(figure.legends[0])) == runs
    name = dict(grad_norm='norm of the gradient', lr='learning rate', train_loss='training loss (nats per token)')[key]
    assert figure.axes[0].get_ylabel() == name and figure.axes[0].get_xlabel() == 'iteration'
    check_can_be_read(figure)


def test_a_key_of_the_measurements(place):
    """A number, and a list: one panel a run, one curve a layer, of which the heads have their mean"""
    folder = str(place[0] / 'out-b')
    rows = [json.loads(line) for line in Path(folder, 'measure.jsonl').read_text().splitlines()[:3]]
    figure = picture_of('updates.qk', folder)
    assert lines(figure.axes[0]) == [([0, 5, 10], pytest.approx([0, 0.5, 1]))]
    figure = picture_of('sharpness.vo.mean_log10', folder)
    assert lines(figure.axes[0]) == [([0, 5, 10], [row['sharpness']['vo']['mean_log10'] for row in rows])]
    figure = picture_of('attention.max_logit', folder, place[0] / 'run-1')
    heads = np.array([row['attention']['max_logit'] for row in rows]).mean(-1)
    assert [lines(ax) for ax in figure.axes] == [[([0, 5, 10], pytest.approx(layer)) for layer in heads.T]] * 2
    assert entries(figure.legends[0]) == ['0', '1'] and title(figure.legends[0]) == 'layer'
    assert [ax.get_title() for ax in figure.axes] == ['out-b', 'run-1'], 'what they have in common is left out'
    check_can_be_read(figure)


def test_keys_that_a_user_has_added(tmp_path):
    """Numbers, null as a gap, numbers within dicts and lists; of more than eight layers the first, the last, and some between;
    and a log axis where most values span more than two decades"""
    deep = [dict(row, deep=[10.0 ** (layer + row['iter']) for layer in range(12)]) for row in ROWS]
    write_rows(tmp_path / 'log.jsonl', [*deep, dict(iter=3, diverged='the loss', lr=0.5, norms={})])
    drawn = {key: picture_of(key, tmp_path) for key in ('mine', 'of.qk', 'of.vo', 'deep', 'gap', 'lr')}
    assert lines(drawn['mine'].axes[0]) == [([0, 1, 2], [0, 1, 4])] and drawn['mine'].axes[0].get_ylabel() == 'mine'
    assert lines(drawn['of.qk'].axes[0]) == [([0, 1, 2], [0, 1, 2])] == lines(drawn['of.vo'].axes[0])[:1]
    assert lines(drawn['of.vo'].axes[0])[1] == ([0, 1, 2], [0, 2, 4]) and lines(drawn['lr'].axes[0])[0][0] == [0, 1, 2]
    assert all(math.isnan(y) for y in lines(drawn['gap'].axes[0])[0][1])
    assert entries(drawn['deep'].legends[0]) == ['0', '2', '3', '5', '6', '8', '9', '11']
    assert title(drawn['deep'].legends[0]) == 'layer, 8 of 12'
    assert drawn['deep'].axes[0].get_yscale() == 'log' and drawn['mine'].axes[0].get_yscale() == 'linear'
    check_can_be_read(drawn['deep'])


def test_a_key_before_several_has_a_curve_for_each(place, tmp_path):
    """In the colours of the block types; a panel for each run"""
    norms = [dict(qk=1.0 + it, ffn=2.0, gate=3.0) for it in range(3)]
    write_rows(tmp_path / 'log.jsonl', [dict(iter=it, loss=1.0, grad_norms=norm) for it, norm in enumerate(norms)])
    figure = plot.picture('grad_norms', [str(tmp_path)])
    ax, = figure.axes
    assert [line.get_label() for line in ax.get_lines()] == ['qk', 'ffn', 'gate'] and title(figure.legends[0]) == 'block type'
    assert list(ax.get_lines()[0].get_ydata()) == [1, 2, 3] and ax.get_ylabel() == 'norm of the gradient'
    assert [line.get_color() for line in ax.get_lines()[:2]] == [TYPES['qk'], TYPES['ffn']]


def test_an_unknown_key_is_answered_with_those_there_are(place, tmp_path):
    """In one line, in short, with the nearest"""
    write_rows(tmp_path / 'log.jsonl', ROWS)
    err = call('lab.plot', tmp_path, '--what=mines', code=1)
    assert f"what='mines' is no picture, and {tmp_path} does not have this key: did you mean 'mine'? pictures are loss, " in err
    assert err.endswith('keys are loss, lr, mine, gap, of.…\n') and err.startswith('error: ') and err.count('\n') == 1
    assert 'keys are of.qk, of.vo\n' in call('lab.plot', tmp_path, '--what=of.ffn', code=1)
    assert 'keys are none: there is no nowhere/log.jsonl' in call('lab.plot', 'nowhere', '--what=lr', code=1)
    assert 'out-a does not have' in call('lab.plot', place[0] / 'out-b', place[0] / 'out-a', '--what=updates.qk', code=1)


# ----------------------------------------------------------------------------- names

@pytest.mark.parametrize('arch', ARCHS)
def test_a_run_is_named_by_its_fragment(arch, tmp_path):
    """And by its optimizer; by up to two fields that differ, by no fragment where more do, and by its folder alone where there is
    no config.json"""
    folder = tmp_path / 'out-x'
    folder.mkdir()
    assert labels([str(folder)]) == titles([str(folder)]) == ['out-x']
    config = {**asdict(build(arch).config), 'optimizer': 'lion'}
    (folder / 'config.json').write_text(json.dumps(config))
    assert labels([str(folder)]) == labels([f'{folder}/']) == [f'out-x ({arch}, lion)']
    assert titles([str(folder)])[0] not in ('out-x', arch), 'its file names it'
    odd = dict(residual_scale=0.1, init_gain=7.0, attn_tau=3.5)
    for differs, named in ((1, f'{arch}, residual_scale=0.1, lion'), (2, f'{arch}, residual_scale=0.1, init_gain=7.0, lion'),
                           (3, 'lion')):
        (folder / 'config.json').write_text(json.dumps({**config, **dict(list(odd.items())[:differs])}))
        found = labels([str(folder)])[0].removeprefix('out-x (').removesuffix(')')
        assert sorted(found.split(', ')) == sorted(named.split(', '))


def test_runs_that_differ_in_other_keys_are_told_apart(tmp_path):
    """By these, but not by their folders"""
    config = {**asdict(build('s1').config), 'optimizer': 'lion', 'grad_clip': 1.0}
    rates = {'a': 0.1, 'b': 0.2, 'c,learning_rate=0.2': 0.2}
    for name, rate in rates.items():
        write_log(tmp_path / name, [1.0], config={**config, 'learning_rate': rate, 'out_dir': name})
    folders = [str(tmp_path / name) for name in rates]
    assert labels(folders) == ['a (learning_rate=0.1)', 'b (learning_rate=0.2)', 'c,learning_rate=0.2']


def test_a_label_says_a_thing_once(tmp_path):
    """Neither what all runs have in common, nor what the folder's name says"""
    for name, arch in ('out-s1', 's1'), ('out-b', 'peri'), ('out-c', 's1'):
        write_log(tmp_path / name, [1.0], config={**asdict(build(arch).config), 'optimizer': 'lion'})
    folders = [str(tmp_path / name) for name in ('out-s1', 'out-b', 'out-c')]
    assert labels(folders) == ['out-s1', 'out-b (peri)', 'out-c (s1)']
    assert titles(folders) == ['S1 (out-s1)', 'Peri-LN', 'S1 (out-c)'] and labels(folders[:1]) == ['out-s1 (lion)']


# ----------------------------------------------------------------------------- the command and its errors

def test_the_picture_goes_into_the_first_folder_or_where_it_is_told(place, tmp_path):
    call('lab.plot', place[0] / 'out-a', place[0] / 'out-b')
    call('lab.plot', place[0] / 'out-a', '--what=updates.qk', '--what=drift', f'--out={tmp_path / "x.png"}')
    call('lab.plot', place[0] / 'out-b', '--what=updates.qk')
    made = sorted(str(path.relative_to(place[0])) for end in ('png', 'svg') for path in place[0].glob(f'out-*/*.{end}'))
    assert made == ['out-a/loss.png', 'out-a/loss.svg', 'out-b/updates.qk.png', 'out-b/updates.qk.svg']
    assert (tmp_path / 'x.png').exists() and (tmp_path / 'x.svg').exists()


def test_help_has_a_line_for_every_picture():
    out = call('lab.plot', '--help')
    for name, draw in plot.PICTURES.items():
        assert f'\n  {name:16} {plot.first_line(draw)}\n' in out and plot.first_line(draw).endswith('.')
    assert 'KEY' in out


def data_of(page):
    """The traces and the layout in a page of plotly, which loads nothing"""
    text = page.read_text(encoding='utf-8')
    assert not re.search(r'<(script|link)[^>]* (src|href)=', text)
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
    return np.frombuffer(base64.b64decode(of_trace['bdata']), of_trace['dtype']).tolist() if packed else of_trace


def test_a_page(place, tmp_path):
    """It has the curves of the picture, with all of their points, a name in the legend once for each run, and log axes"""
    page = tmp_path / 'loss.html'
    assert call('lab.plot', place[0] / 'out-a', place[0] / 'out-b', f'--out={page}') == f'wrote {page}\n'
    traces, layout = data_of(page)
    drawn = [(values(trace['x']), values(trace['y'])) for trace in traces if trace['yaxis'] == 'y']
    assert drawn[1] == ([2, 3], [2.25, 2.5]) and drawn[2] == ([0, 1, 2, 3], [5.5, 4.5, 3.5, 2.5]) and len(traces) == 6
    names = [f'{label}: {loss}' for label, loss in zip(LABELS, ('2.250', '2.750'))]
    assert {trace['legendgroup'] for trace in traces} == set(names), 'hidden together'
    assert sorted(trace['name'] for trace in traces if trace['showlegend']) == names
    assert layout['xaxis2']['title']['text'] == 'iteration' and layout['xaxis2']['matches'] == 'x'
    assert [button['label'] for button in layout['updatemenus'][0]['buttons']] == ['log y', 'linear y', 'log x', 'linear x']


def test_pages_of_other_pictures(place, tmp_path):
    """Log axes, cells, bars and names with an index"""
    for what, runs in ('preflight', 2), ('attention', 2), ('gradients', 1), ('hidden', 1):
        call('lab.plot', *[place[0] / 'out-a', place[0] / 'out-b'][:runs], f'--what={what}', f'--out={tmp_path / what}.html')
    traces, layout = data_of(tmp_path / 'preflight.html')
    assert [trace['type'] for trace in traces] == ['heatmap'] * 2 and 'W<sub>q</sub>' in ' '.join(layout['yaxis']['ticktext'])
    traces, layout = data_of(tmp_path / 'attention.html')
    bars = [trace for trace in traces if trace.get('hoverinfo') == 'skip']
    assert len(traces) == 8 and len(bars) == 4 and {trace['legendgroup'] for trace in bars} == set(LABELS)
    assert data_of(tmp_path / 'gradients.html')[1]['annotations'][0]['text'] == 'W<sub>q</sub>'
    assert data_of(tmp_path / 'hidden.html')[1]['yaxis']['type'] == 'log'


def test_a_page_without_plotly(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'plotly.graph_objects', None)
    err = call('lab.plot', place[0] / 'out-a', f'--out={tmp_path / "x.html"}', code=1)
    assert err == f'error: {tmp_path / "x.html"}: a page needs plotly: pip install -r requirements-plot.txt\n'


def test_zoom_and_smooth(place, monkeypatch):
    """Limits and scales of the first panel and of those that share its axes, and means over the last iterations"""
    monkeypatch.setattr(plot, 'write', lambda make_figure, out: drawn.append(make_figure()))
    monkeypatch.setattr(sys, 'excepthook', sys.excepthook)
    monkeypatch.setattr(sys, 'argv', ['plot', str(place[0] / 'out-a'), '--ylim=2,', '--xlim=1,3', '--log=y', '--smooth=2'])
    monkeypatch.setattr(plot, 'VIEW', VIEW)
    drawn = []
    plot.main()
    top, bottom = drawn[0].axes
    assert top.get_ylim()[0] == 2 and top.get_xlim() == bottom.get_xlim() == (1, 3)
    assert top.get_yscale() == 'log' and bottom.get_yscale() == 'linear'
    assert lines(top)[0] == ([0, 1, 2, 3], [5, 4.5, 3.5, 2.5])
    VIEW['smooth'] = 0


def test_watch_draws_until_the_runs_end(place, monkeypatch):
    """Again when a log has grown, and once more for its last rows"""
    folder, drawn, looks = str(place[0] / 'out-a'), [], []
    monkeypatch.setattr(plot.time, 'sleep', lambda seconds: looks.append(seconds))
    monkeypatch.setattr(plot, 'is_locked', lambda folder: len(looks) < 3)
    sizes = iter([1, 1, 2, 2])
    monkeypatch.setattr(plot.os, 'stat', lambda file: SimpleNamespace(st_size=next(sizes)))
    monkeypatch.setattr(plot.os.path, 'exists', lambda file: file.endswith('out-a/log.jsonl'))
    plot.watch([folder], lambda: drawn.append(len(looks)))
    assert drawn == [0, 2] and len(looks) == 3


def test_types_have_colours_that_differ():
    """By a quarter of the way from black to white or more, in some channel"""
    channels = [np.array([int(color[i:i + 2], 16) for i in (1, 3, 5)]) for color in TYPES.values()]
    assert all(np.abs(a - b).max() >= 60 for a, b in itertools.combinations(channels, 2))
