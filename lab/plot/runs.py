"""Pictures over the iterations: the loss, and any number of log.jsonl or measure.jsonl."""
import difflib
import math
import os
import re

import numpy as np

from engine.errors import is_number, read_json, read_rows
from lab.plot.lines import COLORS, TYPES, Curve, Lines, Panel, ordered_color, run_style, type_style
from lab.plot.names import MOST, grouped_by_seed, labels, unit_of


def read_log(folder):
    """Return the rows of a run's log.jsonl"""
    path = os.path.join(folder, 'log.jsonl')
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: {folder!r} is not the folder of a run')
    return read_rows(path)


def points_of(rows, key):
    """Return [(iteration, value)] of a key in a log's rows, without values that are not finite."""
    return [(row['iter'], row[key]) for row in rows if 'diverged' not in row and math.isfinite(row.get(key, math.nan))]


def smoothed(points, iterations):
    """Return [(iteration, value)] with the mean of the finite values over the last so many iterations as values; 0: as they
    are"""
    finite = [point for point in points if math.isfinite(point[1])]
    if not iterations or not finite:
        return points
    places, values = np.array(finite, dtype=float).T
    sums = np.concatenate(([0.0], values.cumsum()))
    first = np.searchsorted(places, places - iterations, 'right')
    return list(zip(places, (sums[1:] - sums[first]) / (np.arange(len(places)) + 1 - first)))


def over_time(runs, smooth=0, **style):
    """Draw a curve through [(iteration, value)]. Runs that differ in their seed are their mean over the iterations that all
    have, in a band from the lowest to the highest."""
    runs = [dict(smoothed(points, smooth)) for points in runs if points]
    places = sorted(set.intersection(*map(set, runs))) if runs else []
    values = np.array([[run[it] for it in places] for run in runs]).reshape(len(runs), len(places))
    if not places:
        return Curve([], [], **style)
    band = dict(low=values.min(0), high=values.max(0)) if len(runs) > 1 else {}
    return Curve(places, values.mean(0), **band, **style)


# ----------------------------------------------------------------------------- the loss

SEVERAL_SEEDS = '\n(of several seeds: their mean and range)'
START, LONG = 0.02, 50          # the share of a run in which the loss falls so far that the rest looks flat; points of a long run


def lowest(logs, key):
    """Return the mean over logs, which differ in their seed, of the lowest value of a key; infinite if none has it"""
    lows = [min(values) for rows in logs if (values := [value for _, value in points_of(rows, key)])]
    return sum(lows) / len(lows) if lows else math.inf


def has_ended(rows):
    """Did the run go on without diverging?"""
    return not (rows and 'diverged' in rows[-1])


def cut_start(panel, ended):
    """Let the axis leave out the START of LONG curves, their highest 1%, and curves of runs that diverged, if others `ended`."""
    drawn = [(curve.y if not len(curve.high) else curve.high, np.array(curve.x), is_ended)
             for curve, is_ended in zip(panel.curves, ended) if len(curve.x)]
    tops = [np.quantile(y[x > START * x[-1]], 0.99) if len(x) >= LONG else max(y) for y, x, is_ended in drawn if is_ended]
    low, highest = min((min(y) for y, *_ in drawn), default=0.0), max((max(y) for y, *_ in drawn), default=0.0)
    if tops and max(tops) < highest:
        margin = 0.05 * (max(tops) - low)
        panel.ylim = low - margin, max(tops) + margin
        cut = any(is_ended and len(x) >= LONG for _, x, is_ended in drawn)
        panel.remark = f'above: the first {START:.0%} of the iterations' if cut else 'above: runs that diverged'


