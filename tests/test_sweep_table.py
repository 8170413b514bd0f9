"""lab/sweep/table.py: the tables of a runs.csv, against plain computations."""
from configurator import defaults_of

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import ROOT
from scipy.stats import false_discovery_control, ttest_ind

from lab.sweep.run import largest_rise
from lab.sweep.table import CELLS, Results

KEYS = defaults_of(str(ROOT / 'lab' / 'sweep' / '__main__.py'))
RATES = ('0.1', '0.2', '0.4')


def row(arch, *ends, rates=RATES):
    return [(dict(arch=arch, learning_rate=rate), end) for rate, end in zip(rates, ends)]


@pytest.fixture
def report(tmp_path, monkeypatch):
    """report(points, **keys): the tables, lists of dicts, of a runs.csv of (labels, how each seed's run ended), which is its
    validation loss, (its validation loss, its test loss), or a status. Losses start at 5. `edit` changes the file's text."""
    monkeypatch.chdir(tmp_path)

    def report(points, against='', contrasts='', edit=lambda text: text, **keys):
        rows = []
        for labels, ends in points:
            for seed, end in enumerate(ends, 1):
                val, test = end if isinstance(end, tuple) else (end, '')
                done = not isinstance(val, str)
                rows.append({**labels, 'seed': seed, **dict.fromkeys(CELLS, ''), 'status': 'done' if done else val,
                             'val_losses': '0:5', 'val_loss': val if done else '', 'test_loss': test, 'code': 'c0de',
                             'precision': 'float32'})
        Path('numbers.csv').write_text(edit(pd.DataFrame(rows).fillna('').to_csv(index=False)))
        return [table.to_dict('records') for table in Results('numbers.csv', KEYS | keys).tables(against, contrasts)]

    return report


def test_means_and_counts(report):
    """Of the runs that are done, with the seeds that count, in the order of the grids, and others behind them by name"""
    points = [(dict(arch='s1', n='9'), [2.0, 1.75, 2.5]), (dict(arch='a', n='9'), ['diverged'] * 2),
              (dict(arch='s1', n='10'), [2.25, 2.75, 'diverged', 'failed'])]
    lines = report(points, grids=[dict(arch=['s1'], n=[10, 9])])[0]
    assert [(line['arch'], line['n'], line['validation loss'], line['seeds']) for line in lines] == [
        ('s1', '10', '2.500 ± 0.250, diverged 1/3', '1 to 3'),
        ('s1', '9', f'2.083 ± {np.std([2, 1.75, 2.5], ddof=1) / math.sqrt(3):.3f}', '1 to 3'),
        ('a', '9', 'diverged 2/2', '1 to 2')]


def test_seed_1_alone_chooses_and_the_others_are_compared(report):
    """Though these are better elsewhere; '10.0' is above '0.3'. A seed that chose in another sweep is not compared either"""
    line, = report(row('a', [2.0, 2.5, 3.0], [2.125], [3.0, 1.0, 1.0], rates=('0.3', '10.0', '1e-1')))[0]
    assert (line['learning_rate'], line['validation loss'], line['seeds']) == ('0.3', '2.750 ± 0.250', '2 to 3')
    assert report([(dict(arch='a'), [1.0, 2.0, 2.5])], tuned_elsewhere=True)[0][0]['validation loss'] == '2.250 ± 0.250'
    for third, chosen in (1.75, '0.4'), (2.5, '0.2'):   # three tuning seeds, of points within 0.01: the mean
        line, = report(row('a', [3.0], [2.0, 2.0, 2.0, 2.5], [2.005, 2.0, third, 2.5]), tuning_seeds=3)[0]
        assert (line['learning_rate'].split()[0], line['validation loss'], line['seeds']) == (chosen, '2.500', '4')


def test_two_tuned_keys(report):
    """One row for all of their values, and a rate sensitivity of 2, 1.5 and 2.5 at the decay of 0.3"""
    points = [(dict(weight_decay=decay, learning_rate=rate), losses) for decay, rate, losses in [
        ('0.1', '0.2', [2.0]), ('0.1', '0.4', [3.0]), ('0.3', '0.2', [1.5, 1.75]), ('0.3', '0.4', [2.5]), ('0.3', '0.1', [2.0])]]
    line, = report(points, tuned='weight_decay,learning_rate')[0]
    assert [*line.values()] == ['0.3', '0.2 (edge)', '1.750', '2', '0.500', '0.3']          # 0.1 / 1.0 + 0.1 / 0.5 octaves


