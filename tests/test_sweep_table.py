"""lab/sweep/table.py: the tables that a sweep makes of a runs.csv, against plain computations."""
import csv
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import run_here
from lab.sweep.statistics import contrast, samples

from lab.sweep.run import largest_rise
from lab.sweep.table import CELLS, read_runs

RATES = ('0.1', '0.2', '0.4')


def row(arch, *ends, rates=RATES):
    return [(dict(arch=arch, learning_rate=rate), end) for rate, end in zip(rates, ends)]


@pytest.fixture
def report(tmp_path, monkeypatch):
    """report(points, *arguments): the output for a runs.csv of (labels, how each seed's run ended), which is its validation loss,
    (its validation loss, its test loss), [its validation losses at 0, 8 and 40], or a status. Others start at a loss of 5.
    `edit` changes the file's text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('lab.plot.draw', lambda *picture: None)

    def report(points, *arguments, code=0, edit=lambda text: text):
        axes = list(dict.fromkeys(axis for labels, _ in points for axis in labels))
        with open('numbers.csv', 'w', encoding='utf-8', newline='') as f:
            table = csv.DictWriter(f, [*axes, 'seed', *CELLS], restval='')
            table.writeheader()
            for labels, ends in points:
                for seed, end in enumerate(ends, 1):
                    val, test = end if isinstance(end, tuple) else (end, '')
                    losses = val if isinstance(val, list) else []
                    val = losses[-1] if losses else val
                    done = not isinstance(val, str)
                    curve = ' '.join(f'{it}:{loss}' for it, loss in zip((0, 8, 40), losses)) or f'0:5 20:{val}' if done else '0:5'
                    table.writerow(dict(labels, seed=seed, status='done' if done else val, val_losses=curve, code='c0de',
                                        precision='float32', val_loss=val if done else '', test_loss=test, seconds=36))
        text = Path('numbers.csv').read_bytes().decode()
        Path('numbers.csv').write_bytes(edit(text).encode())
        found, out, err = run_here('lab.sweep', '--report=numbers.csv', '--out_dir=made', *arguments)
        assert found == code and (not code or err.startswith('error: ') and err.count('\n') == 1), out + err
        return err if code else out

    return report


def tables():
    """The tables of table.md, each a list of dicts, having checked that table.txt says the same"""
    found, texts = [], []
    for part in Path('made/table.md').read_text(encoding='utf-8').split('\n\n'):
        head, _, *lines = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in part.strip().splitlines()]
        found.append([dict(zip(head, line)) for line in lines])
        texts += [' '.join(line).split() for line in (head, *lines)]
    assert [line.split() for line in Path('made/table.txt').read_text(encoding='utf-8').splitlines() if line] == texts
    return found


def test_means_and_counts(report):
    """Of the runs that are done; in table.csv too, with the axes that a row lacks empty"""
    points = [(dict(arch='s1', optim='sgdw'), [2.0, 1.75, 2.5]), (dict(arch='s5'), ['diverged'] * 2),
              (dict(arch='s1', optim='a, b'), [2.25, 2.75, 'diverged', 'failed'])]
    assert '0.09 hours' in report(points)
    assert [line['validation loss'] for line in tables()[0]] == [
        f'2.083 ± {np.std([2, 1.75, 2.5], ddof=1) / math.sqrt(3):.3f}', 'diverged 2/2', '2.500 ± 0.250, diverged 1/4, failed 1/4']
    with open('made/table.csv', encoding='utf-8', newline='') as f:
        found = [[line[key] for key in ('arch', 'optim', 'done', 'diverged', 'failed')] for line in csv.DictReader(f)]
    assert found == [['s1', 'sgdw', '3', '0', '0'], ['s5', '', '0', '2', '0'], ['s1', 'a, b', '2', '1', '1']]


# ----------------------------------------------------------------------------- best rates

def test_seed_1_alone_chooses_and_the_others_are_compared(report):
    """Though these are better elsewhere. Its losses and their mean are columns of their own; rates stand in order as numbers"""
    report(row('a', [2.0, 2.5, 3.0], [2.125], [3.0, 1.0, 1.0], rates=('0.3', '10.0', '1e-1')))
    wanted = {'arch': 'a', 'lr 1e-1': '3.000', 'lr 0.3': '2.000 *', 'lr 10.0': '2.125', 'validation loss': '2.750 ± 0.250'}
    assert list(tables()[0][0].items()) == list(wanted.items())
    with open('made/table.csv', encoding='utf-8', newline='') as f:
        found = [[float(line[key]) for key in ('learning_rate', 'tuning_loss', 'val_loss')] for line in csv.DictReader(f)]
    np.testing.assert_equal(found, [[0.1, 3, 1], [0.3, 2, 2.75], [10, 2.125, math.nan]])


def test_test_losses(report):
    """They are compared, where all runs that were done have one, and do not choose"""
    points = [*row('a', [(2.0, 3.0), (2.5, 3.5)], [(3.0, 2.0), (1.0, 2.0)]),
              *row('b', [(2.5, 2.5), (2.5, 2.75)], ['diverged'] * 2)]
    assert 'test loss at the end, ' in report(points)
    assert tables()[0][0] == {'arch': 'a', 'lr 0.1': '2.000 *', 'lr 0.2': '3.000', 'test loss': '3.500'}
    report(points, '--select=best', '--against=arch=b')
    one, two = tables()[0]
    assert (one['learning_rate'], one['test loss']) == ('0.1 (edge)', '3.500') and two['test loss'] == '2.750'
    assert (one['difference'], one['seeds'], one['iterations to its loss']) == ('+0.750', '1', '20 (100%)')
    points[0][1][0] = 2.0                               # one that has none
    assert 'validation loss at the end, ' in report(points)


@pytest.mark.parametrize('losses, best', [((1, 2, 3), '0.1 (edge)'), ((3, 2, 1), '0.4 (edge)'), ((2, 1, 3), '0.2'),
                                          ((2, 1, 'diverged'), '0.2'), ((1,), '0.1'), ((2, 1, 'failed'), '0.2 (edge)')])
def test_the_edge_of_a_grid(report, losses, best):
    """Where a rate that was tried has diverged is no edge, and a single rate is no grid"""
    report([*row('a', *([loss] for loss in losses)), *row('b', [1], [1])], '--select=best')
    assert tables()[0][0]['learning_rate'] == best


def test_the_rule_by_which_a_run_counts_as_diverged(report):
    """By its last loss, and by the largest rise of its training loss"""
    for rule, lost in ('loss=9', True), ('loss=10', False), ('rise=0.8', False), ('rise=0.6', True):
        report(row('a', [2.5, 9.5]), f'--diverged_{rule}', edit=lambda text: text.replace(',9.5,,,', ',9.5,,0.7,'))
        assert (tables()[0][0]['validation loss'] == '2.500, diverged 1/2') == lost


def test_the_largest_rise():
    """Of means over 5 values above the lowest before; what is left at the end does not count"""
    for losses, rise in ([5, 4, 3, 2], 0), ([5, 2, 4, 3], 2), ([2, 5, 1, 3], 3), ([], math.nan):
        logged = [loss + noise for loss in losses for noise in (-0.5, 0.5, 0, 0.25, -0.25)] + [9.0]
        assert largest_rise(logged) == pytest.approx(rise, nan_ok=True)


@pytest.mark.parametrize('ends, wanted', [
    (([1.0], [2.0], [4.5]), '1.500'),                   # (0 + 1 + 3.5) / 3
    (([1.0], [2.0], [9.0]), '1.667'), (([1.0], [2.0], ['diverged']), '1.667'),       # both count as 5, where all start
    (([1.0, 9.0], [2.0, 'diverged'], [[5.0, 9.0, 4.5]]), '1.500'),      # a run that spiked; of seed 1 alone
    (([1.0], [2.0], ['failed']), ''), (([1.0],), '')])
def test_rate_sensitivity(report, ends, wanted):
    """By hand; none where a rate was not trained to the end, or is alone. Of fewer rates than others, how many is said"""
    report([*row('a', *ends), *row('b', [1.0], [1.25])], '--select=best', '--diverged_loss=4.75')
    fewer = ' (2 rates)' * (len(ends) > 2)
    assert [line['rate sensitivity'] for line in tables()[0]] == [wanted, f'0.125{fewer}']
    assert tables()[0][1]['tolerance in octaves'] == f'≥ 0.4{fewer}'        # 0.1 / 0.25


# ----------------------------------------------------------------------------- comparisons

SEEDS = np.random.default_rng(0).normal(2, 0.1, (4, 5)).round(4)


def cells(weights):
    """(p, the cells) of a contrast of SEEDS, {its row: weight}"""
    e = contrast(weights, dict(enumerate(samples(SEEDS.tolist()))))
    return e.p, {'difference': f'{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]', 'seeds': '5', 'p': f'{e.p:.2g}',
                 'detectable': f'{e.detectable:.3f}'}


def test_contrasts_and_against(report):
    """A difference of differences and a difference, and all rows against one, each with p-values that are corrected over its
    table. The four rows are of one size, and those of one optimizer are moderated together"""
    points = [(dict(arch=arch, setting=setting, optim='sgdw'), list(losses)) for (arch, setting), losses in zip(
        [('s1', 'x'), ('s1', 'y'), ('s5', 'x'), ('s5', 'y')], SEEDS)]
    rows = [','.join(f'{axis}={label}' for axis, label in labels.items()) for labels, _ in points]
    texts = [f'{rows[0]} - {rows[1]} - {rows[2]} + {rows[3]}', f'{rows[3]} - {rows[0]}']
    report(points, f'--contrast={texts[0]}; {texts[1]}', f'--against={rows[0]}')
    lines, contrasts = tables()
    wanted = [{0: 1, 1: -1, 2: -1, 3: 1}, {3: 1, 0: -1}], [{i: 1, 0: -1} for i in (1, 2, 3)]
    for found, weights in zip((contrasts, lines[1:]), wanted):
        tests = [cells(one) for one in weights]
        assert [{key: line[key] for key in one} for line, (_, one) in zip(found, tests)] == [one for _, one in tests]
        ps = sorted(p for p, _ in tests)
        wanted = {p: min(ps[j] * len(ps) / (j + 1) for j in range(i, len(ps))) for i, p in enumerate(ps)}
        assert [line['corrected p'] for line in found] == [f'{wanted[p]:.2g}' for p, _ in tests]
    assert lines[0]['difference'] == '' and [line['contrast'] for line in contrasts] == texts


@pytest.mark.parametrize('losses, says', [
    ([[3.0, 2.25, 1.25], [3.0, 1.75, 0.75]], '16 (40%)'),       # 3, 2, 1 on average
    ([[3.0, 1.0, 2.0], [3.0, 1.0, 1.0], 'diverged'], '5 (12%)'),    # where it gets there first
    ([[3.0, 2.5, 1.7501]], 'not reached')])
def test_iterations_to_the_others_loss(report, losses, says):
    """Between the evaluations at 0, 8 and 40 on a straight line; the other ends at 1.75"""
    report([(dict(arch='a'), losses), (dict(arch='b, c'), [[3.0, 1.0, 2.0], [3.0, 1.5, 1.5]])], '--against=arch=b, c')
    assert [line['iterations to its loss'] for line in tables()[0]] == [says, '']


# ----------------------------------------------------------------------------- runs.csv

def test_a_file_that_a_spreadsheet_saved(report):
    """With a byte-order mark and its own spelling of a number, in some rows"""
    points = row('a', [2.5, 2.5], [3.0], rates=('0.01', '0.02'))
    report(points)
    wanted = tables()
    report(points, edit=lambda text: '\ufeff' + text.replace('a,0.01,2', 'a,1E-02,2'))
    assert tables() == wanted and read_runs('numbers.csv').learning_rate.tolist() == ['0.01', '0.01', '0.02']


@pytest.mark.parametrize('old, new, says', [
    ('a,0.1,2', 'a,1e-1,1', 'the run arch=a,learning_rate=0.1,seed=1 is there twice'),
    ('c0de', 'beef', 'has runs of several codes (beef, c0de), which are never averaged'),
    ('float32', 'bfloat16', 'has runs of several precisions'),
    (',36\r\n', ',36,7\r\n', ''), ('2.5,,', ',,', 'seed=1 is done and has no val_loss'),
    ('a,0.1,', 'a,,', 'some runs have a learning_rate and others have none')])
def test_numbers_of_which_no_table_is_made(report, old, new, says):
    """One line that names the file and the fault"""
    err = report(row('a', [2.5, 2.5], [3.0]), code=1, edit=lambda text: text.replace(old, new, 1))
    assert 'numbers.csv' in err and says in err, err
