"""
lab/sweep_table.py: the tables that lab/sweep.py makes of a runs.csv, against plain computations. tests/test_sweep.py has those
of runs' folders.
"""
import csv
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import run_here

from lab.statistics import contrast, samples
from lab.sweep_table import largest_rise

OWN = ['seed', 'status', 'iterations', 'parameters', 'tokens_per_iteration', 'val_losses', 'val_loss', 'test_loss',
       'largest_rise', 'code', 'data', 'keys', 'commit', 'machine', 'attention_kernel', 'precision', 'torch', 'seconds']


@pytest.fixture
def report(tmp_path, monkeypatch):
    """report(points, *arguments): the output for a runs.csv of (labels, how each seed's run ended), which is its validation loss,
    (its validation loss, its test loss), [its validation losses at 0, 8 and 40], or a status. Others start at a loss of 5."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('lab.plot.draw', lambda *picture: None)

    def report(points, *arguments, code=0):
        axes = list(dict.fromkeys(axis for labels, _ in points for axis in labels))
        with open('numbers.csv', 'w', encoding='utf-8', newline='') as f:
            table = csv.DictWriter(f, [*axes, *OWN], restval='')
            table.writeheader()
            for labels, ends in points:
                for seed, end in enumerate(ends, 1):
                    val, test = end if isinstance(end, tuple) else (end, '')
                    losses = val if isinstance(val, list) else []
                    val = losses[-1] if losses else val
                    done = not isinstance(val, str)
                    curve = ' '.join(f'{it}:{loss}' for it, loss in zip((0, 8, 40), losses)) or f'0:5 20:{val}' if done else '0:5'
                    table.writerow(dict(labels, seed=seed, status='done' if done else val, val_losses=curve,
                                        val_loss=val if done else '', test_loss=test, seconds=36))
        found, out, err = run_here('lab.sweep', '--report=numbers.csv', '--out_dir=made', *arguments)
        assert found == code, out + err
        return err if code else out

    return report


def tables(folder='made'):
    """The tables of table.md, each a list of dicts"""
    found = []
    for part in (Path(folder) / 'table.md').read_text(encoding='utf-8').split('\n\n'):
        head, _, *lines = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in part.strip().splitlines()]
        found.append([dict(zip(head, line)) for line in lines])
    return found


RATES = ('0.1', '0.2', '0.4')


def row(arch, *ends, rates=RATES):
    return [(dict(arch=arch, learning_rate=rate), end) for rate, end in zip(rates, ends)]


def test_means_and_counts(report):
    """Of the runs that are done; in table.csv too, with the axes that a row lacks empty"""
    points = [(dict(arch='s1', optim='sgdw'), [2.0, 1.75, 2.5]), (dict(arch='s5'), ['diverged'] * 2),
              (dict(arch='s1', optim='a, b'), [2.25, 2.75, 'diverged', 'failed'])]
    out = report(points)
    assert '0.09 hours' in out and [line['validation loss'] for line in tables()[0]] == [
        f'2.083 ± {np.std([2, 1.75, 2.5], ddof=1) / math.sqrt(3):.3f}', 'diverged 2/2', '2.500 ± 0.250, diverged 1/4, failed 1/4']
    text = Path('made/table.txt').read_text(encoding='utf-8').splitlines()
    assert [line.split() for line in text] == [['arch', 'optim', 'validation', 'loss'], *(
        ' '.join(line.values()).split() for line in tables()[0])]
    with open('made/table.csv', encoding='utf-8', newline='') as f:
        found = [[row[key] for key in ('arch', 'optim', 'done', 'diverged', 'failed')] for row in csv.DictReader(f)]
    assert found == [['s1', 'sgdw', '3', '0', '0'], ['s5', '', '0', '2', '0'], ['s1', 'a, b', '2', '1', '1']]


# ----------------------------------------------------------------------------- best rates

def test_test_losses(report):
    """They are reported, where all runs that were done have one, of the rate that is best on the validation split of seed 1"""
    points = [*row('a', [(2.0, 3.0), (2.5, 3.5)], [(3.0, 2.0), (1.0, 2.0)]),
              *row('b', [(2.5, 2.5), (2.5, 2.75)], ['diverged'] * 2)]
    out = report(points)
    assert 'test loss at the end, ' in out and 'seed 1 chose the rates by validation loss' in out
    assert tables()[0][0] == {'arch': 'a', 'lr 0.1': '3.500 *', 'lr 0.2': '2.000'}
    report(points, '--select=best', '--against=arch=b')
    one, two = tables()[0]
    assert (one['learning_rate'], one['test loss']) == ('0.1 (edge)', '3.500') and two['test loss'] == '2.750'
    assert (one['difference'], one['seeds'], one['iterations to its loss']) == ('+0.750', '1', '20 (100%)')
    points[0][1][0] = 2.0                               # one that has none
    assert 'validation loss at the end, ' in report(points) and tables()[0][0]['lr 0.1'] == '2.500 *'


def test_seed_1_alone_chooses(report):
    """Though the other seeds are better elsewhere; where it is alone, its loss is shown; rates stand in their order as numbers"""
    report(row('a', [2.0, 2.5, 3.0], [2.125], [3.0, 1.0, 1.0], rates=('0.3', '10.0', '1e-1')))
    wanted = {'arch': 'a', 'lr 1e-1': '1.000 ± 0.000', 'lr 0.3': '2.750 ± 0.250 *', 'lr 10.0': '2.125'}
    assert list(tables()[0][0].items()) == list(wanted.items())


@pytest.mark.parametrize('losses, best', [((1, 2, 3), '0.1 (edge)'), ((3, 2, 1), '0.4 (edge)'), ((2, 1, 3), '0.2'),
                                          ((2, 1, 'diverged'), '0.2'), ((1,), '0.1'), ((2, 1, 'failed'), '0.2 (edge)')])
def test_the_edge_of_a_grid(report, losses, best):
    """Where a rate that was tried has diverged is no edge, and a single rate is no grid"""
    report([*row('a', *([loss] for loss in losses)), *row('b', [1], [1])], '--select=best')
    assert tables()[0][0]['learning_rate'] == best


def test_the_rule_by_which_a_run_counts_as_diverged(report):
    """By its last loss, and by the largest rise of its training loss"""
    report(row('a', [2.5, 2.0], [3.0, 9.5]), '--diverged_loss=9')
    assert tables()[0][0]['lr 0.2'] == 'diverged 1/2'
    text = Path('numbers.csv').read_text()
    Path('numbers.csv').write_text(text.replace(',2.5,,,', ',2.5,,0.7,', 1))
    assert 'diverged 1/2' not in run_here('lab.sweep', '--report=numbers.csv', '--diverged_rise=0.8')[1]
    assert 'diverged 1/2' in run_here('lab.sweep', '--report=numbers.csv', '--diverged_rise=0.6')[1]


@pytest.mark.parametrize('losses, rise', [([5, 4, 3, 2], 0), ([5, 2, 4, 3], 2), ([2, 5, 1, 3], 3), ([3], math.nan),
                                          ([], math.nan)])
def test_the_largest_rise(losses, rise):
    """Of means over 5 values above the lowest before; what is left at the end does not count"""
    logged = [loss + noise for loss in losses for noise in (-0.5, 0.5, 0, 0.25, -0.25)] + [9.0]
    assert largest_rise(logged) == pytest.approx(rise, nan_ok=True)


# ----------------------------------------------------------------------------- rate sensitivity

@pytest.mark.parametrize('ends, wanted', [
    (([1.0], [2.0], [4.5]), '1.500'),                   # (0 + 1 + 3.5) / 3
    (([1.0], [2.0], [9.0]), '1.667'), (([1.0], [2.0], ['diverged']), '1.667'),       # both count as 5, where all start
    (([1.0], [2.0], [[5.0, 9.0, 4.5]]), '1.500'),       # a run that spiked, and ended lower
    (([1.0, 9.0], [2.0, 'diverged'], [4.5]), '1.500'),  # of seed 1 alone
    (([1.0], [2.0], ['failed']), ''), (([1.0],), '')])
def test_rate_sensitivity(report, ends, wanted):
    """By hand; none where a rate was not trained to the end, or is alone. Of fewer rates than others, how many is said"""
    report([*row('a', *ends), *row('b', [1.0], [1.25])], '--select=best', '--diverged_loss=4.75')
    fewer = ' (2 rates)' * (len(ends) > 2)
    assert [line['rate sensitivity'] for line in tables()[0]] == [wanted, f'0.125{fewer}']
    assert tables()[0][1]['tolerance in octaves'] == f'≥ 0.4{fewer}'        # 0.1 / 0.25
    report([*row('a', *ends), *row('b', [1.0], [1.25])])
    assert 'rate sensitivity' not in tables()[0][0]


def test_no_rate_sensitivity_without_several_rates(report):
    report([(dict(arch='a'), [1.0]), (dict(arch='b'), [1.0])], '--select=best')
    assert list(tables()[0][0]) == ['arch', 'validation loss']


# ----------------------------------------------------------------------------- comparisons

SEEDS = np.random.default_rng(0).normal(2, 0.1, (4, 5)).round(4)
NAMES = [dict(arch=arch, optim=optim) for arch in ('s1', 's5') for optim in ('sgdw', 'adamw')]
FOUR = [(labels, list(losses)) for labels, losses in zip(NAMES, SEEDS)]
ROWS = [','.join(f'{axis}={label}' for axis, label in labels.items()) for labels in NAMES]


def cells(weights):
    """(p, the cells) of a contrast of SEEDS, {its row: weight}"""
    e = contrast(weights, dict(enumerate(samples(SEEDS.tolist()))))
    return e.p, {'difference': f'{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]', 'seeds': '5', 'p': f'{e.p:.2g}',
                 'detectable': f'{e.detectable:.3f}'}


def test_contrasts(report):
    """A difference of differences and a difference, with p-values that are corrected over the two. The four rows are of one size,
    and those of one optimizer are moderated together"""
    points = [(dict(labels, optim='sgdw', setting=labels['optim']), ends) for labels, ends in FOUR]
    rows = [','.join(f'{axis}={label}' for axis, label in labels.items()) for labels, _ in points]
    texts = [f'{rows[0]} - {rows[1]} - {rows[2]} + {rows[3]}', f'{rows[3]} - {rows[0]}']
    report(points, f'--contrast={texts[0]}; {texts[1]}')
    (p, one), (q, two) = cells({0: 1, 1: -1, 2: -1, 3: 1}), cells({3: 1, 0: -1})
    low, high = 2 * min(p, q), max(p, q)
    corrected = [f'{high if x == high else min(low, high):.2g}' for x in (p, q)]
    assert tables()[1] == [{'contrast': text, **row, 'corrected p': c} for text, row, c in zip(texts, (one, two), corrected)]


def test_against(report):
    """Every other row, over all its seeds; p-values are corrected over the table"""
    report([({'arch': str(i)}, ends) for i, (_, ends) in enumerate(FOUR)], '--against=arch=0')
    lines = tables()[0]
    tests = [cells({i: 1, 0: -1}) for i in (1, 2, 3)]
    assert lines[0]['difference'] == '' and [{key: line[key] for key in one} for line, (_, one) in zip(lines[1:], tests)] == [
        one for _, one in tests]
    ps = sorted(p for p, _ in tests)
    wanted = {p: min(ps[j] * 3 / (j + 1) for j in range(i, 3)) for i, p in enumerate(ps)}
    assert [line['corrected p'] for line in lines[1:]] == [f'{wanted[p]:.2g}' for p, _ in tests]


def test_runs_that_diverged_do_not_count(report):
    report([(dict(arch='a'), [1.0, 'diverged', 3.0]), (dict(arch='b'), [1.5, 0.0, 4.0])], '--against=arch=b')
    line = tables()[0][0]
    assert line['difference'].startswith('+0.167 [') and line['seeds'] == '2'


@pytest.mark.parametrize('losses, says', [
    ([[3.0, 2.25, 1.25], [3.0, 1.75, 0.75]], '16 (40%)'),       # 3, 2, 1 on average
    ([[3.0, 1.0, 2.0], [3.0, 1.0, 1.0], 'diverged'], '5 (12%)'),    # where it gets there first
    ([[3.0, 2.5, 1.75]], '40 (100%)'),
    ([[3.0, 2.5, 1.7501]], 'not reached')])
def test_iterations_to_the_others_loss(report, losses, says):
    """Between the evaluations at 0, 8 and 40 on a straight line; the other ends at 1.75"""
    report([(dict(arch='a'), losses), (dict(arch='b, c'), [[3.0, 1.0, 2.0], [3.0, 1.5, 1.5]])], '--against=arch=b, c')
    assert [line['iterations to its loss'] for line in tables()[0]] == [says, '']


@pytest.mark.parametrize('arguments, says', [
    (['--against=arch=s1'], "against='arch=s1' names 2 rows of the table, wants one of: arch=s1,optim=sgdw; arch=s1,optim=adamw"),
    (['--against=s1'], "against='s1' names 0 rows"),
    (['--contrast=arch=s1,optim=sgdw + arch=s5,optim=sgdw'], 'wants as many rows with + as with -'),
    (['--contrast=arch=s1,optim=sgdw'], 'wants as many rows with + as with -'),
    (['--contrast=arch=s1,optim=sgdw - arch=s9,optim=sgdw'], "contrast='arch=s9,optim=sgdw' names 0 rows of the table"),
    (['--seeds=5'], 'seeds=5: report only makes the table again'),
    (['--extend=1'], 'extend=1: report only makes')])
def test_what_a_report_refuses(report, arguments, says):
    assert says in report(FOUR, *arguments, code=1) and not Path('made').exists()


# ----------------------------------------------------------------------------- runs.csv

@pytest.mark.parametrize('old, new, says', [
    ('done', 'gone', 'status=gone: wants one of done, diverged, failed'), ('36', '', "'' is no finite number"),
    ('0:5 20:', '0:5 20:x', "is no finite number"), ('seed', 'sead', "'seed'"), (',36', '', ''),
    (',36', ',36,7', 'another length'),
    (',2.5,', ',,', 'the run arch=a,learning_rate=0.1,seed=1 is done and has no val_loss'),
    (',2.5,', ',inf,', "'inf' is no finite number"),
    ('a,0.1,', 'a,,', 'some runs have a learning_rate and others have none'),
    ('a,0.1,', 'a,fast,', "'fast' is no finite number")])
def test_a_damaged_file_of_numbers(report, old, new, says):
    """One line that names the file"""
    report(row('a', [2.5, 2.5], [3.0]))
    Path('numbers.csv').write_text(Path('numbers.csv').read_text().replace(old, new, 1))
    code, _, err = run_here('lab.sweep', '--report=numbers.csv')
    assert code == 1 and err.startswith('error: ') and err.count('\n') == 1 and 'numbers.csv' in err and says in err, err


def test_no_file_of_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_here('lab.sweep', '--report=nowhere.csv')[2].startswith('error: there is no nowhere.csv: ')
