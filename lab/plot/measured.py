"""Pictures of measure.json: numbers along the depth, and histograms."""
import math
import os
import re

from engine.errors import read_json
from lab.plot.lines import COLORS, Curve, Lines, Panel, run_style
from lab.plot.names import MOST, labels


def read_measured(folder, what):
    """The result of this measurement in measure.json. ValueError if it is not there, or empty."""
    path = os.path.join(folder, 'measure.json')
    measured = read_json(path, 'remove it and measure again', math.nan)
    if measured is None:
        raise ValueError(f'there is no {path}: make it with  python -m lab.measure --out_dir={folder}')
    if measured.get(what, {}) == {}:
        raise ValueError(f'{path} holds no {what}: make it with  python -m lab.measure --out_dir={folder} --what={what}')
    return measured[what]


HALVES = dict(x='blocks passed', first=0.0, step=0.5)       # in front of all blocks, behind each attention, behind each FFN


def column(measured, key):
    """The numbers of a key along the depth, NaN where a row lacks it: 'ma' of [{'ma': …}, …], 'wq.spectral' of
    {'wq': [{'spectral': …}, …]}."""
    for name in key.split('.'):
        if isinstance(measured, dict):
            measured = measured.get(name, [])
        else:
            measured = [row.get(name, math.nan) if isinstance(row, dict) else math.nan for row in measured]
    return measured


def along_depth(folders, what, panels, x='layer', first=1.0, step=1.0, y='', log='y', bounds={}, dashed=''):
    """A line for each run along the depth, which starts at `first`, in a panel for each entry of `panels`: {its name: the key of
    a `column`, or a function of the measurement}. Numbers of heads become their mean, with bars from the lowest to the highest.
    `bounds` are the keys of dashed curves beside others, which are left out if a panel would have more than eight curves."""
    runs = list(zip(labels(folders), [read_measured(folder, what) for folder in folders]))
    one = [*bounds.values()][:1]
    bounded = [text for text, measured in runs for key in one if any(map(math.isfinite, column(measured, key)))]
    bounds, drawn = bounds if len(runs) + len(bounded) <= MOST else {}, []
    for name, key in panels.items():
        curves = []
        for i, (text, measured) in enumerate(runs):
            values = key(measured) if callable(key) else column(measured, key)
            at = [first + step * k for k in range(len(values))]
            if values and isinstance(values[0], list):
                aside = 0.06 * (i - (len(runs) - 1) / 2)
                curves.append(Curve([place + aside for place in at], [sum(heads) / len(heads) for heads in values], text,
                                    low=[*map(min, values)], high=[*map(max, values)], bars=True, **run_style(i)))
            else:
                curves.append(Curve(at, values, text, **run_style(i)))
            if key in bounds:
                curves.append(Curve(at, column(measured, bounds[key]), text, COLORS[i], dash='--', width=0.8))
        drawn.append(Panel(curves, x, y or name, name if y else '', log=log))
    return Lines(drawn, 'run' + f'; dashed: {dashed}' * bool(bounds and bounded), sharey='all' if y else 'none')


def histogram_curve(histogram, **style):
    """A histogram of log10 as a curve, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left out."""
    counts, total = histogram['counts'], sum(histogram['counts'])
    held = [i for i, n in enumerate(counts) if n > 1e-4 * total]
    inside = range(held[0], held[-1] + 1) if held else ()
    middles = [histogram['start'] + (i + 0.5) * histogram['width'] for i in inside]
    return Curve(middles, [counts[i] / total for i in inside], **style)


def per_bin(measured):
    return f'per {measured["histogram"]["width"]:.2g} decade'


def minus(text):
    """A number's text with a real minus sign"""
    return text.replace('-', '−')


def short(x):
    return minus(f'{x:.3g}' if abs(x) < 1000 or math.isnan(x) else f'{x:,.0f}')


def symbols(text):
    """'gradient of wq', 'W_q W_k' → with $W_q$."""
    return re.sub(r'\b(?:W_|w)([qkvo123])\b', r'$W_\1$', text)
