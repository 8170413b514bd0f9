"""The picture of sweeps, from their table.csv."""
import math
import os

from lab.plot.lines import Curve, Lines, Panel, run_style
from lab.plot.names import MOST, folder_name

# columns of numbers in a sweep's table.csv; all others are axes
NUMBERS = ('learning_rate', 'tuning_loss', 'val_loss', 'standard_error', 'done', 'diverged', 'failed', 'missing', 'stopped',
           'test_loss', 'test_standard_error')


def read_points(folder):
    """Read a sweep's table.csv → a frame with each point's `rate` and whether it is `lost` (every run diverged), and the names
    of the axes."""
    import pandas  # here, for the other pictures do without
    path, make = os.path.join(folder, 'table.csv'), f'make it with  python -m lab.sweep --report={folder}'
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: {make}')
    try:
        points = pandas.read_csv(path, dtype=str, keep_default_na=False)
        points = points.astype({key: float for key in points if key in NUMBERS}).reset_index(drop=True)
        points.loc[points.done == 0, 'val_loss'] = math.nan
        lost = (points.diverged > 0) & (points.done == 0)
    except (ValueError, AttributeError) as error:
        raise ValueError(f'{path} is damaged, {make}') from error
    axes, rate = [axis for axis in points if axis not in NUMBERS], points.get('learning_rate', 0.0)
    return points.assign(rate=rate, lost=lost, tuning_loss=points.get('tuning_loss', math.nan)), axes


def rows_of(points, axes):
    """Group points into the rows of a sweep's table → {name: points in ascending order of the learning rate}."""
    labels = points[axes].to_numpy().tolist()
    names = [', '.join(filter(None, row)) for row in labels]
    if len(set(names)) < len(set(map(tuple, labels))):
        names = [', '.join(label or '–' for label in row) for row in labels]
    return {name: row.sort_values('rate') for name, row in points.groupby(names, sort=False)}


def split_points(points, axes):
    """Return {title: points} and the axes that stay in the names. More than MOST rows are split by the axis that leaves each part
    the fewest learning rates, and then by that with the fewest values."""
    many = len(axes) > 1 and len(rows_of(points, axes)) > MOST
    ways = [(points.groupby(axis).rate.nunique().max(), points[axis].nunique(), i) for i, axis in enumerate(axes)
            if many and 1 < points[axis].nunique() <= MOST]
    if not ways:
        return {'': points}, axes
    axis = axes[min(ways)[-1]]
    parts = {f'{axis}: {label or "none"}': part for label, part in points.groupby(axis, sort=False)}
    return parts, [other for other in axes if other != axis]


def mean_curve(x, points, **style):
    """Return the curve of the mean losses, with standard errors as bars."""
    loss, error = points.val_loss, points.standard_error.fillna(0.0)
    return Curve([*x], [*loss], low=[*(loss - error)], high=[*(loss + error)], bars=True, **style)


def rate_panel(title, rows, y, styles, heights):
    """Plot loss against learning rate, a curve per row. Crosses stand at `heights`, so that none hides another."""
    rates, curves, lost = sorted({rate for row in rows.values() for rate in row.rate}), [], []
    for name, row in rows.items():
        style = styles.setdefault(name, run_style(len(styles)))
        if row.tuning_loss.notna().any():
            curves.append(Curve([*row.rate], [*row.tuning_loss], name, **style))
            style = style | dict(dash='', marker='*')
        curves.append(mean_curve(row.rate, row, name=name, **style))
        for rate in row.rate[row.lost]:
            curves.append(Curve([rate], [heights[lost.count(rate)]], name, style['color'], 'x', dash='', width=0))
            lost.append(rate)
    ticks = {rate: f'{rate:g}' for rate in rates}
    return Panel(curves, 'learning rate', y, title, log='x' * (rates[0] > 0), ticks=ticks, height=2.6)


def dots_panel(points, names, x, y, heights):
    """Plot a point per row of a sweep with one learning rate."""
    lost = [i for i, is_lost in enumerate(points.lost) if is_lost]
    curves = [mean_curve(range(len(points)), points, marker='o', dash=''),
              Curve(lost, heights[:1] * len(lost), marker='x', dash='')]
    return Panel(curves, x, y, ticks=dict(enumerate(names)), height=3.0)


def plot_sweep(folders):
    """The validation loss against the learning rate, a curve for each row of the sweep's table.

    Bars are standard errors over seeds. If one seed chose the rates, the curve is that seed's, and a star is the mean of the
    others. A cross marks a point at which every run diverged. More than eight rows are split into panels by an axis. A sweep of
    one learning rate has a point for each row."""
    panels, styles, named, notes = [], {}, {}, {}
    for folder in folders:
        points, axes = read_points(folder)
        about = {'\n(line: the seed that chose the rate, star: the others)': points.tuning_loss.notna().any(),
                 '\n(bars: standard errors over seeds)': (points.standard_error > 0).any(),
                 '\n(×: every run diverged)': points.lost.any()}
        about = [text for text, holds in about.items() if holds]
        y = 'validation loss (nats)' + f'\n{folder_name(folder)}' * (len(folders) > 1)
        low, high = points.val_loss.min(), points.val_loss.max()
        high, step = (0.0, 1e-3) if math.isnan(high) else (high, max(high - low, 1e-3) / 15)
        heights = [high + step * (k + 1) for k in range(len(points))]               # of crosses: above all losses
        if points.rate.nunique() > 1:
            parts, axes = split_points(points, axes)
            panels += [rate_panel(title, rows_of(part, axes), y, styles, heights) for title, part in parts.items()]
            named, notes = named | dict.fromkeys(axes), notes | dict.fromkeys(about)
        else:
            rate = f' at the learning rate {points.rate[0]:g}' * ('learning_rate' in points)
            panels.append(dots_panel(points, rows_of(points, axes), ', '.join(axes) + rate + ''.join(about), y, heights))
    return Lines(panels, ', '.join(named) + ''.join(notes), sharex='none', sharey='all' if len(folders) == 1 else 'none')
