"""
Loss against size, and speed-up at equal loss, from the runs.csv of a sweep (sharpness disparity, figures 1, 4, 5 and 10):

    python -m lab.scaling --csv=results/csv/figure5.csv --size=size --base=lr=none

Rows of the sweep's table that differ only in their size make a curve. Each row is taken at its best learning rate.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.scaling')

from configurator import configure

import math
import statistics

from lab.sweep_table import as_text, read_runs, rows_of, split_of

# ----------------------------------------------------------------------------- keys
csv = 'runs.csv'                    # the runs.csv of a sweep
size = 'size'                       # the axis of the sizes
base = ''                           # the curve that the others are compared with: the labels of a row without its size
# -----------------------------------------------------------------------------


def curves_of(rows, size):
    """{the labels of a row without its size, as text: its rows, from the smallest model to the largest}"""
    curves = {}
    for row in rows:
        if size not in row.labels:
            raise ValueError(f'size={size!r}: {row} has no such axis, choose one of {", ".join(row.labels)}')
        if row.best.done:
            curve = ','.join(f'{axis}={label}' for axis, label in row.labels.items() if axis != size)
            curves.setdefault(curve, []).append(row)
    return {curve: sorted(of_curve, key=parameters) for curve, of_curve in curves.items()}


def parameters(row):
    return row.best.done[0]['parameters']


def slope(xs, ys):
    """The slope of the least-squares line and its standard error; NaN where there are too few points"""
    if len(xs) < 2:
        return math.nan, math.nan
    b, a = statistics.linear_regression(xs, ys)
    squared_error = sum((y - a - b * x) ** 2 for x, y in zip(xs, ys))
    squares = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    return b, math.sqrt(squared_error / (len(xs) - 2) / squares) if len(xs) > 2 else math.nan


def speed_up(row, base_row):
    """The iterations of base_row over those after which the mean validation loss of `row` is as low as that at its end;
    0 if it never is. There the rate of `row` has not fallen to its end: a run planned to end there would be faster."""
    return base_row.best.curve[-1][0] / row.best.reaches(base_row.best.mean('val')[0])


def tables(runs, size, base):
    """The loss and the speed-up at each size, and the slope of each curve, as lists of lines. The first is the head."""
    split, curves = split_of(runs), curves_of(rows_of(runs), size)
    if base not in curves:
        raise ValueError(f'base={base!r}: wants one of {"; ".join(curves)}')
    base_at = {row.labels[size]: row for row in curves[base]}
    losses = [['curve', size, 'parameters', 'learning rate', f'{split} loss', 'difference', 'speed-up']]
    slopes = [['curve', 'slope of ln loss over ln parameters', 'standard error']]
    for curve, rows in curves.items():
        means = [row.best.mean(split)[0] for row in rows]
        for row, mean in zip(rows, means):
            base_row, compared = base_at.get(row.labels[size]), ['', '']
            if base_row and base_row is not row:
                faster = speed_up(row, base_row)
                compared = [f'{mean - base_row.best.mean(split)[0]:+.3f}', f'{faster:.2f}' if faster else 'not reached']
            losses.append([curve, row.labels[size], f'{parameters(row):.0f}', row.rate(), row.best.text(split), *compared])
        estimate = slope([math.log(parameters(row)) for row in rows], list(map(math.log, means)))
        slopes.append([curve, *(f'{x:.4f}' if x == x else '' for x in estimate)])
    return losses, slopes


def main():
    configure(globals())
    for table in tables(read_runs(csv), size, base):
        print(f'\n{as_text(table)[0]}')


if __name__ == '__main__':
    main()
