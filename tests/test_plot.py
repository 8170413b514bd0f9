"""lab/plot: each picture is drawn, and its curves are the numbers of the files made here; how it names runs."""
from configurator import read_config

import json
from dataclasses import asdict, fields

import matplotlib.pyplot
import numpy as np
import pytest
import torch
from helpers import ROOT, call

from engine.files import finite
from lab import plot
from lab.measure import MEASUREMENTS, measure
from lab.plot.__main__ import PICTURES
from model import GPT, GPTConfig

LABELS = ['out-peri (n_kv_head=0, optimizer=adamw)', 'out-b (llama, init_gain=2.0, n_kv_head=1, optimizer=sgdw)']


def write_log(folder, rows, **config):
    """Make the folder of a run with this config and log"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return folder


def losses(values, evaluations={}):
    """Rows of a log with these training losses, and with {iteration: validation loss}"""
    rows = [dict(iter=it, loss=loss, lr=0.1) for it, loss in enumerate(values)]
    return rows + [dict(iter=it, val_loss=loss) for it, loss in evaluations.items()]


@pytest.fixture(scope='module')
def pair(tmp_path_factory):
    """Two measured runs, the second of which measured while it trained"""
    place, batches = tmp_path_factory.mktemp('plot'), [tuple(torch.randint(7, (3, 5)) for _ in 'xy') for _ in range(2)]
    sizes = dict(block_size=6, vocab_size=11, n_layer=2, n_head=2, n_embd=8)
    for folder, shift, arch, more in ((place / 'out-peri', 0.0, 'peri', {}),
                                      (place / 'out-b', 0.5, 'llama', dict(n_kv_head=1, init_gain=2.0))):
        config = read_config(str(ROOT / 'config' / 'arch' / f'{arch}.py'), {'model': 'gpt'}) | sizes | more
        model = GPT(GPTConfig(**{f.name: config[f.name] for f in fields(GPTConfig) if f.name in config})).eval()
        rows = losses([5 + shift, 4 + shift], {0: 5.5, 1: 2.25 + shift})
        rows += [dict(iter=it, residual_rms=[it, 2.0], grad_norms=dict(qk=1.0, ffn=2.0, gate=3.0)) for it in range(2)]
        write_log(folder, rows, **asdict(model.config), optimizer='sgdw' if shift else 'adamw', eval_interval=shift)
        results = finite(measure(model, batches, MEASUREMENTS, 0))
        (folder / 'measure.json').write_text(json.dumps(results))
        of_one = {str(2 ** i): [0.1 + shift, (1 + shift) * i ** 2] for i in (5, 6, 8)}
        (folder / 'coordinates.json').write_text(json.dumps(dict(steps=2, activations=dict(ffn=of_one, logits=of_one))))
    during = [dict(iter=it, sharpness=results['sharpness'], heads=[[it, 3], [4, 6]]) for it in (0, 5, 10)]
    (folder / 'measure.jsonl').write_text('\n'.join(map(json.dumps, during)))
    return [place / 'out-peri', folder]


def curves_in(figure, dashes=('-', '--')):
    """[(x, y)] of the curves in these line styles, of each panel"""
    panels = [[line for line in ax.lines if line.get_ls() in dashes] for ax in figure.axes]
    return [[(list(line.get_xdata()), list(line.get_ydata())) for line in lines] for lines in panels]


@pytest.mark.parametrize('what', [*PICTURES, 'grad_norms'])
def test_each_picture_is_drawn(pair, what):
    """It names each run, its axes say what they are, and pyplot and its settings stay as they were"""
    before, figure = dict(matplotlib.rcParams), plot.picture(PICTURES.get(what, what), pair)
    figure.canvas.draw()
    written = ' '.join(text.get_text().replace('\n', ' ') for text in figure.findobj(matplotlib.text.Text))
    assert all(name in written for name in LABELS) and any(ax.get_xlabel() for ax in figure.axes)
    assert what != 'gradients' or [sum(y) for _, y in curves_in(figure)[0]] == [pytest.approx(1)] * 2, 'shares'
    assert dict(matplotlib.rcParams) == before and not matplotlib.pyplot.get_fignums()


def test_loss(pair):
    """Both losses, with the validation at iteration 0, and the rate; on request the validation loss alone"""
    figure = plot.picture('loss', pair)
    loss, rate = curves_in(figure)
    assert loss == [([0, 1], y) for y in ([5, 4], [5.5, 2.25], [5.5, 4.5], [5.5, 2.75])] and rate == [([0, 1], [0.1, 0.1])] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f'{LABELS[0]}: 2.250', f'{LABELS[1]}: 2.750']
    assert curves_in(plot.picture('loss', pair, hide='lr,loss')) == [[([0, 1], [5.5, 2.25]), ([0, 1], [5.5, 2.75])]]


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path):
    """Their mean, in a band of its 95% interval, without a seed that diverged"""
    runs = [write_log(tmp_path / f'out-x-seed{seed}', losses([1.0 + seed] * 3, {2: 2.0 * seed}), seed=seed) for seed in (1, 2, 3)]
    lost = write_log(tmp_path / 'out-x-seed4', [*losses([1.0, 99.0]), dict(iter=2, diverged='the loss')], seed=4)
    figure = plot.picture('loss', [*runs, lost])
    assert figure.legends[0].get_texts()[0].get_text() == 'out-x, 4 seeds: 4.000 ± 4.968, 1 diverged'
    assert curves_in(figure)[0] == [([0, 1, 2], [3, 3, 3]), ([2], [4])]
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert [band.min(), band.max()] == pytest.approx([4 - 4.968, 4 + 4.968], abs=1e-3)      # 4.303 s/√3


def test_heat_maps(tmp_path):
    """Each layer's numbers; of many columns the largest of each stays; null is no number; the map ends where the run ends"""
    rows = [dict(iter=it, layers=dict(update_norms=dict(qk=[1.0, 2.0])), **(
        dict(max_logits=[0.5 * it, None]) if it in (0, 40, 80) else {})) for it in range(1000)]
    rows[67]['layers']['update_norms']['qk'][0] = 50.0
    updates, logits = [ax.collections[0] for ax in plot.picture('heat', [write_log(tmp_path, rows)]).axes if ax.get_title()]
    first = updates.get_array()[0]
    assert first.max() == 50 and (first == 1).sum() == len(first) - 1 and 300 < len(first) <= 400
    assert [drawn.get_coordinates()[0, -1, 0] for drawn in (updates, logits)] == [999, 80]
    assert logits.get_array()[1].mask.all() and [*logits.get_array()[0]] == [0, 20, 40]


