"""
lab/plot.py: what its pictures show of a measure.json, a measure.jsonl and a log.jsonl made here, that they can be read on a
page, and how they name runs.
"""
from configurator import read_config

import itertools
import json
import math
import re
import sys
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, call
from matplotlib.text import Text

from engine.runlog import write_row
from lab import figures, plot
from lab.figures import TYPES, draw_histogram, draw_over_time, label, log_scale, panels, plt, short
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
    (folder / 'config.json').write_text(json.dumps({**asdict(model.config), 'optimizer': optimizer}))
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
        rows[2:2] = [dict(iter=2, train_loss=3.0, val_loss=2.25 + shift), dict(iter=3, train_loss=3.0, val_loss=2.5 + shift)]
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


def picture_of(what, *folders):
    figure = plot.picture(what, list(map(str, folders)))
    plt.close(figure)              # pyplot forgets it
    return figure


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
WITHOUT = ['out-a (peri)', 'out-b (llama)']                # their optimizers, which do not matter before training


def shares(histogram):
    counts = np.array(histogram['counts'])
    inside = np.arange(*np.flatnonzero(counts > 1e-4 * counts.sum())[[0, -1]] + [0, 1])
    return pytest.approx(histogram['start'] + (inside + 0.5) * 0.1), pytest.approx(counts[inside] / counts.sum())


# ----------------------------------------------------------------------------- each picture

def test_there_is_a_picture_of_every_measurement():
    assert set(plot.PICTURES) == {'loss', 'sweep', 'coordinates', *MEASUREMENTS}


def curves(ax):
    return [line for line in ax.lines if line.get_linestyle() != 'None']


def overlap(a, b):
    """Do two boxes share more than a point of their edges?"""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def check_can_be_read(figure):
    """At most eight curves in one axes; legends with a title, off the data and off one another; at least two labelled ticks on
    a log axis; no text below 8 points; nothing beyond the figure's edges."""
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
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_visible() and text.get_text())
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
    names = WITHOUT if what == 'preflight' else LABELS
    assert all(name in written for name in names[:runs]) and ('out-b' in written) == (runs == 2)
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


@pytest.mark.parametrize('what', ['loss', 'sharpness', 'drift', 'grad_norm'])
def test_nine_runs_are_too_many(place, what):
    with pytest.raises(ValueError, match='^9 runs are too many for one picture: name at most 8'):
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
    plt.close(figure)
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
    top, middle, bottom = pictures('loss', 8).axes
    assert lines(top)[3] == ([0, 1, 2, 3], [5.5, 4.5, 3.5, 2.5]) and lines(middle)[3] == ([2, 3], [2.75, 3.0])
    assert 'training' in top.get_ylabel() and 'validation' in middle.get_ylabel() and len(lines(bottom)) == 8


def test_a_curve_of_many_points_is_drawn_through_means():
    figure, (ax,) = panels(1)
    draw_over_time(ax, [(it, it % 2) for it in range(4 * figures.POINTS)])
    (places, values), = lines(ax)
    assert places == [4 * i + 1.5 for i in range(figures.POINTS)] and set(values) == {0.5}


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
        kinds = [kind for kind in BLOCK_TYPES if kind in found]
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


