"""
Print loss against size, and speed-up at equal loss, from a sweep's runs.csv (sharpness disparity, figures 1, 4, 5 and 10):

    python -m lab.scaling --csv=results/csv/figure5.csv --size=size --base=lr=none

Rows of the sweep's table that differ only in size form a curve. Each row counts at its best learning rate.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.scaling')

from configurator import configure

import math

import numpy as np
import pandas as pd
from scipy.stats import linregress

from lab.sweep.table import as_text, mean_loss, read_runs, row_name, rows_of, split_of

# ----------------------------------------------------------------------------- keys
csv = 'runs.csv'                    # the runs.csv of a sweep
size = 'size'                       # the axis of sizes
base = ''                           # the curve to compare the others with: a row's labels without its size
# -----------------------------------------------------------------------------


def tables(runs, size, base):
    """Return two frames of texts: the loss and the speed-up at each size, and the slope of each curve.

    The speed-up is the number of iterations of the base's run, divided by the number at which a row's mean validation loss is
    as low as the base's at its end. The row's learning rate has not fully decayed there: a run planned to end there would be
    faster.
    """
    split, curves = split_of(runs), {}
    for row in rows_of(runs):
        if size not in row.labels:
            raise ValueError(f'size={size!r}: {row} has no such axis, choose one of {", ".join(row.labels)}')
        if len(row.done):
            curve = row_name({axis: label for axis, label in row.labels.items() if axis != size})
            curves.setdefault(curve, {})[row.labels[size]] = row
    if base not in curves:
        raise ValueError(f'base={base!r}: wants one of {"; ".join(curves)}')
    losses, slopes = [], []
    for curve, rows in curves.items():
        points = []                                     # ln parameters, ln loss
        for label, row in sorted(rows.items(), key=lambda item: item[1].done.parameters.iloc[0]):
            parameters, mean = row.done.parameters.iloc[0], mean_loss(row.done, split)[0]
            points.append((math.log(parameters), math.log(mean)))
            line = [curve, label, f'{parameters:.0f}', row.rate_text(), row.text(split), '', '']
            if curve != base and label in curves[base]:
                other = curves[base][label]
                reached = row.reaches(mean_loss(other.done, 'val')[0])
                line[5:] = (f'{mean - mean_loss(other.done, split)[0]:+.3f}',
                            f'{other.curve()[-1][0] / reached:.2f}' if reached < math.inf else 'not reached')
            losses.append(line)
        fit = linregress(*np.transpose(points)) if len(points) > 1 else None
        slopes.append([curve, f'{fit.slope:.4f}' if fit else '', f'{fit.stderr:.4f}' if len(points) > 2 else ''])
    head = ['curve', size, 'parameters', 'learning rate', f'{split} loss', 'difference', 'speed-up']
    return (pd.DataFrame(losses, columns=head),
            pd.DataFrame(slopes, columns=['curve', 'slope of ln loss over ln parameters', 'standard error']))


def main():
    configure(globals())
    for table in tables(read_runs(csv), size, base):
        print(f'\n{as_text(table)[0]}')


if __name__ == '__main__':
    main()
