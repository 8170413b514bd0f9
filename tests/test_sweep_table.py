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
from scipy.stats import ttest_1samp

from lab.statistics import smallest_effect

OWN = ['seed', 'status', 'iterations', 'parameters', 'tokens_per_iteration', 'val_losses', 'val_loss', 'test_loss', 'commit',
       'machine', 'attention_kernel', 'precision', 'torch', 'seconds']


@pytest.fixture
def report(tmp_path, monkeypatch):
    """report(points, *arguments): the output for a runs.csv of (labels, how each seed's run ended), which is its validation loss,
    (its validation loss, its test loss), or a status. All start at a loss of 5; one that was stopped had 4 at iteration 10."""
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
                    done = not isinstance(val, str)
                    curve = dict(stopped='0:5 10:4', missing='').get(val, f'0:5 20:{val}' if done else '0:5')
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


# ----------------------------------------------------------------------------- best rates

def test_test_losses(report):
    """They are reported, where all runs that were done have one, of the rate that is best on the validation split"""
    points = [*row('a', [(2.0, 3.0), (2.5, 3.5)], [(3.0, 2.0), (3.0, 2.0)]),
              *row('b', [(2.5, 2.5), (2.5, 2.75)], ['diverged'] * 2)]
    out = report(points)
    assert 'test loss at the end, ' in out and 'learning rates were chosen by validation loss' in out
    assert tables()[0][0] == {'arch': 'a', 'lr 0.1': '3.250 ± 0.250 *', 'lr 0.2': '2.000 ± 0.000'}
    report(points, '--select=best', '--against=arch=b')
    one, two = tables()[0]
    assert (one['learning_rate'], one['test loss']) == ('0.1 (edge)', '3.250 ± 0.250') and two['test loss'] == '2.625 ± 0.125'
    assert one['difference'].startswith('+0.625 [') and one['iterations to its loss'] == '18 (91%)'      # 5 − 2.75 x/20 = 2.5
    points[0][1][0] = 2.0                               # one that has none
    out = report(points)
    assert 'validation loss at the end, ' in out and 'test' not in out and tables()[0][0]['lr 0.1'] == '2.250 ± 0.250 *'
    with open('made/table.csv', encoding='utf-8') as f:
        assert [float(point['test_loss']) for point in csv.DictReader(f)][1:3] == [2.0, 2.625]


def test_the_best_rate_is_chosen_by_the_seeds_that_all_rates_have(report):
    """As halving leaves them: the best of the first seed is the best, though its other seeds are worse"""
    report(row('a', ['stopped'], [2.0, 2.5, 2.5], [2.125]))
    assert tables()[0] == [{'arch': 'a', 'lr 0.1': 'stopped at 10: 4.000', 'lr 0.2': '2.333 ± 0.167 *', 'lr 0.4': '2.125'}]


@pytest.mark.parametrize('losses, best', [((1, 2, 3), '0.1 (edge)'), ((3, 2, 1), '0.4 (edge)'), ((2, 1, 3), '0.2'),
                                          ((2, 1, 'diverged'), '0.2'), ((2, 1, 'stopped'), '0.2'), ((1,), '0.1'),
                                          ((2, 1, 'failed'), '0.2 (edge)'), ((2, 1, 'missing'), '0.2 (edge)')])
def test_the_edge_of_a_grid(report, losses, best):
    """Where a rate that was tried has diverged is no edge, and a single rate is no grid"""
    report([*row('a', *([loss] for loss in losses)), *row('b', [1], [1])], '--select=best')
    assert tables()[0][0]['learning_rate'] == best


# ----------------------------------------------------------------------------- rate sensitivity

@pytest.mark.parametrize('ends, wanted', [
    (([1.0], [2.0], [4.5]), '1.500'),                   # (0 + 1 + 3.5) / 3
    (([1.0], [2.0], [9.0]), '1.667'), (([1.0], [2.0], ['diverged']), '1.667'),       # both count as 5, where all start
    (([1.0, 2.0], [3.0, 'diverged'], [3.0, 2.0]), '1.167'),     # of the means 1.5, 4, 2.5
    (([1.0], [2.0], ['stopped']), ''), (([1.0], [2.0], ['failed']), ''), (([1.0], [2.0], ['missing']), ''), (([1.0],), '')])