def test_curves_along_the_depth(pair):
    """A curve for each run in each panel, its bound dashed; heads as their mean; the last step against the width"""
    figure, runs = plot.picture(PICTURES['hidden'], pair), [plot.read_measured(folder, 'hidden') for folder in pair]
    for drawn, dashed, key in zip(curves_in(figure, ['-']), curves_in(figure, ['--']), ('ma', 'var', 'entry_var'), strict=True):
        assert drawn == [([0, 0.5, 1, 1.5, 2], [row[key] for row in run]) for run in runs]
        assert [y for _, y in dashed] == [[row[f'{key}_bound'] for row in runs[0]]]
    heads = [plot.read_measured(folder, 'attention')['max_logit'] for folder in pair]
    means = [y for _, y in curves_in(plot.picture(PICTURES['attention'], pair))[0]]
    assert means == [pytest.approx(np.mean(x, axis=1)) for x in heads]
    for drawn in curves_in(plot.picture(PICTURES['coordinates'], pair), ['-']):
        assert drawn == [([32, 64, 256], [(1 + shift) * i ** 2 for i in (5, 6, 8)]) for shift in (0.0, 0.5)]


def test_keys(pair, tmp_path):
    """A number that a user added, a list with a curve for each layer, of heads their mean"""
    assert curves_in(plot.picture('heads', pair[1:])) == [[([0, 5, 10], [1.5, 4, 6.5]), ([0, 5, 10], [5, 5, 5])]]
    write_log(tmp_path, [dict(iter=it, mine=it ** 2, gap=None, note='text') for it in range(3)])
    assert curves_in(plot.picture('mine', [tmp_path])) == [[([0, 1, 2], [0, 1, 4])]]


def test_the_command(pair, tmp_path):
    """The picture goes into the first folder or where it is told; errors in one line"""
    assert call('lab.plot', pair[0]) == f'wrote {pair[0] / "loss.png"}\n'
    call('lab.plot', pair[0], f'--out={tmp_path / "x.pdf"}', '--ylim=2,')
    assert (tmp_path / 'x.pdf').read_bytes().startswith(b'%PDF')
    for wrong, part in ('--labels=A,B', 'must be 1 names'), ('--xlim=3', "'3'"), ('--what=losss', 'or a key of'):
        assert part in call('lab.plot', pair[0], wrong, code=1)
