"""lab/plot.py: each picture is drawn, and its curves are the numbers of the files made here; how it names runs."""
from configurator import read_config

import json
import math
import sys
from dataclasses import asdict, fields

import matplotlib.pyplot
import numpy as np
import pytest
import torch
from helpers import ROOT, call
from matplotlib.text import Text
from pandas import DataFrame

from engine.run import write_row
from lab import plot
from lab.measure import MEASUREMENTS, measure
from lab.sweep.table import CELLS
from model import GPT, GPTConfig

PAIRS, LABELS = ['out-a', 'out-b'], ['out-a (peri, n_kv_head=0, optimizer=adamw)', 'out-b (llama, n_kv_head=1, optimizer=sgdw)']


@torch.no_grad()
def build(arch, more={}):
    """A small model of this file of config/arch, with random weights"""
    keys = read_config(str(ROOT / 'config' / 'arch' / f'{arch}.py'), {'model': 'gpt'})
    config = {f.name: keys[f.name] for f in fields(GPTConfig) if f.name in keys}
    torch.manual_seed(0)
    model = GPT(GPTConfig(**config | dict(block_size=6, vocab_size=11, n_layer=2, n_head=2, n_embd=8) | more))
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def write_log(folder, rows, **config):
    """Make the folder of a run with this config and log"""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return str(folder)


