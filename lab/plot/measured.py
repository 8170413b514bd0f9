"""Pictures of measure.json: numbers along the depth, and histograms."""
import math
import os
import re

from engine.errors import read_json
from lab.plot.lines import COLORS, Curve, Lines, Panel, run_style
from lab.plot.names import MOST, labels


def read_measured(folder, what):
    """Return the result of this measurement in measure.json. Raise ValueError if it is not there, or empty."""
    path = os.path.join(folder, 'measure.json')
    measured = read_json(path, 'remove it and measure again', math.nan)
    if measured is None:
        raise ValueError(f'there is no {path}: make it with  python -m lab.measure --out_dir={folder}')
    if not measured.get(what):
        raise ValueError(f'{path} holds no {what}: make it with  python -m lab.measure --out_dir={folder} --what={what}')
    return measured[what]


HALVES = dict(x='blocks passed', first=0.0, step=0.5)       # in front of all blocks, behind each attention, behind each FFN


def column(measured, key):
    """Return the numbers of a key along the depth, NaN where a row lacks it: 'ma' of [{'ma': …}, …], 'wq.spectral' of {'wq':
    [{'spectral': …}, …]}."""
    for name in key.split('.'):
        if isinstance(measured, dict):
            measured = measured.get(name, [])
        else:
            measured = [row.get(name, math.nan) if isinstance(row, dict) else math.nan for row in measured]
    return measured


def along_depth(folders, what, panels, x='layer', first=1.0, step=1.0, y='', linear=0, dashed=''):
    """Plot a line for each run along the depth, which starts at `first`, in a panel for each entry of `panels`: {its name: the
    key of a `column`, a function of the measurement, or the keys of a line and of a dashed one}. Numbers of heads become their
    mean, with bars from the lowest to the highest. The last `linear` panels have no log axis. Dashed lines are left out of a
    panel that would have more than eight curves."""
    runs = list(zip(labels(folders), [read_measured(folder, what) for folder in folders]))
    drawn, explained = [], set()
    for k, (name, keys) in enumerate(panels.items()):
        key, *bound = keys if isinstance(keys, tuple) else [keys]
        curves, beside = [], []
        for i, (text, measured) in enumerate(runs):
            values = key(measured) if callable(key) else column(measured, key)
            at, style = [first + step * k for k in range(len(values))], run_style(i)
            if values and isinstance(values[0], list):
                at = [place + 0.06 * (i - (len(runs) - 1) / 2) for place in at]
                style |= dict(low=[*map(min, values)], high=[*map(max, values)], bars=True)
                values = [sum(heads) / len(heads) for heads in values]
                explained.add('a bar reaches from the lowest head to the highest')
            curves.append(Curve(at, values, text, **style))
            beside += [Curve(at, column(measured, other), text, COLORS[i], dash='--', width=0.8) for other in bound]
        beside = [curve for curve in beside if not curve.is_empty()]
        if beside and len(curves) + len(beside) <= MOST:
            curves += beside
            explained.add(f'dashed: {dashed}')
        drawn.append(Panel(curves, x, y or name, name if y else '', log='y' * (k < len(panels) - linear)))
    return Lines(drawn, '; '.join(['run', *explained]), sharey='all' if y else 'none')


def histogram_curve(histogram, **style):
    """Return a histogram of log10 as a curve, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left
    out."""
    counts, total = histogram['counts'], sum(histogram['counts'])
    held = [i for i, n in enumerate(counts) if n > 1e-4 * total]
    inside = range(held[0], held[-1] + 1) if held else ()
    middles = [histogram['start'] + (i + 0.5) * histogram['width'] for i in inside]
    return Curve(middles, [counts[i] / total for i in inside], **style)


def per_bin(measured):
    return f'per {next(iter(measured.values()))["histogram"]["width"]:.2g} decade'


def minus(text):
    """Replace the hyphens of a text by minus signs."""
    return text.replace('-', '−')


def short(x):
    return minus(f'{x:.3g}' if abs(x) < 1000 or math.isnan(x) else f'{x:,.0f}')


def symbols(text):
    """'gradient of wq', 'W_q W_k' → with $W_q$."""
    return re.sub(r'\b(?:W_|w)([qkvo123])\b', r'$W_\1$', text)
