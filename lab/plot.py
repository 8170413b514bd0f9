"""
Draws pictures of runs. Each is written as PNG and, beside it, as SVG:

    python -m lab.plot out-quick                                    # the loss: out-quick/loss.png and loss.svg
    python -m lab.plot out-a out-b out-c --out=abc.png              # several runs in one picture
    python -m lab.plot out-a out-b --out=loss.html                  # a page to zoom and hover in; it needs requirements-plot.txt
    python -m lab.plot out-a out-b --ylim=2,3 --smooth=100          # also --xlim, and --log=y; --watch=True draws again and again
    python -m lab.plot out-a --what=residual                        # the residual stream of each block, or --what=logits
    python -m lab.plot out-a out-b --what=gradients                 # another picture of the list below
    python -m lab.plot out-a out-b --what=grad_norm                 # any number of log.jsonl over the iterations
    python -m lab.plot out-a out-b --what=updates.qk                # any number of measure.jsonl
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

from engine.process import begin

import argparse
import difflib
import math
import os
import textwrap
import time

import matplotlib.pyplot as plt

from data.lock import is_locked
from engine.errors import is_number, read_json, read_rows
from lab import measure
from lab.figures import (
    CHARACTER,
    COLORS,
    LINE,
    MOST,
    TYPES,
    VIEW,
    LogLabels,
    columns_for,
    draw_over_time,
    grouped_by_seed,
    in_order,
    label_ends,
    labels,
    legend,
    legend_below,
    log_scale,
    name_axes,
    panels,
    row_style,
    run_style,
    type_style,
    unit_of,
    wrap,
)
from lab.tables import read_table

# ----------------------------------------------------------------------------- reading the files of runs

EVERY = 5.0             # seconds between two looks of --watch at the logs


def read_log(folder):
    """The rows of a run's log.jsonl."""
    path = os.path.join(folder, 'log.jsonl')
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: {folder!r} is not the folder of a run')
    return read_rows(path)


# ----------------------------------------------------------------------------- pictures: each takes folders, returns a figure

def of_images(folders):
    return any('val_top1' in row for folder in folders for row in read_log(folder))


def best_of(runs, key):
    """The mean over runs, which differ in their seed, of the lowest value of a key in their rows; infinite if it is in none"""
    lows = [min(values) for rows in runs if (values := [value for _, value in curve(rows, key)])]
    return sum(lows) / len(lows) if lows else math.inf


def curve(rows, key):
    """[(iteration, value)] of a key in a log's rows, where it is finite"""
    return [(row['iter'], row[key]) for row in rows if 'diverged' not in row and math.isfinite(row.get(key, math.nan))]


def without_diverged(logs):
    """The logs of the runs that did not diverge, or of all if none is left, and how many diverged"""
    ended = [rows for rows in logs if not (rows and 'diverged' in rows[-1])]
    return ended or logs, len(logs) - len(ended)


START = 0.02            # the share of a run in which the loss falls so far that all that follows would look flat


def leave_out_start(ax, logs):
    """Lets the axis begin below what the first iterations, a share START of them, have of these logs' losses, and says so. Runs
    that diverged count only if all did."""
    ended, _ = without_diverged(logs)
    tops, values = [], [value for rows in logs for key in ('loss', 'val_loss') for _, value in curve(rows, key)]
    for rows in ended:
        first = START * rows[-1]['iter']
        training, validation = ([value for it, value in curve(rows, key) if it > first] for key in ('loss', 'val_loss'))
        tops += sorted(training)[-1 - len(training) // 100:][:1] + validation
    low, top = min(values, default=0.0), max(tops, default=math.inf)
    if low < top < max(values, default=0.0):
        ax.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low))
        ax.set_title(f'above: the first {START:.0%} of the iterations', loc='right', fontsize=8, color='0.4', pad=2)