def plot_loss(folders, smooth=0):
    """Training and validation loss, and the learning rate; for images also the validation accuracy.

    Runs that differ only in their seed are one curve: the mean, in a band from the lowest to the highest. Up to four curves have
    both losses in one panel, more have a panel for each. More than eight are sorted by their losses. The axis leaves out the
    first 2% of a long run's iterations. Only the training loss is smoothed."""
    rows = [(text, [read_log(folder) for folder in group]) for text, group in grouped_by_seed(folders)]
    every_row = [row for _, logs in rows for log in logs for row in log]
    if not every_row:
        raise ValueError(f'{folders[0]} has no row in its log.jsonl yet, so that there is nothing to draw')
    vision, unit = any('val_top1' in row for row in every_row), f'nats per {unit_of(folders)}'
    apart = 2 * len(rows) > MOST
    if len(rows) > MOST:
        rows.sort(key=lambda row: lowest(row[1], 'val_loss'))
    loss = Panel([], 'iteration', f'training loss\n({unit})' if apart else f'loss ({unit})', height=1.9)
    val_loss = Panel([], 'iteration', f'validation loss\n({unit})', height=1.9) if apart else loss
    top1, lr = Panel([], 'iteration', 'validation\ntop-1 (%)', height=1.5), Panel([], 'iteration', 'learning\nrate', height=1.1)
    # the first evaluation is that of the untrained model, far above the others
    skipped = any(len(points_of(log, 'val_loss')) > 2 for _, logs in rows for log in logs)
    for i, (text, logs) in enumerate(rows):
        ended, style = [log for log in logs if has_ended(log)] or logs, run_style(i)
        train, val, right, rates = ([points_of(log, key) for log in ended] for key in ('loss', 'val_loss', 'val_top1', 'lr'))
        text += f': {low:.3f}' if (low := lowest(ended, 'val_loss')) < math.inf else ''
        text += f', {sum(points[-1][1] for points in right) / len(right):.1%}' if all(right) else ''
        text += f', {lost} diverged' if (lost := sum(not has_ended(log) for log in logs)) else ''
        val = [[(it, value) for it, value in points if it > 0 or not skipped] for points in val]
        plain = style | dict(marker='' if max(map(len, train)) > 1 else '.', name=text)
        loss.curves.append(over_time(train, smooth, **plain | dict(width=0.8, pale=not apart and any(val))))
        val_loss.curves.append(over_time(val, name=text, **style))
        top1.curves.append(over_time([[(it, 100 * share) for it, share in points] for points in right], name=text, **style))
        lr.curves.append(over_time(rates[:1], **plain))
    ended = [any(map(has_ended, logs)) for _, logs in rows]
    for panel in [loss, val_loss] if apart else [loss]:
        cut_start(panel, np.repeat(ended if any(ended) else [True] * len(rows), 1 if apart else 2))
    peaks = [max(curve.y) for curve in lr.curves if len(curve.y)]
    if peaks and max(peaks) > 10 * min(peaks) > 0:
        lr.log, lr.ylim = 'y', (min(peaks) / 30, None)
    about = 'run: lowest validation loss' + ', last top-1' * vision
    about += '' if apart else '\n(pale line: training, the other: validation)'
    about += SEVERAL_SEEDS * any(len(logs) > 1 for _, logs in rows)
    return Lines([loss, *[val_loss] * apart, *[top1] * vision, lr], about, columns=1)


# ----------------------------------------------------------------------------- any number

# what keys of log.jsonl and measure.jsonl mean, without the block type or matrix in them; others stand for themselves
NAMES = {'loss': 'training loss', 'train_loss': 'training loss', 'val_loss': 'validation loss', 'lr': 'learning rate',
         'grad_norm': 'norm of the gradient', 'grad_norms': 'norm of the gradient', 'weight_norms': 'norm of the weights',
         'update_norms': 'norm of the update', 'attn_rms': 'RMS of attention\'s branch', 'ffn_rms': 'RMS of the FFN\'s branch',
         'attn_entropy': 'entropy of attention,\nover that of equal weights', 'dead_units': 'share of dead units of the FFN',
         'batches.repeated': 'share of repeated rows', 'batches.agreement': 'share of targets\nthat are the next input',
         'batches.entropy': 'entropy of the inputs (nats)',
         'residual_rms': 'RMS of the residual stream\nbehind each block', 'max_logits': 'largest attention logit',
         'attention.max_logit': 'largest attention logit', 'attention.entropy': 'entropy of attention (nats)',
         'updates': 'relative size of a step', 'sharpness.log10_mean': 'log₁₀ of the mean sharpness',
         'sharpness.mean_log10': 'mean log₁₀ of the sharpness', 'parameters.types': 'norm of all parameters',
         'parameters.spectral': 'spectral norm', 'parameters.frobenius': 'Frobenius norm',
         'hidden.ma': 'mean |x| of the hidden state', 'hidden.var': 'variance of the hidden state'}


def name_of_key(key):
    parts = key.split('.')
    of = [part for part in parts if part in TYPES or re.fullmatch('w[qkvog123]', part)]
    name = NAMES.get('.'.join(part for part in parts if part not in [*of, 'layers']))
    return ',\n'.join([name, *of]) if name else key


def quantities(value, key=''):
    """Return {key: {curve: number}} of the numbers in a row of log.jsonl or measure.jsonl.

    A key is a path of names with dots between them. A number is one curve, named ''. A list is a curve for each of its items,
    which are the layers, named 1, 2, …, or by their entry 'at'. A list within a list, as of heads, is its mean."""
    if is_number(value):
        return {key: {'': value}}
    found = {}
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in ('iter', 'histogram'):
                found.update(quantities(part, f'{key}.{name}' if key else name))
    elif isinstance(value, list):
        for i, item in enumerate(value, 1):
            name = str(item.get('at', i)) if isinstance(item, dict) else str(i)
            for path, curves in quantities(item, key).items():
                found.setdefault(path, {})[name] = sum(curves.values()) / len(curves)
    return found


