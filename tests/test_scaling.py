"""lab/scaling.py on runs whose losses follow a power law of their size"""
import numpy as np
from helpers import call, runs_csv

from lab.scaling import tables
from lab.sweep.table import CELLS, read_runs

SIZES = {'small': 1e5, 'middle': 2e5, 'large': 8e5}
RUNS = dict(status='done', iterations='100', tokens_per_iteration='1', test_loss='', seconds='1')


def run(lr, size, loss, curve, seed='1'):
    return dict.fromkeys(CELLS, '') | RUNS | dict(lr=lr, size=size, seed=seed, parameters=str(SIZES[size]), val_loss=str(loss),
                                                  val_losses=' '.join(f'{it}:{loss}' for it, loss in curve))


def power_law(lr, power, halfway):
    """Runs that have lost 2 − loss by the end, and the share `halfway` of it at half of the iterations"""
    for size, n in SIZES.items():
        loss = 2 * (n / 1e5) ** power / 1.25
        yield run(lr, size, loss, [(0, 2), (50, 2 - halfway * (2 - loss)), (100, loss)])


ROWS = [*power_law('one', -0.1, 0.5), *power_law('two', -0.2, 0.9)]


def lines(place, rows):
    (place / 'runs.csv').write_text(runs_csv(rows))
    return [table.values.tolist() for table in tables(read_runs(str(place / 'runs.csv')), 'size', 'lr=one')]


def test_slopes_losses_and_speed_up(tmp_path):
    """The second curve falls to the first one's loss where the line between its evaluations crosses that"""
    losses, slopes = lines(tmp_path, ROWS)
    assert [line[:2] for line in slopes] == [['lr=one', '-0.1000'], ['lr=two', '-0.2000']]
    assert [line[1] for line in losses] == ['small', 'middle', 'large'] * 2 and all(line[5:] == ['', ''] for line in losses[:3])
    for line, one, two in zip(losses[3:], ROWS, ROWS[3:]):
        curve = [[float(x) for x in point.split(':')] for point in two['val_losses'].split()]
        iterations, values = zip(*curve)
        crosses = np.interp(-float(one['val_loss']), [-v for v in values], iterations)
        assert line[5:] == [f'{float(two["val_loss"]) - float(one["val_loss"]):+.3f}', f'{100 / crosses:.2f}']


def test_a_loss_that_is_not_reached_and_a_slope_with_its_error(tmp_path):
    """The slope is that of NumPy's fit"""
    one = [run('one', size, loss, [(0, 2), (100, loss)]) for size, loss in zip(SIZES, (1.0, 0.9, 0.7))]
    losses, slopes = lines(tmp_path, [*one, run('two', 'small', 1.5, [(0, 2), (100, 1.5)])])
    assert losses[-1][5:] == ['+0.500', 'not reached'] and slopes[1] == ['lr=two', '', '']
    (slope, _), covariance = np.polyfit(np.log([*SIZES.values()]), np.log([1.0, 0.9, 0.7]), 1, cov=True)
    assert slopes[0] == ['lr=one', f'{slope:.4f}', f'{covariance[0, 0] ** 0.5:.4f}']


def test_the_command(tmp_path):
    (tmp_path / 'runs.csv').write_text(runs_csv(ROWS))
    assert 'slope of ln loss' in call('lab.scaling', '--base=lr=one', cwd=tmp_path)
    assert 'wants one of lr=one; lr=two' in call('lab.scaling', '--base=lr=three', cwd=tmp_path, code=1)