def plot_loss(folders):
    """Training and validation loss, and the learning rate; for images also the validation accuracy.

    Runs that differ only in their seed are one curve: the mean, in a band from the lowest to the highest. Up to four curves have
    both losses in one panel, more have a panel for each. More than eight are thin, and labelled at their ends. The axis of the
    loss leaves out the first 2% of the iterations."""
    vision, unit = of_images(folders), f'nats per {unit_of(folders)}'
    rows = [(text, *without_diverged([read_log(folder) for folder in group])) for text, group in grouped_by_seed(folders)]
    many, apart = len(rows) > MOST, 2 * len(rows) > MOST
    if many:
        rows.sort(key=lambda row: best_of(row[1], 'val_loss'))
    names = ['loss', *['val_loss'] * apart, *['top1'] * vision, 'lr']
    figure, axes = panels(len(names), 1, sharex=True, height_ratios=[1 if name == 'lr' else 2.2 for name in names])
    figure.set_figheight(1.7 * len(names) + 0.3)
    at, peaks, ends = dict(zip(names, axes)), [], []
    if apart:
        at['val_loss'].sharey(at['loss'])
    for i, (text, runs, diverged) in enumerate(rows):
        train, val, right, lrs = ([curve(log, key) for log in runs] for key in ('loss', 'val_loss', 'val_top1', 'lr'))
        low, style = best_of(runs, 'val_loss'), row_style(i, len(rows))
        text += f': {low:.3f}' if low < math.inf else ''
        text += f', {sum(points[-1][1] for points in right) / len(right):.1%}' if all(right) else ''
        text += f', {diverged} diverged' * (diverged > 0)
        ends += [(text, style['color'], val[0][-1])] if all(val) else []
        peaks += [max(rate for points in lrs for _, rate in points)] if any(lrs) else []
        # the first evaluation is that of the untrained model, far above the others
        val = [points[1:] if len(points) > 2 and points[0][0] == 0 else points for points in val]
        draw_over_time(at['loss'], *train, color=style['color'], linewidth=0.8, alpha=1.0 if apart else 0.6,
                       label='' if any(val) else text)
        draw_over_time(at['val_loss' if apart else 'loss'], *val, **style, label=text)
        draw_over_time(at['lr'], lrs[0], color=style['color'], linewidth=style.get('linewidth'))
        if vision:
            draw_over_time(at['top1'], *([(it, 100 * share) for it, share in points] for points in right), **style)
    leave_out_start(at['loss'], [log for _, runs, _ in rows for log in runs if log])
    at['loss'].set_ylabel(f'training loss\n({unit})' if apart else f'loss ({unit})')
    if apart:
        at['val_loss'].set_ylabel(f'validation loss\n({unit})')
    if vision:
        at['top1'].set_ylabel('validation\ntop-1 (%)')
    if peaks and max(peaks) > 10 * min(peaks) > 0:
        log_scale(at['lr'])
        at['lr'].set_ylim(bottom=min(peaks) / 30)
    at['lr'].set_ylabel('learning\nrate')
    at['lr'].set_xlabel('iteration')
    figure.align_ylabels(axes)
    about = 'run: lowest validation loss' + (', last top-1' if vision else '')
    if many and ends:
        label_ends(at['val_loss'], ends, about)
    else:
        band = '\n(of several seeds: their mean and range)' * any(len(runs) > 1 for _, runs, _ in rows)
        legend(figure, about + ('' if apart else '\n(thin line: training, with marks: validation)') + band)
    return figure


def of_blocks(key, folders):
    for folder in folders:
        if not any(key in row for row in read_log(folder)):
            raise ValueError(f'{folder} has no {key} in its log: it is of an older version, or trained with parallel=fsdp')
    return over_iterations(key, folders)


def plot_residual(folders):
    """The root mean square of the residual stream behind each block, at each evaluation."""
    return of_blocks('residual_rms', folders)


def plot_logits(folders):
    """The largest attention logit of each block, at each evaluation."""
    return of_blocks('max_logits', folders)