def losses(values, evaluations={}):
    """Rows of a log with these training losses, and with {iteration: validation loss}"""
    rows = [dict(iter=it, loss=loss, lr=0.1) for it, loss in enumerate(values)]
    return sorted(rows + [dict(iter=it, val_loss=loss) for it, loss in evaluations.items()], key=lambda row: row['iter'])


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder with two measured runs, the second of which measured while it trained, and a sweep"""
    place, patch = tmp_path_factory.mktemp('plot'), pytest.MonkeyPatch()
    patch.setattr(sys.modules['lab.measure.preflight'], 'FACTORS', (1.0, 30.0))
    for name in ('preflight', 'sensitivity'):           # any number, and at once
        patch.setattr(sys.modules[f'lab.measure.{name}'], 'jacobian_norm', lambda f, x, start, steps=1: f(x).norm().item())
    batches = [tuple(torch.randint(7, (3, 5)) for _ in 'xy') for _ in range(2)]
    for name, shift, arch, optimizer, more in (('out-a', 0.0, 'peri', 'adamw', {}),
                                               ('out-b', 0.5, 'llama', 'sgdw', dict(n_kv_head=1))):
        model, rows = build(arch, more), losses([5 + shift, 4 + shift], {0: 5.5, 1: 2.25 + shift})
        rows = [row | (dict(grad_norms=dict(qk=1.0 + row['iter'], ffn=2.0, gate=3.0)) if 'loss' in row else
                       dict(residual_rms=[1.0 * row['iter'], 2.0])) for row in rows]
        write_log(place / name, rows, **asdict(model.config), optimizer=optimizer, eval_interval=shift)
        results = measure(model, batches, MEASUREMENTS, 0)
        with open(place / name / 'measure.json', 'w', encoding='utf-8') as f:
            write_row(f, dict(iter=7, tokens=30, **results))
        of_one = {str(2 ** i): [0.1 + shift, (1 + shift) * i ** 2] for i in (5, 6, 8)}
        (place / name / 'coordinates.json').write_text(json.dumps(dict(steps=2, activations=dict(ffn=of_one, logits=of_one))))
    patch.undo()
    with open(place / 'out-b' / 'log.jsonl', 'a') as f:
        f.write('{"iter": 4, "loss"')                   # half a line, left by a kill
    with open(place / 'out-b' / 'measure.jsonl', 'w', encoding='utf-8') as f:
        for it in 0, 5, 10:
            kept = {what: results[what] for what in ('sharpness', 'attention')}
            write_row(f, dict(iter=it, **kept, updates=dict(qk=0.1 * it), heads=[[1.0 * it, 3.0], [4.0, 6.0]]))
    ends = {('s1', '0.1'): [2.0], ('s1', '0.3'): [1.5, 1.5, 2.0], ('s1', '1.0'): [''], ('s5', '0.1'): [1.9], ('s5', '1.0'): ['']}
    lines = [dict(arch=arch, learning_rate=rate, seed=seed, status='done' if loss else 'diverged', val_loss=loss, seconds=1)
             for (arch, rate), losses in ends.items() for seed, loss in enumerate(losses, 1)]
    (place / 'sweep').mkdir()
    DataFrame(lines, columns=['arch', 'learning_rate', 'seed', *CELLS]).to_csv(place / 'sweep' / 'runs.csv', index=False)
    return place


def pair(place):
    return [place / name for name in PAIRS]


def curves_in(figure, *dashes):
    """[(x, y)] of the curves of each panel, of all or of those in these line styles"""
    return [[(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines if line.get_ls() in (dashes or line.get_ls())]
            for ax in figure.axes]


@pytest.mark.parametrize('what', [*plot.pictures(), 'grad_norms', 'updates.qk'])
def test_each_picture_is_drawn(place, what):
    """It names each run, its axes say what they are, and pyplot and its settings stay as they were"""
    before = dict(matplotlib.rcParams)
    figure = plot.picture(what, {'sweep': [place / 'sweep'], 'updates.qk': [place / 'out-b']}.get(what, pair(place)))
    figure.canvas.draw()
    written = ' '.join(text.get_text().replace('\n', ' ') for text in figure.findobj(Text))
    assert what in ('sweep', 'updates.qk') or all(name in written for name in LABELS)
    assert any(ax.get_xlabel() for ax in figure.axes) and any(ax.get_ylabel() or ax.get_title() for ax in figure.axes)
    assert dict(matplotlib.rcParams) == before and not matplotlib.pyplot.get_fignums()


# ----------------------------------------------------------------------------- the loss

def test_loss(place):
    """Both losses, with the validation at iteration 0, and the rate; on request the validation loss alone, under other names"""
    figure = plot.picture('loss', pair(place))
    loss, rate = curves_in(figure)
    assert loss == [([0, 1], y) for y in ([5, 4], [5.5, 2.25], [5.5, 4.5], [5.5, 2.75])] and rate == [([0, 1], [0.1, 0.1])] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f'{LABELS[0]}: 2.250', f'{LABELS[1]}: 2.750']
    figure = plot.picture('loss', pair(place), hide=['rate', 'train'], labels=['A', 'B'])
    assert curves_in(figure) == [[([0, 1], [5.5, 2.25]), ([0, 1], [5.5, 2.75])]]
    assert [line.get_label() for line in figure.axes[0].lines] == ['A: 2.250', 'B: 2.750']
    x, y = np.arange(4.0), np.array([5.0, 4, 3, 2])
    assert plot.smoothed(x, y, 2).tolist() == [5, 4.5, 3.5, 2.5] and plot.smoothed(x, y, 0) is y


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path):
    """Their mean, in a band of its 95% interval, whose half width is 4.303 s/√3; without a seed that diverged"""
    runs = [write_log(tmp_path / f'out-x-seed{seed}', losses([1.0 + seed] * 3, {2: 2.0 * seed}), n_layer=2, seed=seed)
            for seed in (1, 2, 3)]
    runs.append(write_log(tmp_path / 'out-y', losses([9.0] * 5, {2: 8.0}), n_layer=3, seed=1))
    lost = write_log(tmp_path / 'out-x-seed4', [*losses([1.0, 99.0]), dict(iter=2, diverged='the loss')], n_layer=2, seed=4)
    figure = plot.picture('loss', [*runs, lost])
    x, other = (entry.get_text() for entry in figure.legends[0].get_texts())
    assert x == 'out-x (n_layer=2), 4 seeds: 4.000 ± 4.968, 1 diverged' and other == 'out-y (n_layer=3): 8.000'
    assert curves_in(figure)[0][:2] == [([0, 1, 2], [3, 3, 3]), ([2], [4])]
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((4 - 4.303 * 2 / 3 ** 0.5, 4 + 4.303 * 2 / 3 ** 0.5), abs=1e-3)


def test_the_axis_leaves_out_the_start_of_long_runs_alone(tmp_path):
    """So that 2.20 and 2.28 differ by a twentieth of the axis or more, also beside a run that diverged"""
    falls = [5.5 * 0.5 ** it for it in range(3)]
    runs = [write_log(tmp_path / name, losses(falls + [end + (2.8 - end) * (200 - it) / 197 for it in range(3, 200)],
                                              {0: 5.5, 100: 2.5, 200: end})) for name, end in (('a', 2.2), ('b', 2.28))]
    write_log(tmp_path / 'high', [*losses([3.0] * 150 + [1e6] * 49), dict(iter=199, diverged='the loss')])
    low, top = plot.picture('loss', [*runs, tmp_path / 'high']).axes[0].get_ylim()
    assert low < 2.2 < 2.8 < top < 3.5 and 0.08 > 0.05 * (top - low)
    short = write_log(tmp_path / 'short', losses([5.0, 3.0, 2.0], {0: 5.0}))
    assert 5 < plot.picture('loss', [short]).axes[0].get_ylim()[1] < 6
    assert 5 < plot.picture('loss', [short, tmp_path / 'high']).axes[0].get_ylim()[1] < 6


# ----------------------------------------------------------------------------- other pictures

def test_heat_maps(tmp_path):
    """Each layer's numbers; of many columns the largest of each stays; null is no number; the map ends where the run ends"""
    rows = [dict(iter=it, loss=1.0, layers=dict(update_norms=dict(qk=[1.0, 1e-5 * (it + 1)])),
                 **(dict(max_logits=[0.5 * it, None], dead_units=[0, 0]) if it % 40 == 0 else {})) for it in range(121)]
    rows[67]['layers']['update_norms']['qk'][0] = 50.0
    for more in [], [dict(iter=it, layers=dict(update_norms=dict(qk=[1.0, 1.0]))) for it in range(121, 1000)]:
        figure = plot.picture('heat', [write_log(tmp_path, rows + more)])
        maps = {ax.get_title(): ax.collections[0] for ax in figure.axes if ax.get_title()}
        updates, logits, dead = (maps[name] for name in ('norm of the update, qk', 'largest attention logit',
                                                         'share of dead units of the FFN'))
        first, second = updates.get_array()
        assert first.max() == 50 and (first == 1).sum() == len(first) - 1 and isinstance(updates.norm, matplotlib.colors.LogNorm)
        assert updates.get_coordinates()[0, -1, 0] == (999 if more else 120) and logits.get_coordinates()[0, -1, 0] == 120
    assert 300 < len(first) <= 400 and logits.get_array()[1].mask.all() and [*logits.get_array()[0]] == [0, 20, 40, 60]
    assert (dead.norm.vmin, dead.norm.vmax) == (0, 1)