@of('hidden')
def test_hidden(place, figure):
    """MA, Var and an entry's variance behind each branch, on log scales, and dashed the bounds, where there are any"""
    for ax, key in zip(figure.axes, ('ma', 'var', 'entry_var'), strict=True):
        drawn = [([0, 0.5, 1, 1.5, 2], [row[key] for row in measured['hidden']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and entries(figure.legends[0]) == LABELS[:len(lines(ax))]
        assert lines(ax, '--') == [([0, 0.5, 1, 1.5, 2], [row[f'{key}_bound'] for row in place[1][0]['hidden']])]
        assert ax.get_yscale() == 'log' and ax.lines[0].get_color() == ax.lines[1].get_color()


@of('drift')
def test_drift(place, figure):
    for ax, key in zip(figure.axes, ('distance', 'relative'), strict=True):
        drawn = [([0, 0.5, 1, 1.5, 2], [row[key] for row in measured['drift']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and ax.get_yscale() == 'log'
    assert entries(figure.legends[0]) == LABELS[:len(lines(ax))] and title(figure.legends[0]) == 'run'


@of('sensitivity')
def test_sensitivity(place, figure):
    for ax, key in zip(figure.axes, ('block', 'attn', 'ffn', 'to_end'), strict=True):
        drawn = [([0, 1], [row[key] for row in measured['sensitivity']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and ax.get_yscale() == 'log'
    assert entries(figure.legends[0]) == LABELS[:len(lines(ax))] and title(figure.legends[0]) == 'run'


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
    assert label(str(tmp_path)) == f'{tmp_path.name} (s5, emb_std=0.02, fused_qkv_init=False, adamw)'


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


@of('transport')
def test_transport(place, figure):
    """Both distances, and dashed their bounds under MidNorm, which the first run has"""
    for ax, key in zip(figure.axes, ('w2', 'w1'), strict=True):
        drawn = [([0, 0.5, 1, 1.5, 2], [row[key] for row in measured['transport']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(entries(figure.legends[0]))]
        assert lines(ax, '--') == [([0, 0.5, 1, 1.5, 2], [row[f'{key}_bound'] for row in place[1][0]['transport']])]


@of('output_spectrum')
def test_output_spectrum(place, figure):
    for ax, kind in zip(figure.axes, KINDS, strict=True):
        for style, key in ('-', 'measured'), ('--', 'predicted'):
            drawn = [([0, 1], [row[key] for row in measured['output_spectrum'][kind]]) for measured in place[1]]
            assert lines(ax, style) == drawn[:len(entries(figure.legends[0]))]


@of('attention_growth')
def test_attention_growth(place, figure):
    for style, key in ('-', 'ma'), ('--', 'ma_bound'):
        drawn = [([1, 2], [row[key] for row in measured['attention_growth']]) for measured in place[1]]
        assert lines(figure.axes[0], style) == drawn[:len(entries(figure.legends[0]))]


def test_attention_growth_of_another_model(place, tmp_path):
    write_run(tmp_path / 'run', 's1', 'adamw', measured=dict(attention_growth=[]))
    with pytest.raises(ValueError, match='has no bound to draw: it holds for one head, RMSNorm'):
        picture_of('attention_growth', tmp_path / 'run')


@of('parameters')
def test_parameters(place, figure):
    for ax, kind in zip(figure.axes, KINDS, strict=True):
        drawn = [([0, 1], [found['spectral'] for found in measured['parameters'][kind]]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and ax.get_title() == f'$W_{kind[1]}$'
    assert entries(figure.legends[0]) == LABELS[:len(lines(figure.axes[0]))]


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


def test_coordinates_that_are_not_there(place):
    with pytest.raises(ValueError, match='there is no .*coordinates.json: make it with  python -m lab.coordinates'):
        picture_of('coordinates', place[0])


@of('preflight')
def test_preflight(place, figure):
    """The exponents as colours and as numbers, rows and columns by name, blank where a run has none; growth below"""
    axes = [ax for ax in figure.axes if ax.images]
    effects = {symbols(effect): effect for measured in place[1] for effect in measured['preflight']['invariance']['W_1']}
    rows = [effects[text.get_text()] for text in axes[0].get_yticklabels()]
    for ax, name, measured in zip(axes, WITHOUT, place[1]):
        invariance, grown = measured['preflight']['invariance'], measured['preflight']['growth']['as is']
        assert invariance['W_1'].keys() <= set(rows)
        values = [[invariance[cause].get(effect, math.nan) for cause in invariance] for effect in rows]
        shown = ax.images[0].get_array().filled(math.nan)
        assert ax.get_title().replace('\n', ' ') == name
        assert np.allclose(shown, values, equal_nan=True) and ax.images[0].get_clim() == (-2, 2)
        numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text()}
        assert numbers == {(x, y): f'{value:.1f}'.replace('-0.0', '0.0').removesuffix('.0')
                           for y, row in enumerate(values) for x, value in enumerate(row) if not math.isnan(value)}
        assert [text.get_text() for text in ax.get_xticklabels()] == list(map(symbols, invariance))
        said = ' '.join(f'{name}: {grown[key]["shape"]}, {grown[key]["power"]:.2f}'
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


@pytest.mark.parametrize('what', ['sharpness', 'preflight'])
def test_what_is_null_is_left_out(place, what, tmp_path):
    """As measure.py writes of a type without gradients, and of the growth over one layer"""
    measured = json.loads(json.dumps(place[1][0][what]))
    if what == 'sharpness':
        measured['qk'].update(log10_mean=None, mean_log10=None)
    else:
        measured['growth']['as is']['ma']['power'] = None
    write_run(tmp_path / 'out-null', 'peri', 'adamw', measured={what: measured})
    figure = picture_of(what, tmp_path / 'out-null')
    check_can_be_read(figure)


@pytest.mark.parametrize('key', ['tail', 'kurtosis'])
def test_gradients_without_a_tail(place, key, tmp_path):
    """null where more than half of the gradients are zeros"""
    measured = json.loads(json.dumps(place[1][0]['gradients']))
    measured['wq'][key] = None
    write_run(tmp_path / 'out-null', 'peri', 'adamw', measured=dict(gradients=measured))
    figure = picture_of('gradients', tmp_path / 'out-null')
    assert 'nan' in entries(figure.axes[0].get_legend())[0]


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
        assert entries(legend) == ['s1', 's5'] and title(legend) == 'arch\n(×: every run diverged)'
        assert ax.get_xscale() == 'log' and ax.get_xlabel() == 'learning rate'
        assert [text.get_text() for text in ax.get_xticklabels()] == ['0.1', '0.3', '1']
        assert ax.get_title() == ('out' if folders == 2 else '')
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
    assert ax.get_ylabel() == 'arch' and ax.get_xlabel() == f'validation loss (nats){at}\n(×: every run diverged)'
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
    assert entries(legend) == ['pre', 'peri', 's5', 'stable'] and title(legend) == 'arch'
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
    assert [ax.get_title() for ax in figure.axes] == [LABELS[1], LABELS[1].replace('out-b', 'run-1')]
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
    plt.close('all')


def test_an_unknown_key_is_answered_with_those_there_are(place, tmp_path):
    """In one line, in short, with the nearest"""
    write_rows(tmp_path / 'log.jsonl', ROWS)
    err = call('lab.plot', tmp_path, '--what=mines', code=1)
    assert f"what='mines' is no picture, and {tmp_path} does not have this key: did you mean 'mine'? pictures are loss, " in err
    assert err.endswith('keys are loss, lr, mine, gap, of.{qk,vo}\n') and err.startswith('error: ') and err.count('\n') == 1
    assert "did you mean 'hidden'?" in call('lab.plot', tmp_path, '--what=hiden', code=1)
    assert 'keys are none: there is no nowhere/log.jsonl' in call('lab.plot', 'nowhere', '--what=lr', code=1)
    assert 'out-a does not have' in call('lab.plot', place[0] / 'out-b', place[0] / 'out-a', '--what=updates.qk', code=1)


def test_keys_in_short():
    keys = ['loss', 'u.a', 'u.b', 'g.wq.p50', 'g.wk.p50', 'g.wq.l.p50', 'g.wk.l.p50', 'h.0.n.mean', 'h.1.n.mean', 'h.0.m']
    assert plot.brief(keys) == ['loss', 'u.{a,b}', 'g.{wq,wk}.{p50,l.p50}', 'h.{0.{n.mean,m},1.n.mean}']


# ----------------------------------------------------------------------------- names

@pytest.mark.parametrize('arch', ARCHS)
def test_a_run_is_named_by_its_fragment(arch, tmp_path):
    """And by its optimizer; by up to two fields that differ, by no fragment where more do, and by its folder alone where there is
    no config.json"""
    folder = tmp_path / 'out-x'
    folder.mkdir()
    assert label(str(folder)) == 'out-x'
    config = {**asdict(build(arch).config), 'optimizer': 'lion'}
    (folder / 'config.json').write_text(json.dumps(config))
    assert label(str(folder)) == label(f'{folder}/') == f'out-x ({arch}, lion)'
    odd = dict(residual_scale=0.1, init_gain=7.0, attn_tau=3.5)
    for differs, named in ((1, f'{arch}, residual_scale=0.1, lion'), (2, f'{arch}, residual_scale=0.1, init_gain=7.0, lion'),
                           (3, 'lion')):
        (folder / 'config.json').write_text(json.dumps({**config, **dict(list(odd.items())[:differs])}))
        found = label(str(folder)).removeprefix('out-x (').removesuffix(')')
        assert sorted(found.split(', ')) == sorted(named.split(', '))


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
        assert f'\n  {name:14}{plot.first_line(draw)}\n' in out and plot.first_line(draw).endswith('.')
    assert 'KEY' in out


@pytest.mark.parametrize('folder, what, says', [
    ('nowhere', 'loss', 'there is no nowhere/log.jsonl: .* is not the folder of a run'),
    ('nowhere', 'sweep', 'there is no nowhere/table.csv: .* python -m lab.sweep --report=nowhere'),
    ('nowhere', 'hidden', 'there is no nowhere/measure.json: .* python -m lab.measure --out_dir=nowhere'),
    ('bare', 'loss', 'there is no bare/log.jsonl'),
    ('bare', 'sharpness', 'bare/measure.json holds no sharpness: .* python -m lab.measure --out_dir=bare --what=sharpness')])
def test_an_error_is_one_line_with_the_remedy(folder, what, says, tmp_path, monkeypatch):
    """Also where another folder is fine"""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / 'bare', 'pre', 'adamw', measured=dict(drift=[]))
    err = call('lab.plot', folder, f'--what={what}', code=1)
    assert re.match(f'error: {says}', err) and err.count('\n') == 1 and not list(tmp_path.rglob('*.png'))