def plot_coordinates(folders):
    """How far activations move in the first steps, against the width: the coordinate check of muP.

    Solid: after the last step, dashed: after the first. A flat line means that the base width's learning rate fits. It needs
    python -m lab.coordinates."""
    runs = []
    for folder in folders:
        path, make = os.path.join(folder, 'coordinates.json'), 'make it with  python -m lab.coordinates'
        runs.append(read_json(path, make, math.nan))
        if runs[-1] is None:
            raise ValueError(f'there is no {path}: {make}')
    names = list(dict.fromkeys(name for measured in runs for name in measured['activations']))
    figure, axes = panels(len(names), height=2.0, sharex=True, sharey=True)
    for ax, name in zip(axes, names):
        ax.set_title(name.replace('_', ' '))
        for i, (measured, text) in enumerate(zip(runs, labels(folders))):
            moves = measured['activations'].get(name, {}).get('moves', {})
            for step, style in (-1, {'label': text, **run_style(i)}), (0, dict(color=COLORS[i], linestyle='--', linewidth=0.8)):
                ax.plot([*map(int, moves)], [sizes[step] for sizes in moves.values()], **style)
        ax.set_xscale('log', base=2)
        ax.xaxis.set_major_formatter('{x:.0f}')
        log_scale(ax)
    name_axes(axes, 'width', 'change (RMS)')
    legend(figure, f'run, after {runs[0]["steps"]} steps; dashed: after the first')
    return figure


def not_negative(text):
    x = float(text)
    if x < 0:
        raise ValueError(f'{text} is negative')
    return x


# of a sweep's table.csv; all others are axes
COLUMNS = {'learning_rate?': not_negative, 'tuning_loss?': float, 'val_loss': float, 'standard_error': not_negative, 'done': int,
           'diverged': int, 'failed?': int, 'missing?': int, 'stopped?': int, 'test_loss?': float,
           'test_standard_error?': not_negative}


def read_points(folder):
    """The points of a sweep's table.csv, as dicts."""
    path, make = os.path.join(folder, 'table.csv'), f'make it with  python -m lab.sweep --report={folder}'
    points = read_table(path, COLUMNS, make)
    if points is None:
        raise ValueError(f'there is no {path}: {make}')
    return points


def rows_of(points, axes):
    """{name: points}: the rows of a sweep's table, each with its points from the lowest learning rate to the highest."""
    rows = {}
    for point in sorted(points, key=rate_of):
        rows.setdefault(tuple(point[axis] for axis in axes), []).append(point)
    order = dict.fromkeys(tuple(point[axis] for axis in axes) for point in points)
    short = [', '.join(filter(None, labels)) for labels in order]
    if len(set(short)) < len(short):
        short = [', '.join(label or '–' for label in labels) for labels in order]
    return {name: rows[labels] for name, labels in zip(short, order)}


def rate_of(point):
    return point.get('learning_rate', 0.0)


def loss_of(point):
    """(mean, standard error) over the runs that ended, NaN if there are none."""
    return [point[key] if point['done'] else math.nan for key in ('val_loss', 'standard_error')]


def is_tuned(point):
    """Has the seed that chooses the learning rate a loss of its own here, beside the mean of the others?"""
    return math.isfinite(point.get('tuning_loss', math.nan))


def is_lost(point):
    """Did every run diverge?"""
    return point['diverged'] and not point['done']


def split_rows(points, axes):
    """[(title, {name: points})], and the axes in the names: the rows of a sweep's table, at most MOST in each part.

    If there are more, each part has one value of an axis: the axis with the fewest values, and then with the fewest learning
    rates in each part. If no axis makes the parts small enough, the rows are split in order into parts of similar size."""
    rows = rows_of(points, axes)
    if len(rows) <= MOST:
        return [('', rows)], axes
    ways = []
    for axis in axes:
        others, parts = [a for a in axes if a != axis], {}
        for point in points:
            parts.setdefault(point[axis], []).append(point)
        split = [(f'{axis}: {value or "none"}', rows_of(part, others)) for value, part in parts.items()]
        if 1 < max(len(part) for _, part in split) <= MOST >= len(split):
            ways.append((len(split), sum(len(set(map(rate_of, part))) for part in parts.values()), split, others))
    if ways:
        return min(ways, key=lambda way: way[:2])[2:]
    names = list(rows)
    size = math.ceil(len(names) / math.ceil(len(names) / MOST))
    return [('', {name: rows[name] for name in names[i:i + size]}) for i in range(0, len(names), size)], axes