HALVES = [0, 0.5, 1, 1.5, 2]            # behind each attention and each FFN


@pytest.mark.parametrize('what, x, shown', [
    ('hidden', HALVES, ['ma', 'var', 'entry_var']), ('transport', HALVES, ['w2', 'w1']),
    ('sensitivity', [1, 2], ['block', 'attn', 'ffn', 'to_end']), ('attention', [1, 2], ['max_logit', 'entropy'])])
def test_curves_along_the_depth(place, what, x, shown):
    """A curve for each run in each panel, with its bound dashed, where there is one; heads as their mean, with bars from the
    lowest to the highest"""
    figure, runs = plot.picture(what, pair(place)), [plot.read_measured(folder, what) for folder in pair(place)]
    for ax, drawn, dashed, key in zip(figure.axes, curves_in(figure, '-'), curves_in(figure, '--'), shown, strict=True):
        if what == 'attention':
            heads = [np.array(run[key]) for run in runs]
            assert [y for _, y in drawn] == [pytest.approx(values.mean(1)) for values in heads]
            ends = [[segment[:, 1] for segment in bars.get_segments()] for _, _, (bars,) in ax.containers]
            assert np.array(ends) == pytest.approx(np.array([[(min(of), max(of)) for of in values] for values in heads]))
        else:
            assert drawn == [(x, [row[key] for row in run]) for run in runs]
            assert dashed == [(x, [row[f'{key}_bound'] for row in run]) for run in runs if f'{key}_bound' in run[0]]