def test_test_losses(report):
    """They are compared, where all runs that were done have one, and do not choose"""
    points = [*row('a', [(2.0, 3.0), (2.5, 3.5)], [(3.0, 2.0), (1.0, 2.0)]),
              *row('b', [(2.5, 2.5), (2.5, 2.75)], ['diverged'] * 2)]
    one, two = report(points, 'arch=b')[0]
    assert (one['learning_rate'], one['test loss'][:5]) == ('0.1 (edge)', '3.500') and two['test loss'] == '2.750'
    assert (one['difference'], one['n']) == ('+0.750 (no interval)', '1')
    points[0][1][0] = 2.0                               # one that has none
    assert 'validation loss' in report(points)[0][0]


@pytest.mark.parametrize('ends, best, sensitivity', [
    (([1.0], [2.0], [4.5]), '0.1 (edge)', '1.500'), (([2.0], [1.0], ['diverged', 1.0]), '0.2', '1.667'),
    (([2.0], [1.0], ['failed']), '0.2 (edge)', '0.500'), (([1.0],), '0.1', '')])
def test_the_edge_of_a_grid_and_the_rate_sensitivity(report, ends, best, sensitivity):
    """By hand. A rate that was tried and has diverged is no edge, and counts as 5, where all start. A single rate is no grid"""
    line, other = report([*row('a', *ends), *row('b', [1.0], [1.25])])[0]
    assert (line['learning_rate'], line['rate sensitivity']) == (best, sensitivity)
    assert (other['rate sensitivity'], other['tolerance in octaves']) == ('0.125', '≥ 0.4')         # 0.1 / 0.25


def test_the_rule_by_which_a_run_counts_as_diverged(report):
    """By its last loss, and by the largest rise of its training loss, of means over 5 values above the lowest before"""
    for rule, limit, lost in ('loss', 9, True), ('loss', 10, False), ('rise', 0.8, False), ('rise', 0.6, True):
        (line,), = report(row('a', [2.5, 9.5]), **{f'diverged_{rule}': limit},
                          edit=lambda text: text.replace(',9.5,,,', ',9.5,,0.7,'))
        assert (line['validation loss'] == '2.500, diverged 1/2') == lost
    for losses, rise in ([5, 4, 3, 2], 0), ([5, 2, 4, 3], 2), ([2, 5, 1, 3], 3), ([], math.nan):
        logged = [loss + noise for loss in losses for noise in (-0.5, 0.5, 0, 0.25, -0.25)] + [9.0]
        assert largest_rise(logged) == pytest.approx(rise, nan_ok=True)


def test_contrasts_and_against(report):
    """A difference of differences and a difference, and all rows against one, each with p-values that are corrected over its
    table. Each row has a size of its own, and so a variance of its own, for which the test is SciPy's"""
    made = np.random.default_rng(0).normal(2, 0.1, (4, 5)).round(4)
    names = [f'arch=a{i},size=s{i}' for i in range(4)]
    texts = [f'{names[0]} - {names[1]} - {names[2]} + {names[3]}', f'{names[3]} - {names[0]}']
    points = [(dict(arch=f'a{i}', size=f's{i}'), list(losses)) for i, losses in enumerate(made)]
    lines, contrasts = report(points, names[0], '; '.join(texts))
    tests = [ttest_ind(made[i], made[0], equal_var=False) for i in (1, 2, 3)]
    for line, losses, test, p in zip(lines[1:], made[1:], tests, false_discovery_control([test.pvalue for test in tests])):
        low, high = test.confidence_interval(0.95)
        wanted = f'{losses.mean() - made[0].mean():+.3f} [{low:+.3f}, {high:+.3f}]'.replace('-', '−')
        assert (line['difference'], line['n'], line['p'], line['corrected p']) == (wanted, '5', f'{test.pvalue:.2g}', f'{p:.2g}')
    mean = made.mean(axis=1) @ [1, -1, -1, 1]
    assert contrasts[0]['difference'].startswith(f'{mean:+.3f} ['.replace('-', '−'))
    assert [line['contrast'] for line in contrasts] == texts and contrasts[1]['difference'] == lines[3]['difference']


@pytest.mark.parametrize('old, new, says', [
    ('a,0.1,2', 'a,1e-1,1', 'the run arch=a,learning_rate=0.1,seed=1 is there twice'),
    ('c0de', 'beef', 'has runs of several codes .beef, c0de., which are never averaged'),
    ('float32', 'bfloat16', 'has runs of several precisions')])
def test_numbers_of_which_no_table_is_made(report, old, new, says):
    with pytest.raises(ValueError, match=f'numbers.csv.*{says}'):
        report(row('a', [2.5, 2.5], [3.0]), edit=lambda text: text.replace(old, new, 1))