def test_rate_sensitivity(report, ends, wanted):
    """By hand; none where a rate was not trained to the end, or is alone"""
    report([*row('a', *ends), *row('b', [1.0], [1.25])], '--select=best')
    assert [line['rate sensitivity'] for line in tables()[0]] == [wanted, '0.125']
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


def of(d):
    """The cells of the differences d"""
    test = ttest_1samp(d, 0)
    low, high = test.confidence_interval(0.95)
    return test.pvalue, {'difference': f'{d.mean():+.3f} [{low:+.3f}, {high:+.3f}]', 'seeds': '5', 'p': f'{test.pvalue:.2g}',
                         'detectable': f'{smallest_effect(d.std(ddof=1), 5):.3f}'}


def test_contrasts(report):
    """A difference of differences and a difference, with p-values that are corrected over the two"""
    texts = [f'{ROWS[0]} - {ROWS[1]} - {ROWS[2]} + {ROWS[3]}', f'{ROWS[3]} - {ROWS[0]}']
    report(FOUR, f'--contrast={texts[0]}; {texts[1]}')
    (p, one), (q, two) = of(SEEDS[0] - SEEDS[1] - SEEDS[2] + SEEDS[3]), of(SEEDS[3] - SEEDS[0])
    low, high = 2 * min(p, q), max(p, q)
    corrected = [f'{high if x == high else min(low, high):.2g}' for x in (p, q)]
    assert tables()[1] == [{'contrast': text, **cells, 'corrected p': c} for text, cells, c in zip(texts, (one, two), corrected)]


def test_against_is_paired(report):
    report(FOUR, f'--against={ROWS[0]}')
    lines = tables()[0]
    tests = [of(losses - SEEDS[0]) for losses in SEEDS[1:]]
    assert lines[0]['difference'] == '' and [{key: line[key] for key in one} for line, (_, one) in zip(lines[1:], tests)] == [
        one for _, one in tests]
    ps = sorted(p for p, _ in tests)
    wanted = {p: min(ps[j] * 3 / (j + 1) for j in range(i, 3)) for i, p in enumerate(ps)}
    assert [line['corrected p'] for line in lines[1:]] == [f'{wanted[p]:.2g}' for p, _ in tests]


def test_seeds_that_only_one_row_has_do_not_count(report):
    report([(dict(arch='a'), [1.0, 'diverged', 3.0, 9.0]), (dict(arch='b'), [1.5, 0.0, 4.0])], '--against=arch=b')
    line = tables()[0][0]
    assert line['difference'].startswith('-0.750 [') and line['seeds'] == '2'


@pytest.mark.parametrize('arguments, says', [
    (['--contrast=arch=s1,optim=sgdw + arch=s5,optim=sgdw'], 'wants as many rows with + as with -'),
    (['--contrast=arch=s1,optim=sgdw'], 'wants as many rows with + as with -'),
    (['--contrast=arch=s1,optim=sgdw - arch=s9,optim=sgdw'], "contrast='arch=s9,optim=sgdw' names 0 rows of the table"),
    (['--seeds=5'], 'seeds=5: report only makes the table again'), (['--halving=0.5'], 'halving=0.5: report only makes'),
    (['--extend=1'], 'extend=1: report only makes')])
def test_what_a_report_refuses(report, arguments, says):
    assert says in report(FOUR, *arguments, code=1) and not Path('made').exists()


# ----------------------------------------------------------------------------- runs.csv

@pytest.mark.parametrize('old, new, says', [
    ('done', 'gone', 'status=gone: wants one of done, diverged, failed, stopped, missing'), ('36', '', "'' is no finite number"),
    ('0:5 20:', '0:5 20:x', "is no finite number"), ('seed', 'sead', "'seed'"), (',36', '', ''),
    (',36', ',36,7', 'another length'),
    (',2.5,', ',,', 'the run a,0.1,1 is done and has no val_loss'), (',2.5,', ',inf,', "'inf' is no finite number"),
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
    assert run_here('lab.sweep', '--report=nowhere.csv')[2] == 'error: there is no nowhere.csv\n'


def test_diverged_loss_of_a_file_of_numbers(report):
    report(row('a', [2.5, 2.0], [3.0, 9.5]), '--diverged_loss=9')
    assert tables()[0][0]['lr 0.2'] == '3.000, diverged 1/2' and not math.isnan(float(tables()[0][0]['lr 0.1'][:5]))
