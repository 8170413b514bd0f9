"""The picture of sweeps, from their table.csv."""
import csv
import math
import os

from lab.plot.lines import Curve, Lines, Panel, run_style
from lab.plot.names import MOST, folder_name

# columns of numbers in a sweep's table.csv; all others are axes
NUMBERS = ('learning_rate', 'tuning_loss', 'val_loss', 'standard_error', 'done', 'diverged', 'failed', 'missing', 'stopped',
           'test_loss', 'test_standard_error')


def read_points(folder):
    """The points of a sweep's table.csv, as dicts with their `rate`, and the names of its axes"""
    path, make = os.path.join(folder, 'table.csv'), f'make it with  python -m lab.sweep --report={folder}'
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: {make}')
    try:
        with open(path, encoding='utf-8', newline='') as f:
            points = [{key: float(value) if key in NUMBERS else value for key, value in row.items()} for row in csv.DictReader(f)]
        points[0]['val_loss']
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f'{path} is damaged, {make}') from error
    axes = [axis for axis in points[0] if axis not in NUMBERS]
    return [point | dict(rate=point.get('learning_rate', 0.0)) for point in points], axes


def rows_of(points, axes):
    """{name: points}: the rows of a sweep's table, each with its points from the lowest learning rate to the highest"""
    rows = {}
    for point in points:
        rows.setdefault(tuple(point[axis] for axis in axes), []).append(point)
    names = [', '.join(filter(None, values)) for values in rows]
    if len(set(names)) < len(names):
        names = [', '.join(value or '–' for value in values) for values in rows]
    return {name: sorted(row, key=lambda point: point['rate']) for name, row in zip(names, rows.values())}


def split_points(points, axes):
    """{title: points} and the axes that stay in the names. More than MOST rows are split by the axis that leaves each part the
    fewest learning rates, and then by that with the fewest values."""
    ways = []
    for axis in axes if len(rows_of(points, axes)) > MOST and len(axes) > 1 else ():
        parts = {}
        for point in points:
            parts.setdefault(f'{axis}: {point[axis] or "none"}', []).append(point)
        if 1 < len(parts) <= MOST:
            rates = max(len({point['rate'] for point in part}) for part in parts.values())
            ways.append((rates, len(parts), parts, [other for other in axes if other != axis]))
    return min(ways, key=lambda way: way[:2])[2:] if ways else ({'': points}, axes)


def is_tuned(point):
    """Has the seed that chose the learning rate a loss of its own here, beside the mean of the others?"""
    return math.isfinite(point.get('tuning_loss', math.nan))


def is_lost(point):
    """Did every run diverge?"""
    return bool(point['diverged'] and not point['done'])


def means(points):
    """Their mean losses, NaN where no run ended, and the ends of the bars: standard errors to both sides"""
    losses = [point['val_loss'] if point['done'] else math.nan for point in points]
    errors = [point['standard_error'] if math.isfinite(point['standard_error']) else 0.0 for point in points]
    return losses, dict(low=[loss - e for loss, e in zip(losses, errors)], high=[loss + e for loss, e in zip(losses, errors)])


def rate_panel(title, rows, y, styles, heights):
    """The losses over the learning rates, a curve a row. Crosses stand at these heights, none over another."""
    rates, curves, lost = sorted({point['rate'] for row in rows.values() for point in row}), [], []
    for name, row in rows.items():
        style, at = styles.setdefault(name, run_style(len(styles))), [point['rate'] for point in row]
        losses, ends = means(row)
        if any(map(is_tuned, row)):
            curves.append(Curve(at, [point['tuning_loss'] for point in row], name, **style))
            style = style | dict(dash='', marker='*')
        curves.append(Curve(at, losses, name, bars=True, **ends, **style))
        for rate in [point['rate'] for point in row if is_lost(point)]:
            curves.append(Curve([rate], [heights[lost.count(rate)]], name, style['color'], 'x', dash='', width=0))
            lost.append(rate)
    ticks = {rate: f'{rate:g}' for rate in rates}
    return Panel(curves, 'learning rate', y, title, log='x' * (rates[0] > 0), ticks=ticks, height=2.6)


def dots_panel(rows, x, y, heights):
    """A point for each row of a sweep of one learning rate"""
    points = [row[0] for row in rows.values()]
    losses, ends = means(points)
    lost = [i for i, point in enumerate(points) if is_lost(point)]
    curves = [Curve(list(range(len(points))), losses, marker='o', dash='', bars=True, **ends),
              Curve(lost, heights[:1] * len(lost), marker='x', dash='')]
    return Panel(curves, x, y, ticks=dict(enumerate(rows)), height=3.0)


def plot_sweep(folders):
    """The validation loss against the learning rate, a curve for each row of the sweep's table.

    Bars are standard errors over seeds. If one seed chose the rates, the curve is that seed's, and a star is the mean of the
    others. A cross marks a point at which every run diverged. More than eight rows are split into panels by an axis. A sweep of
    one learning rate has a point for each row."""
    panels, styles, named = [], {}, []
    read = [read_points(folder) for folder in folders]
    every = [point for points, _ in read for point in points]
    about = '\n(line: the seed that chose the rate, star: the others)' * any(map(is_tuned, every))
    about += '\n(bars: standard errors over seeds)' * any(point['standard_error'] > 0 for point in every)
    about += '\n(×: every run diverged)' * any(map(is_lost, every))
    for folder, (points, axes) in zip(folders, read):
        y = 'validation loss (nats)' + f'\n{folder_name(folder)}' * (len(folders) > 1)
        known = [value for value in means(points)[0] if math.isfinite(value)] or [0.0]
        step = max(max(known) - min(known), 1e-3) / 15
        heights = [max(known) + step * (k + 1) for k in range(len(points))]         # of crosses: above all losses
        if len({point['rate'] for point in points}) > 1:
            parts, axes = split_points(points, axes)
            panels += [rate_panel(title, rows_of(part, axes), y, styles, heights) for title, part in parts.items()]
            named += [axis for axis in axes if axis not in named]
        else:
            rate = f' at the learning rate {points[0]["rate"]:g}' * ('learning_rate' in points[0])
            panels.append(dots_panel(rows_of(points, axes), ', '.join(axes) + rate + about, y, heights))
    return Lines(panels, ', '.join(named) + about, sharex='none', sharey='all' if len(folders) == 1 else 'none')