def curves_of(key, folder, pictures):
    """Return {curve: [(iteration, number)]} of a key of a run's log.jsonl or measure.jsonl. ValueError, with the `pictures` and
    the keys that there are, if it has none."""
    by_key = {}
    for name in ('log.jsonl', 'measure.jsonl'):
        for row in read_rows(os.path.join(folder, name)):
            for path, curves in quantities(row).items() if 'diverged' not in row else ():
                for curve, value in curves.items():
                    by_key.setdefault(path, {}).setdefault(curve, []).append((row['iter'], value))
    below = {name.removeprefix(f'{key}.'): curves for name, curves in by_key.items() if name.startswith(f'{key}.')}
    if below and all(set(curves) == {''} for curves in below.values()):
        by_key[key] = {name: curves[''] for name, curves in below.items()}           # a curve for each name below the key
    if key not in by_key:
        near = difflib.get_close_matches(key, [*pictures, *by_key], 1)
        near = f'did you mean {near[0]!r}? ' if near else ''
        first = key.partition('.')[0] + '.'
        known = [name for name in by_key if name.startswith(first)] or dict.fromkeys(
            name.partition('.')[0] + '.…' * ('.' in name) for name in by_key)
        others = f'what={key!r} is none of the pictures {", ".join(pictures)}, and ' if pictures else ''
        raise ValueError(f'{others}{folder} has no key {key}: {near}keys are '
                         + (', '.join(known) or f'none: there is no row in {os.path.join(folder, "log.jsonl")}'))
    return by_key[key]


def over_iterations(key, folders, smooth=0, pictures=()):
    """Any key of log.jsonl or measure.jsonl over the iterations.

    A number is a curve for each run, or for each group of runs that differ only in their seed, as in the picture of the loss. A
    list, such as attention.max_logit, has a panel for each run, with a curve for each layer: the mean over its heads. So has a
    key that stands before several, such as grad_norms, with a curve for each block type. If there are more than eight layers,
    eight are drawn, from the first to the last. The axis is logarithmic if the values are positive and their middle 90% span a
    factor of more than 100."""
    by_run = {folder: curves_of(key, folder, pictures) for folder in folders}
    curves = list(dict.fromkeys(curve for run in by_run.values() for curve in run))
    name = name_of_key(key) + f' (nats per {unit_of(folders)})' * (key in ('loss', 'train_loss', 'val_loss', 'test_loss'))
    values = sorted(value for run in by_run.values() for points in run.values() for _, value in points if math.isfinite(value))
    wide = values and values[0] > 0 and values[-1 - len(values) // 20] > 100 * values[len(values) // 20]
    if curves == ['']:
        rows = [(text, [by_run[folder][''] for folder in group]) for text, group in grouped_by_seed(folders)]
        drawn = [over_time(runs, smooth, name=text, **run_style(i)) for i, (text, runs) in enumerate(rows)]
        several = SEVERAL_SEEDS * any(len(runs) > 1 for _, runs in rows)
        return Lines([Panel(drawn, 'iteration', name, log='y' * bool(wide), height=2.4)], 'run' + several)
    shown = [curves[i] for i in sorted({round(k * (len(curves) - 1) / (MOST - 1)) for k in range(MOST)})]
    layers, types = all(curve.isdigit() for curve in curves), bool(TYPES.keys() & {*curves})
    panels = []
    for text, run in zip(labels(folders), by_run.values()):
        styles = [run_style(k) | (dict(color=ordered_color(k, len(shown))) if not types else type_style(curve, curves))
                  for k, curve in enumerate(shown)]
        drawn = [over_time([run.get(curve, [])], smooth, name=curve, **style) for curve, style in zip(shown, styles)]
        panels.append(Panel(drawn, 'iteration', name, text, log='y' * bool(wide), height=2.4))
    kind = 'layer' if layers else 'block type' if types else 'behind' if 'input' in curves else 'part'
    return Lines(panels, kind if shown == curves else f'{kind}, {len(shown)} of {len(curves)}', sharey='all')


def plot_residual(folders, smooth=0):
    """The root mean square of the residual stream behind each block, at each evaluation."""
    return over_iterations('residual_rms', folders, smooth)


def plot_logits(folders, smooth=0):
    """The largest attention logit of each block, at each evaluation."""
    return over_iterations('max_logits', folders, smooth)


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
    panels = {}
    for i, (measured, text) in enumerate(zip(runs, labels(folders))):
        for name, of_widths in measured['activations'].items():
            widths, moves = [*map(int, of_widths['moves'])], of_widths['moves'].values()
            panel = panels.setdefault(name, Panel([], 'width', 'change (RMS)', name.replace('_', ' '), log='xy',
                                                  ticks={width: str(width) for width in widths}))
            panel.curves += [Curve(widths, [sizes[-1] for sizes in moves], text, **run_style(i)),
                             Curve(widths, [sizes[0] for sizes in moves], text, COLORS[i], dash='--', width=0.8)]
    return Lines([*panels.values()], f'run, after {runs[0]["steps"]} steps; dashed: after the first', sharey='all')
