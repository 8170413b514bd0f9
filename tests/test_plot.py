"""plot.py: what its pictures show of a measure.json, a measure.jsonl and a log.jsonl made here, and how it names runs."""
import json
import math
import runpy
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from test_measure import ARCHS, build, data

from lab import plot
from lab.measure import MEASUREMENTS, measure, write_row

torch.set_num_threads(1)            # tensors this small gain nothing from more

ROOT = Path(__file__).resolve().parents[1]
KINDS = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')


def write_run(folder, arch, optimizer, more={}, measured={}):
    """A run's config.json and measure.json → what the latter holds."""
    folder.mkdir()
    model = build(arch, more, dtype=torch.float32)
    (folder / 'config.json').write_text(json.dumps({**asdict(model.config), 'optimizer': optimizer}))
    with open(folder / 'measure.json', 'w', encoding='utf-8') as f:
        write_row(f, dict(iter=7, tokens=30, **(measured or measure(model, data(), MEASUREMENTS, 0))))
    return json.loads((folder / 'measure.json').read_text())


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """Two runs, the second of which measured while it trained, and what their measure.json hold."""
    place, patch = tmp_path_factory.mktemp('plot'), pytest.MonkeyPatch()
    patch.setattr('measure.FACTORS', (1.0, 30.0))
    measured = [write_run(place / 'out-a', 'peri', 'adamw'), write_run(place / 'out-b', 'llama', 'sgdw', dict(n_kv_head=1))]
    patch.undo()
    for name, shift in ('out-a', 0.0), ('out-b', 0.5):
        rows = [dict(iter=it, loss=5 - it + shift, lr=0.1 * it, grad_norm=1.0) for it in range(4)]
        rows[2:2] = [dict(iter=2, train_loss=3.0, val_loss=2.25 + shift), dict(iter=3, train_loss=3.0, val_loss=2.5 + shift)]
        (place / name / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows) + '{"iter": 4, "loss"')
    with open(place / 'out-b' / 'measure.jsonl', 'w', encoding='utf-8') as f:
        for it in 0, 5, 10:
            write_row(f, dict(iter=it, **measure(build('llama', dict(n_kv_head=1), noise=0.1 + it), data(1), ['sharpness'], 0)))
        f.write('{"iter": 15, "sharpn')
    return place, measured


@pytest.fixture
def figure(place, request):
    """The picture of these runs: request.param is what, and of how many."""
    what, runs = request.param
    figure = plot.PICTURES[what]([str(place[0] / name) for name in ('out-a', 'out-b')[:runs]])
    yield figure
    plot.plt.close(figure)


def of(what):
    """Parametrizes by a picture of one run and of both."""
    return pytest.mark.parametrize('figure', [(what, 1), (what, 2)], indirect=True, ids=['one', 'two'])


def lines(ax, style='-'):
    """[(x, y)] of its lines of this style, in the order they were drawn."""
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines if line.get_linestyle() == style]