def draw_rates(ax, rows, style_of, width):
    """A curve of the loss over the learning rate for each row, into axes of this width."""
    crosses = []                                        # the learning rates of all crosses so far, so that none hides another
    for name, row in rows.items():
        losses, errors = zip(*map(loss_of, row))
        if any(map(is_tuned, row)):                     # a line of one seed, and the mean of the others where it is lowest
            ax.errorbar(list(map(rate_of, row)), losses, errors, color=style_of[name]['color'], fmt='*', markersize=9)
            losses, errors = [point['tuning_loss'] for point in row], None
        ax.errorbar(list(map(rate_of, row)), losses, errors, **style_of[name], elinewidth=0.8, label=name)
        lost = [rate_of(point) for point in row if is_lost(point)]
        ax.plot(lost, [0.98 - 0.04 * crosses.count(rate) for rate in lost], 'x', color=style_of[name]['color'], markersize=5,
                transform=ax.get_xaxis_transform())
        crosses += lost
    rates = sorted({rate_of(point) for row in rows.values() for point in row})
    texts, crowded = LogLabels().format_ticks(rates), False
    if len(rates) > 1 and rates[0] > 0:
        log_scale(ax, 'x')
        at = [math.log(rate / rates[0]) * width / math.log(rates[-1] / rates[0]) for rate in rates]        # in inches
        longest = max(len(text.replace(r'\times', '')) for text in texts)
        crowded = min(b - a for a, b in zip(at, at[1:])) < CHARACTER * (longest + 1)
        labelled = -math.inf
        for i, place in enumerate(at):                  # of two that are closer than a line is high, one is labelled
            texts[i] = texts[i] if place - labelled >= LINE else ''
            labelled = place if texts[i] else labelled
    ax.set_xticks(rates, texts, **dict(rotation=45, ha='right', rotation_mode='anchor') if crowded else {})
    ax.minorticks_off()
    ax.set_xlabel('learning rate')


CROSS = '\n(×: every run diverged)'
STAR = '\n(line: seed 1, which chooses\nthe rate; star: the others)'