def test_coordinates_histograms_and_sweep(place):
    """The last and the first step against the width; shares, which add up to 1; seed 1 is the line, with a gap where it diverged,
    and the others a star with their standard error"""
    for drawn in curves_in(plot.picture('coordinates', pair(place)), '-'):
        assert drawn == [([32, 64, 256], [(1 + shift) * i ** 2 for i in (5, 6, 8)]) for shift in (0.0, 0.5)]
    assert [sum(y) for _, y in curves_in(plot.picture('gradients', pair(place)))[0]] == [pytest.approx(1)] * 2
    ax, = plot.picture('sweep', [place / 'sweep']).axes
    first, star = [[line for line in ax.lines if line.get_marker() in markers] for markers in ('os', '*')]
    assert [[*line.get_ydata()] for line in first] == [pytest.approx([2.0, 1.5, math.nan], nan_ok=True),
                                                       pytest.approx([1.9, math.nan], nan_ok=True)]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in star] == [(0.3, 1.75)] and ax.get_xscale() == 'log'
    assert ax.containers[0][2][0].get_segments()[0][:, 1].tolist() == [1.5, 2.0]


def test_keys(place, tmp_path):
    """A number, a list with a curve for each layer, of heads their mean, what a user added; of more than eight layers the first,
    the last and some between; a log axis where most values span more than two decades"""
    assert curves_in(plot.picture('heads', [place / 'out-b'])) == [[([0, 5, 10], [1.5, 4, 6.5]), ([0, 5, 10], [5, 5, 5])]]
    assert curves_in(plot.picture('residual_rms', pair(place))) == [[([0, 1], [0, 1]), ([0, 1], [2, 2])]] * 2
    write_log(tmp_path, [*(dict(iter=it, mine=it ** 2, gap=None, note='text', deep=[10.0 ** (layer + it) for layer in range(12)])
                           for it in range(3)), dict(iter=3, diverged='the loss', mine=0.5)])
    assert curves_in(plot.picture('mine', [tmp_path])) == [[([0, 1, 2], [0, 1, 4])]]
    deep = plot.picture('deep', [tmp_path]).axes[0]
    assert [line.get_label() for line in deep.lines] == ['1', '3', '4', '6', '7', '9', '10', '12'] and deep.get_yscale() == 'log'
    with pytest.raises(ValueError, match="what='mines' is none of the pictures loss, .* did you mean 'mine'?"):
        plot.picture('mines', [tmp_path])


def test_names_of_runs(tmp_path):
    """By the keys in which they differ, the architecture first, none of logging; without a config.json by their folder alone"""
    config = {**asdict(build('s5').config), 'optimizer': 'lion', 'learning_rate': 0.1, 'out_dir': 'x', 'eval_iters': 3}
    a, b, d, s1, none = (write_log(tmp_path / name, [], **config | more) for name, more in (
        ('out-a', {}), ('out-b', dict(learning_rate=0.2, mine=True, eval_iters=4)), ('out-d', dict(residual_scale=0.1)),
        ('out-s1', asdict(build('s1').config)), ('none', {})))
    (tmp_path / 'none' / 'config.json').unlink()
    assert plot.name_runs([[a], [b]]) == ['out-a (learning_rate=0.1)', 'out-b (mine=True, learning_rate=0.2)']
    assert plot.name_runs([[a], [s1]]) == ['out-a (s5)', 'out-s1'] and plot.name_runs([[none]]) == ['none']
    assert plot.name_runs([[a], [d]]) == ['out-a (s5)', 'out-d (s5, residual_scale=0.1)']


def test_the_command(place, tmp_path):
    """The picture goes into the first folder or where it is told; an SVG is the same each time; errors in one line"""
    first, out = place / 'out-a', tmp_path / 'x.svg'
    assert call('lab.plot', first) == f'wrote {first / "loss.png"}\n'
    drawn = {call('lab.plot', first, f'--out={out}', '--ylim=2,') + out.read_text() for _ in range(2)}
    call('lab.plot', first, f'--out={tmp_path / "x.pdf"}')
    assert len(drawn) == 1 and sorted(path.name for path in tmp_path.iterdir()) == ['x.pdf', 'x.svg']
    for wrong, part in (('--labels=A,B', 'wants 1 names'), ('--hide=x', '--hide=rate,train'), ('--xlim=3', "'3'"),
                        (f'--out={tmp_path}/x.html', 'html')):
        err = call('lab.plot', first, wrong, code=1)
        assert part in err and err.count('\n') == 1