def entries(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


LABELS = ['out-a (peri, adamw)', 'out-b (llama, sgdw)']


def shares(histogram):
    counts = np.array(histogram['counts'])
    inside = np.arange(*np.flatnonzero(counts > 1e-4 * counts.sum())[[0, -1]] + [0, 1])
    return pytest.approx(histogram['start'] + (inside + 0.5) * 0.1), pytest.approx(counts[inside] / counts.sum())


# ----------------------------------------------------------------------------- each picture

def test_there_is_a_picture_of_every_measurement():
    assert set(plot.PICTURES) == {'loss', 'predictions', 'sweep', *MEASUREMENTS}


@pytest.mark.parametrize('what', [what for what in plot.PICTURES if what not in ('predictions', 'sweep')])
def test_drawing(place, what, tmp_path, capsys):
    """One run, and both: a PNG, which names each run, and whose axes say what they are"""
    for runs in 1, 2:
        folders, out = [str(place[0] / name) for name in ('out-a', 'out-b')[:runs]], tmp_path / f'{runs}.png'
        plot.draw(what, folders, out)
        assert out.read_bytes().startswith(b'\x89PNG') and capsys.readouterr().out == f'wrote {out}\n'
        assert plot.plt.get_fignums() == []
        figure = plot.PICTURES[what](folders)
        axes = [ax for ax in figure.axes if ax.get_visible() and ax.get_label() != '<colorbar>']
        written = ' '.join(ax.get_title() + ''.join(entries(ax) if ax.get_legend() else []) for ax in axes)
        assert all(label in written for label in LABELS[:runs]) and ('out-b' in written) == (runs == 2)
        for ax in axes:
            place_in_grid = ax.get_subplotspec()
            assert ax.get_xlabel() or not place_in_grid.is_last_row()
            assert ax.get_ylabel() or ax.get_yticklabels() or not place_in_grid.is_first_col()
        plot.plt.close(figure)


@of('loss')
def test_loss(figure):
    """A half-written last line is left out"""
    top, bottom = figure.axes
    for i, (training, validation) in enumerate(zip(*[iter(lines(top))] * 2)):
        assert training == ([0, 1, 2, 3], [5 + i / 2, 4 + i / 2, 3 + i / 2, 2 + i / 2])
        assert validation == ([2, 3], [2.25 + i / 2, 2.5 + i / 2])
        assert lines(bottom)[i] == ([0, 1, 2, 3], pytest.approx([0, 0.1, 0.2, 0.3]))
        assert entries(top)[2 * i:2 * i + 2] == [f'{LABELS[i]}: training', f'{LABELS[i]}: validation, {2.25 + i / 2:.3f} at best']
    assert len(lines(top)) == 2 * len(lines(bottom)) and 'nats' in top.get_ylabel()


@of('gradients')
def test_gradients(place, figure):
    """Shares of the entries by log10 |g|, a panel for each kind of matrix, and the figures of its tail"""
    runs = len(lines(figure.axes[0]))
    for ax, kind in zip(figure.axes, KINDS, strict=True):
        assert ax.get_title() == f'$W_{kind[1]}$' and len(lines(ax)) == runs
        for line, said, label, measured in zip(lines(ax), entries(ax), LABELS, place[1]):
            stats = measured['gradients'][kind]
            assert line == shares(stats['histogram']) and 0.99 < sum(line[1]) <= 1 + 1e-9
            assert said == f'{label}\np99.9/p50 {stats["tail"]:.3g}, kurtosis {stats["kurtosis"]:.3g}'


@of('sharpness')
def test_sharpness(place, figure):
    """A panel a run: shares of the parameters of each type, with a dot at their mean; below, the mean over training, where it
    was measured"""
    runs = len(figure.axes) // 2 or 1
    assert len(figure.axes) == {1: 1, 2: 4}[runs]
    for ax, label, measured in zip(figure.axes, LABELS, place[1]):
        found = measured['sharpness']
        kinds = [kind for kind in ('emb', 'head', 'qk', 'vo', 'ffn', 'norm') if kind in found]
        assert ax.get_title() == label
        assert lines(ax) == [shares(found[kind]['histogram']) for kind in kinds]
        assert lines(ax, 'None') == [([found[kind]['log10_mean']], [0]) for kind in kinds]
        assert entries(ax) == [f'{kind}: {found[kind]["log10_mean"]:.2f}' for kind in kinds]
    if runs == 2:
        rows = [json.loads(line) for line in (place[0] / 'out-b' / 'measure.jsonl').read_text().splitlines()[:3]]
        over_time = [([0, 5, 10], [row['sharpness'][kind]['log10_mean'] for row in rows]) for kind in kinds]
        assert lines(figure.axes[2]) == [] and lines(figure.axes[3]) == over_time
        assert 'iteration' in figure.axes[3].get_xlabel()
        colors = [[line.get_color() for line in ax.lines] for ax in figure.axes]
        assert colors[1][::2] == colors[1][1::2] == colors[3], 'a type keeps its colour'
        assert len(set(colors[3])) == len(kinds)


@of('hidden')
def test_hidden(place, figure):
    """MA and Var behind each branch, on log scales, and dashed the bounds, where there are any"""
    for ax, key in zip(figure.axes, ('ma', 'var'), strict=True):
        drawn = [([0, 0.5, 1, 1.5, 2], [row[key] for row in measured['hidden']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and entries(ax) == LABELS[:len(lines(ax))]
        assert lines(ax, '--') == [([0, 0.5, 1, 1.5, 2], [row[f'{key}_bound'] for row in place[1][0]['hidden']])]
        assert ax.get_yscale() == 'log' and ax.lines[0].get_color() == ax.lines[1].get_color()


@of('drift')
def test_drift(place, figure):
    for ax, key in zip(figure.axes, ('distance', 'relative'), strict=True):
        drawn = [([0, 0.5, 1, 1.5, 2], [row[key] for row in measured['drift']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and entries(ax) == LABELS[:len(lines(ax))] and ax.get_yscale() == 'log'


@of('sensitivity')
def test_sensitivity(place, figure):
    for ax, key in zip(figure.axes, ('block', 'attn', 'ffn'), strict=True):
        drawn = [([1, 2], [row[key] for row in measured['sensitivity']]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and entries(ax) == LABELS[:len(lines(ax))] and ax.get_yscale() == 'log'


@of('parameters')
def test_parameters(place, figure):
    for ax, kind in zip(figure.axes, KINDS, strict=True):
        drawn = [([1, 2], [found['spectral'] for found in measured['parameters'][kind]]) for measured in place[1]]
        assert lines(ax) == drawn[:len(lines(ax))] and ax.get_title() == f'$W_{kind[1]}$'
    assert entries(figure.axes[0]) == LABELS[:len(lines(figure.axes[0]))]


@of('attention')
def test_attention(place, figure):
    """The mean over heads, with bars from the lowest to the highest"""
    for ax, key in zip(figure.axes, ('max_logit', 'entropy'), strict=True):
        assert entries(ax) == LABELS[:len(ax.containers)]
        for (line, _, (bars,)), measured in zip(ax.containers, place[1]):
            heads = np.array(measured['attention'][key])
            assert list(line.get_ydata()) == pytest.approx(heads.mean(1))
            ends = np.array([segment[:, 1] for segment in bars.get_segments()])
            assert np.allclose(ends, np.stack([heads.min(1), heads.max(1)], 1))
            assert list(line.get_xdata()) == pytest.approx([1, 2], abs=0.2)


@of('preflight')
def test_preflight(place, figure):
    """The exponents as colours and as numbers, rows and columns by name, blank where a run has none; growth below"""
    axes = [ax for ax in figure.axes if ax.images]
    rows = [text.get_text() for text in axes[0].get_yticklabels()]
    for ax, label, measured in zip(axes, LABELS, place[1]):
        invariance, grown = measured['preflight']['invariance'], measured['preflight']['growth']['as is']
        assert invariance['W_1'].keys() <= set(rows)
        values = [[invariance[cause].get(effect, math.nan) for cause in invariance] for effect in rows]
        shown = ax.images[0].get_array().filled(math.nan)
        assert ax.get_title() == label and np.allclose(shown, values, equal_nan=True) and ax.images[0].get_clim() == (-2, 2)
        numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text()}
        assert numbers == {(x, y): f'{value:.1f}'.replace('-0.0', '0.0')
                           for y, row in enumerate(values) for x, value in enumerate(row) if not math.isnan(value)}
        assert [text.get_text() for text in ax.get_xticklabels()] == list(invariance)
        for key in 'ma', 'var':
            assert all(said in ax.get_xlabel() for said in (key.upper(), grown[key]['shape'], f'{grown[key]["power"]:.2f}'))


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
        assert {effect: rows.get(effect) for effect in effects} == pytest.approx(effects)
    plot.plt.close(figure)


def test_bins_that_are_next_to_empty_are_cut_off_at_the_ends_only(place):
    figure, ((ax,),) = plot.panels(1, 1)
    plot.shares(ax, dict(start=-2.0, width=0.5, counts=[1, 0, 50_000, 0, 40_000, 10_000, 1]))
    plot.shares(ax, dict(start=-30.0, width=0.5, counts=[0]))
    assert lines(ax) == [(pytest.approx([-0.75, -0.25, 0.25, 0.75]), pytest.approx([0.5, 0, 0.4, 0.1], rel=1e-4))]
    plot.plt.close(figure)


@pytest.mark.parametrize('what', ['sharpness', 'preflight'])
def test_what_is_null_is_left_out(place, what, tmp_path):
    """As measure.py writes of a type without gradients, and of the growth over one layer"""
    measured = json.loads(json.dumps(place[1][0][what]))
    if what == 'sharpness':
        measured['qk'].update(log10_mean=None, mean_log10=None)
    else:
        measured['growth']['as is']['ma']['power'] = None
    write_run(tmp_path / 'out-null', 'peri', 'adamw', measured={what: measured})
    plot.draw(what, [str(tmp_path / 'out-null')], tmp_path / 'out.png')


@pytest.mark.parametrize('key', ['tail', 'kurtosis'])
def test_gradients_without_a_tail(place, key, tmp_path):
    """null where more than half of the gradients are zeros"""
    measured = json.loads(json.dumps(place[1][0]['gradients']))
    measured['wq'][key] = None
    write_run(tmp_path / 'out-null', 'peri', 'adamw', measured=dict(gradients=measured))
    plot.draw('gradients', [str(tmp_path / 'out-null')], tmp_path / 'out.png')


@pytest.mark.parametrize('rates', [True, False])
def test_sweep(tmp_path, rates):
    """A line of means with their standard errors for each row, over the learning rate or, where that does not vary, a dot; a
    cross where every run diverged, and nothing where none has ended"""
    points = [('s1', '0.1', 2.0, 0.25, 3, 0), ('s1', '0.3', 1.5, 0.5, 2, 1), ('s1', '1.0', math.inf, math.nan, 0, 3),
              ('s5', '0.1', math.inf, math.nan, 0, 0), ('s5', '0.3', 1.25, math.nan, 1, 0)]
    points, head = (points, 'arch,learning_rate,') if rates else ([(a + b, *rest) for a, b, *rest in points], 'arch,')
    (tmp_path / 'table.csv').write_text('\n'.join([f'{head}val_loss,standard_error,done,diverged,failed,missing',
                                                   *(','.join(map(str, (*point, 0, 0))) for point in points)]) + '\n')
    plot.draw('sweep', [str(tmp_path)], tmp_path / 'sweep.png')
    figure = plot.PICTURES['sweep']([str(tmp_path), str(tmp_path)])
    for ax in figure.axes:
        drawn = [(list(bars[0].get_xdata()), list(bars[0].get_ydata())) for bars in ax.containers]
        crosses = [list(line.get_xdata()) for line in ax.lines if line.get_marker() == 'x']
        if rates:
            assert drawn == [([0.1, 0.3], [2.0, 1.5]), ([0.3], [1.25])] and crosses == [[1.0], []]
            assert entries(ax) == ['s1', 's5'] and ax.get_xscale() == 'log' and ax.get_xlabel() == 'learning rate'
        else:
            assert drawn == [([0], [2.0]), ([1], [1.5]), ([], []), ([], []), ([4], [1.25])] and crosses == [[], [], [2], [], []]
            assert [text.get_text() for text in ax.get_xticklabels()] == ['s10.1', 's10.3', 's11.0', 's50.1', 's50.3']
        assert list(ax.containers[0][2][0].get_segments()[0][:, 1]) == [1.75, 2.25]
    plot.plt.close(figure)


# ----------------------------------------------------------------------------- names

@pytest.mark.parametrize('arch', ARCHS)
def test_a_run_is_named_by_its_fragment(arch, tmp_path):
    """And by its optimizer; by up to two fields that differ, by no fragment where more do, and by its folder alone where there is
    no config.json"""
    folder = tmp_path / 'out-x'
    folder.mkdir()
    assert plot.label(str(folder)) == 'out-x'
    config = {**asdict(build(arch).config), 'optimizer': 'lion'}
    (folder / 'config.json').write_text(json.dumps(config))
    assert plot.label(str(folder)) == plot.label(f'{folder}/') == f'out-x ({arch}, lion)'
    odd = dict(residual_scale=0.1, init_gain=7.0, attn_tau=3.5)
    for differs, named in ((1, f'{arch}, residual_scale=0.1, lion'), (2, f'{arch}, residual_scale=0.1, init_gain=7.0, lion'),
                           (3, 'lion')):
        (folder / 'config.json').write_text(json.dumps({**config, **dict(list(odd.items())[:differs])}))
        found = plot.label(str(folder)).removeprefix('out-x (').removesuffix(')')
        assert sorted(found.split(', ')) == sorted(named.split(', '))


# ----------------------------------------------------------------------------- the command and its errors

def call(monkeypatch, *args):
    monkeypatch.setattr(sys, 'argv', ['plot.py', *map(str, args)])
    runpy.run_path(str(ROOT / 'plot.py'), run_name='__main__')


def test_the_picture_goes_into_the_first_folder_or_where_it_is_told(place, monkeypatch, tmp_path):
    call(monkeypatch, place[0] / 'out-a', place[0] / 'out-b')
    call(monkeypatch, place[0] / 'out-a', '--what=drift', f'--out={tmp_path / "x.png"}')
    call(monkeypatch, place[0] / 'out-b', place[0] / 'out-a', '--what=drift')
    made = sorted(path.relative_to(place[0]) for path in place[0].rglob('*.png'))
    assert made == [Path('out-a/loss.png'), Path('out-b/drift.png')] and (tmp_path / 'x.png').exists()


@pytest.mark.parametrize('folder, what, says', [
    ('nowhere', 'loss', 'there is no nowhere/log.jsonl: .* is not the folder of a run'),
    ('nowhere', 'sweep', 'there is no nowhere/table.csv: .* python sweep.py --report=nowhere'),
    ('nowhere', 'hidden', 'there is no nowhere/measure.json: .* python measure.py --out_dir=nowhere'),
    ('bare', 'loss', 'there is no bare/log.jsonl'),
    ('bare', 'sharpness', 'bare/measure.json holds no sharpness: .* python measure.py --out_dir=bare --what=sharpness')])
def test_an_error_is_one_line_with_the_remedy(folder, what, says, tmp_path, monkeypatch):
    """Also where another folder is fine"""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / 'bare', 'pre', 'adamw', measured=dict(drift=[]))
    with pytest.raises(ValueError, match=f'^{says}') as error:
        call(monkeypatch, folder, f'--what={what}')
    assert '\n' not in str(error.value) and not list(tmp_path.rglob('*.png'))


def test_an_unknown_picture(monkeypatch):
    with pytest.raises(SystemExit, match='^error: .*hiden.*choose from .*hidden.*; --help tells more$'):
        call(monkeypatch, 'x', '--what=hiden')