def draw_dots(ax, rows, axes):
    """A line with text and a point for each row."""
    points = [point for row in rows.values() for point in row]          # one of each
    losses, errors = zip(*map(loss_of, points))
    lost = [i for i, point in enumerate(points) if is_lost(point)]
    ax.errorbar(losses, range(len(rows)), xerr=errors, color=COLORS[0], fmt='o', elinewidth=0.8)
    ax.plot([0.98] * len(lost), lost, 'x', color=COLORS[0], markersize=5, transform=ax.get_yaxis_transform())
    ax.set_yticks(range(len(rows)), [wrap(name, 2) for name in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_ylabel(', '.join(axes))
    at = f' at the learning rate {rate_of(points[0]):g}' if 'learning_rate' in points[0] else ''
    bars = '\n(bars: standard errors over seeds)' * any(error > 0 for error in errors)
    ax.set_xlabel(f'validation loss (nats){at}' + bars + CROSS * bool(lost))


def plot_sweep(folders):
    """The validation loss against the learning rate, a curve for each row of the sweep's table.

    The curve is of the seed that chooses the rate, and a star is the mean of the others, if there are any. Bars are standard
    errors over seeds. A cross marks a point at which every run diverged. More than eight rows are split into panels. A sweep of
    one learning rate has a line of text and a point for each row."""
    parts = []                                          # of all folders: (title, rows, axes, whether over learning rates)
    for folder in folders:
        points = read_points(folder)
        axes = [axis for axis in points[0] if axis not in COLUMNS and f'{axis}?' not in COLUMNS]
        over_rates = len(set(map(rate_of, points))) > 1
        split, axes = split_rows(points, axes) if over_rates else ([('', rows_of(points, axes))], axes)
        name = os.path.basename(os.path.normpath(folder)) if len(folders) > 1 else ''
        own = 'with its own axis' * bool(name and over_rates)
        parts += [('; '.join(filter(None, (name, title, own))), rows, axes, over_rates) for title, rows in split]
    names = list(dict.fromkeys(name for _, rows, *_ in parts for name in rows))
    together = len(folders) == 1 and len(names) <= MOST         # one legend for all panels, else one for each
    columns = columns_for(len(parts))
    height = max(2.4 + LINE * (not together) * (len(rows) + 1) if over_rates else 0.7 + 0.2 * len(rows)
                 for _, rows, _, over_rates in parts)
    figure, panes = panels(len(parts), columns, height, sharey=len(folders) == 1)
    for ax, (title, rows, axes, over_rates) in zip(panes, parts):
        ax.set_title(title)
        if over_rates:
            draw_rates(ax, rows, {name: run_style(i) for i, name in enumerate(names if together else rows)},
                       figure.get_figwidth() / columns - 0.6)
        else:
            draw_dots(ax, rows, axes)
        if over_rates and ax.get_subplotspec().is_first_col():
            ax.set_ylabel('validation loss (nats)')
        points = [point for _, rows, *_ in parts for row in rows.values() for point in row]
        bars = '\n(bars: standard errors over seeds)' * any(point['standard_error'] > 0 for point in points)
        title = ', '.join(axes) + STAR * any(map(is_tuned, points)) + bars + CROSS * any(map(is_lost, points))
        if not together:
            legend_below(ax, title)
    if together:
        legend(figure, title)
    return figure


PICTURES = {'loss': plot_loss, 'residual': plot_residual, 'logits': plot_logits, **measure.PICTURES,
            'coordinates': plot_coordinates, 'sweep': plot_sweep}
OVER_TIME = ('loss', 'residual', 'logits', 'sharpness')         # those with curves over the iterations, as each KEY


# ----------------------------------------------------------------------------- any quantity of a run's rows

def quantities(value, key=''):
    """{key: {curve: number}} of what is numeric in a row of log.jsonl or measure.jsonl.

    A key is a path of names with dots between them. A number is one curve, named ''. A list is a curve for each of its items,
    which are the layers, named 0, 1, …, or by their entry 'at'. A list within a list, as of heads, is its mean."""
    if is_number(value):
        return {key: {'': value}}
    found = {}
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in ('iter', 'histogram'):
                found.update(quantities(part, f'{key}.{name}' if key else name))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            name = str(item.get('at', i)) if isinstance(item, dict) else str(i)
            for path, curves in quantities(item, key).items():
                found.setdefault(path, {})[name] = sum(curves.values()) / len(curves)
    return found


def read_quantities(folder):
    """{key: {curve: [(iteration, number)]}} of all rows of a run's log.jsonl and measure.jsonl."""
    found = {}
    for name in ('log.jsonl', 'measure.jsonl'):
        for row in read_rows(os.path.join(folder, name)):
            for key, curves in quantities(row).items() if 'diverged' not in row else ():
                for curve, value in curves.items():
                    found.setdefault(key, {}).setdefault(curve, []).append((row['iter'], value))
    return found


NAMES = dict(loss='loss', grad_norms='norm of the gradient', weight_norms='norm of the weights',
             train_loss='training loss', val_loss='validation loss', test_loss='test loss', lr='learning rate',
             grad_norm='norm of the gradient', tokens_per_s='tokens per second', images_per_s='images per second',
             mfu='share of the peak FLOP/s', train_top1='training top-1 (share)', val_top1='validation top-1 (share)',
             residual_rms='RMS of the residual stream\nbehind each block', max_logits='largest attention logit')


def curves_of(key, folder):
    """{curve: [(iteration, number)]} of a key of a run's log.jsonl or measure.jsonl. ValueError, with the keys that there are, if
    it has none."""
    by_key = read_quantities(folder)
    by_name = {name.removeprefix(f'{key}.'): curves for name, curves in by_key.items() if name.startswith(f'{key}.')}
    if by_name and all(set(curves) == {''} for curves in by_name.values()):
        by_key[key] = {name: curves[''] for name, curves in by_name.items()}         # a curve for each name below the key
    if key not in by_key:
        near = difflib.get_close_matches(key, [*PICTURES, *by_key], 1)
        near = f'did you mean {near[0]!r}? ' if near else ''
        first = key.partition('.')[0] + '.'
        known = [name for name in by_key if name.startswith(first)] or dict.fromkeys(
            name.partition('.')[0] + '.…' * ('.' in name) for name in by_key)
        raise ValueError(f'what={key!r} is no picture, and {folder} does not have this key: {near}'
                         f'pictures are {", ".join(PICTURES)}; keys are '
                         + (', '.join(known) or f'none: there is no {os.path.join(folder, "log.jsonl")}'))
    return by_key[key]


def over_iterations(key, folders):
    """Any key of log.jsonl or measure.jsonl over the iterations.

    A number is a curve for each run, or for each group of runs that differ only in their seed, as in the picture of the loss. A
    list, such as attention.max_logit, has a panel for each run, with a curve for each layer: the mean over its heads. So has a
    key that stands before several, such as grad_norms, with a curve for each block type. Of more than eight layers, eight are
    drawn, from the first to the last. The axis is logarithmic if the values are positive and their middle 90% span a factor of
    more than 100."""
    by_run = [curves_of(key, folder) for folder in folders]
    curves = list(dict.fromkeys(curve for run in by_run for curve in run))
    unit = f' (nats per {unit_of(folders)})' if key in ('loss', 'train_loss', 'val_loss', 'test_loss') else ''
    name = NAMES.get(key, key) + unit
    if curves != ['']:
        figure = draw_panels(by_run, labels(folders), curves)
    else:
        figure = draw_runs(dict(zip(folders, by_run)), grouped_by_seed(folders))
    values = sorted(value for run in by_run for points in run.values() for _, value in points if math.isfinite(value))
    if values and values[0] > 0 and values[-1 - len(values) // 20] > 100 * values[len(values) // 20]:
        for ax in figure.axes:
            log_scale(ax)
    name_axes(figure.axes, 'iteration', name)
    return figure


def draw_runs(by_folder, groups):
    """The picture of a number over the iterations: a curve for each group of runs."""
    figure, (ax,) = panels(1, height=2.4)
    rows = [(text, [by_folder[folder][''] for folder in group]) for text, group in groups]
    if len(rows) > MOST:                                # in the order of their ends
        rows.sort(key=lambda row: row[1][0][-1][1])
    ends = []
    for i, (text, runs) in enumerate(rows):
        style = row_style(i, len(rows))
        if max(map(len, runs)) > 50:
            style.pop('marker', None)
        draw_over_time(ax, *runs, **style, label=text)
        ends.append((text, style['color'], runs[0][-1]))
    if len(rows) > MOST:
        label_ends(ax, ends, 'run')
    else:
        legend(figure, 'run' + ' (of several seeds: their mean and range)' * any(len(runs) > 1 for _, runs in rows))
    return figure


def draw_panels(by_run, names, curves):
    """The picture of several numbers over the iterations: a panel for each run, with a curve for each number."""
    columns = columns_for(len(by_run))
    shown = [curves[i] for i in sorted({round(k * (len(curves) - 1) / (MOST - 1)) for k in range(MOST)})]
    of_layers = all(curve.isdigit() for curve in curves)
    figure, axes = panels(len(by_run), columns, 2.4, sharex=True, sharey=True)
    for ax, run, name in zip(axes, by_run, names):
        for k, curve in enumerate(shown):
            style = run_style(k)
            if of_layers:
                style.update(color=in_order(k, len(shown)))
            elif curve in TYPES:
                style.update(zip(('color', 'linestyle'), type_style(curve, curves)))
            if len(run.get(curve, [])) > 50:
                del style['marker']
            draw_over_time(ax, run.get(curve, []), **style, label=curve)
        ax.set_title(wrap(name, figure.get_figwidth() / columns - 0.2))
    kind = 'layer' if of_layers else 'block type' if TYPES.keys() & {*curves} else 'place'
    legend(figure, kind if shown == curves else f'{kind}, {len(shown)} of {len(curves)}')
    return figure


# ----------------------------------------------------------------------------- the command

def picture(what, folders):
    """The figure of this name in PICTURES, or of this key."""
    return PICTURES[what](folders) if what in PICTURES else over_iterations(what, folders)


def draw(what, folders, out, change=lambda figure: None):
    """Writes the picture of these folders to `out`, after change(its figure)."""
    def make_figure():
        figure = picture(what, folders)
        change(figure)
        return figure

    write(make_figure, out)


def write(make_figure, out):
    """Writes the figure that make_figure() returns to `out`: as a page for .html, else with 200 dots an inch, and as SVG beside
    it."""
    stem, kind = os.path.splitext(out)
    paths = [out] if kind == '.html' else [stem + (kind if kind not in ('', '.svg') else '.png'), f'{stem}.svg']
    try:
        figure = make_figure()
        figure.draw_without_rendering()
        figure.set_layout_engine('none')                # the layout is done, once for both files
        if kind == '.html':
            from lab.page import write_page
            write_page(figure, out)
        for path in paths if kind != '.html' else ():
            figure.savefig(path, dpi=200, metadata={'Date': None} if path.endswith('.svg') else None)
    finally:
        plt.close('all')
    print(f'wrote {" and ".join(paths)}')


def limits(text):
    """'2,3' → (2.0, 3.0); either may be left out, as in '2,' and ',3'"""
    try:
        low, high = (float(part) if part else None for part in text.split(','))
        if None not in (low, high) and not low < high:
            raise ValueError
        return low, high
    except ValueError:
        raise ValueError(f'{text!r}: wants LOW,HIGH, as 2,3 or 2, or ,3') from None


def zoom(figure, xlim, ylim, log):
    """Sets the limits and scales of the first panel, and of all that share its axes."""
    ax = figure.axes[0]
    if 'x' in log:
        log_scale(ax, 'x')
    for other in ax.get_shared_y_axes().get_siblings(ax) if 'y' in log else ():
        log_scale(other)
    if xlim:
        ax.set_xlim(*xlim)
    if ylim:
        ax.set_ylim(*ylim)
        ax.set_title('', loc='right')                   # which said what the axis leaves out


def watch(folders, draw_once):
    """Draws, and again when a run's log or measurements have grown, until no run goes on any more."""
    files = [os.path.join(folder, name) for folder in folders for name in ('log.jsonl', 'measure.jsonl')]
    before = None
    while True:
        going_on = any(map(is_locked, folders))         # looked at first, so that the last rows are drawn too
        state = [os.stat(file).st_size for file in files if os.path.exists(file)]
        if state != before:
            draw_once()
        if not going_on:
            return
        before = state
        time.sleep(EVERY)


def first_line(f):
    return f.__doc__.partition('\n')[0]


def rest(f):
    return textwrap.dedent(f.__doc__.partition('\n')[2]).strip()


def main():
    about = '\n'.join(f'  {name:16} {first_line(f)}' for name, f in {**PICTURES, 'KEY': over_iterations}.items())
    parser = argparse.ArgumentParser(
        prog='python -m lab.plot', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f'pictures:\n{about}\n\n{rest(over_iterations)}\nAn unknown KEY is answered with the keys that there are.')
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('folders', nargs='+', help='out_dir of each run, or sweep')
    parser.add_argument('--what', default='loss', metavar='PICTURE|KEY',
                        help='a picture of the list below; default: loss. All except loss, residual, logits, sweep and KEY need '
                             'python -m lab.measure')
    parser.add_argument('--out', help='the picture, .html for a page to zoom and hover in; default: WHAT.png in the first folder')
    parser.add_argument('--xlim', metavar='LOW,HIGH', help='limits of the axis; one may be left out, as in --xlim=100,')
    parser.add_argument('--ylim', metavar='LOW,HIGH', help='the same of the first panel, and of those that share its axis')
    parser.add_argument('--log', default='', choices=('x', 'y', 'xy'), help='logarithmic axes')
    parser.add_argument('--smooth', default=0, type=int, metavar='N', help='each point is the mean over the last N iterations')
    parser.add_argument('--watch', default='False', metavar='True', help='draw again as the runs go on, until they end')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    begin(args.debug)
    if args.smooth < 0 or args.smooth and args.what in PICTURES and args.what not in OVER_TIME:
        raise ValueError(f'smooth={args.smooth}: wants a number of iterations, for a KEY or one of {", ".join(OVER_TIME)}')
    out = args.out or os.path.join(args.folders[0], f'{args.what}.png')
    VIEW.update(smooth=args.smooth, points=10 ** 6 if out.endswith('.html') else VIEW['points'])
    xlim, ylim = (limits(text) if text else None for text in (args.xlim, args.ylim))

    def draw_once():
        draw(args.what, args.folders, out, lambda figure: zoom(figure, xlim, ylim, args.log))

    if args.watch.lower() == 'true':
        watch(args.folders, draw_once)
    else:
        draw_once()


if __name__ == '__main__':
    main()
