"""
Draw pictures of runs. The ending of --out chooses the format: .png, .svg or .pdf.

    python -m lab.plot out-quick                                    # the loss: out-quick/loss.png
    python -m lab.plot out-a out-b --out=loss.pdf --labels=Pre-LN,DNT         # several runs, with names of your own
    python -m lab.plot out-a out-b --ylim=2,3 --smooth=100          # also --xlim, and --log=y
    python -m lab.plot out-a out-b --hide=rate,train                # the validation loss alone
    python -m lab.plot out-a out-b --what=gradients                 # another picture of the list below
    python -m lab.plot out-a out-b --what=grad_norm                 # any number of log.jsonl or measure.jsonl

In a notebook: from lab.plot import picture; picture('loss', ['out-quick', 'out-s1'])
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

from engine.process import begin

import difflib
import math
import os
import re
import textwrap

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from engine.files import is_number, read_json, read_rows
from lab.runs import argument_parser, group_by_seed, mean_interval, name_of_group, read_object, section_of, tell_apart

# Okabe and Ito's palette, which colour-blind readers tell apart
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442']
MARKERS, DASHES = 'os^DvPX*', ('-', '--', ':', '-.')
TYPES = ('emb', 'head', 'qk', 'vo', 'ffn', 'pos', 'norm')       # block types, which have the same style in all pictures
HALF, FULL = 3.5, 7.2           # inches: the width of a column and of a page, so that papers need not resize a picture
LETTER = 0.068                  # inches: the average width of a letter in a legend
STYLE = {'font.size': 9, 'axes.titlesize': 9, 'axes.labelsize': 9, 'xtick.labelsize': 8, 'ytick.labelsize': 8,
         'legend.fontsize': 8, 'legend.title_fontsize': 8, 'legend.frameon': False, 'lines.markersize': 3.5,
         'lines.linewidth': 1.2, 'axes.grid': True, 'grid.alpha': 0.3, 'grid.linewidth': 0.6, 'axes.spines.top': False,
         'axes.spines.right': False}
MOST = 8                        # curves that are told apart at a glance
NAMES = {'loss': 'training loss', 'val_loss': 'validation loss', 'lr': 'learning rate', 'grad_norm': 'norm of the gradient',
         'grad_norms': 'norm of the gradient', 'weight_norms': 'norm of the weights', 'update_norms': 'norm of the update',
         'residual_rms': 'RMS of the residual stream', 'attn_rms': "RMS of attention's branch",
         'ffn_rms': "RMS of the FFN's branch", 'max_logits': 'largest attention logit',
         'attn_entropy': 'entropy of attention, over that of equal weights',
         'dead_units': 'share of dead units of the FFN', 'updates': 'relative size of a step'}


# ----------------------------------------------------------------------------- names

def name_runs(groups):
    """Return a name for each group of runs: its folder, and the architecture and up to five keys in which the groups differ,
    without keys of logging and of the machine, and without what the folder's name says."""
    configs = [read_object(group[0], 'config.json') for group in groups]
    archs, keys = tell_apart(configs)
    keys = [key for key in keys if section_of(key) not in ('run', 'machine')][:5]
    folders, names = [name_of_group(group) for group in groups], []
    for group, folder, arch, config in zip(groups, folders, archs, configs):
        about = [arch] * (len({*archs}) > 1) + [f'{key}={config[key]}' for key in keys if key in config]
        about = [part for part in about if part not in {'', *re.split(r'[\W_]+', folder)}]
        name = folder if folders.count(folder) == 1 else os.path.normpath(group[0])
        names.append(name + f' ({", ".join(about)})' * bool(about) + f', {len(group)} seeds' * (len(group) > 1))
    return names


def name_of_key(key):
    first, _, rest = key.removeprefix('layers.').partition('.')
    return f'{NAMES[first]}, {rest}'.removesuffix(', ') if first in NAMES else key


def fill(text, columns):
    """Break a title into lines as wide as a panel, of so many side by side."""
    return textwrap.fill(text, int((FULL / columns - 0.4) / LETTER))


# ----------------------------------------------------------------------------- figures

def panels(count, columns=0, height=2.2, **more):
    """Return a figure of so many panels, and their axes row by row. `more` goes to subplots(). Without pyplot, a notebook keeps
    its backend."""
    columns = columns or (2 if count == 4 else min(count, 3))
    rows = -(-count // columns)
    figure = Figure((HALF if columns == 1 else FULL, height * rows), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.1)
    axes = [*figure.subplots(rows, columns, **{'sharex': True, 'squeeze': False, **more}).flat]
    for ax in axes[count:]:
        ax.remove()
    for ax in axes[max(0, count - columns):count]:          # nothing below says what x is
        ax.tick_params(labelbottom=True)
    return figure, axes[:count]


def style_of(i):
    """Return the style of curve number i of an unordered set."""
    return dict(color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)], ls=DASHES[i // len(COLORS) % len(DASHES)])


def style_of_part(name, names):
    """Return the style of one of these curves: by its place if they are layers, from dark to light, else by its block type."""
    if name.isdigit():
        i = names.index(name)
        return style_of(i) | dict(color=matplotlib.colormaps['viridis'](0.9 * i / max(1, len(names) - 1)), ls='-')
    return style_of([*dict.fromkeys([*TYPES, *names])].index(name))


def draw_curve(ax, x, y, shift=0, **style):
    """Draw a curve. A long one has about six markers, and `shift` keeps those of several curves apart."""
    step = max(1, len(x) // 6) if len(x) > 12 else 1
    ax.plot(x, y, markevery=(shift * max(1, step // MOST) % step, step), **style)


def finish(figure, title=''):
    """Leave out the names of axes whose numbers a neighbour shows, and put a legend with this title below the figure."""
    entries = {}
    for ax in figure.axes:
        if not ax.xaxis.get_tick_params().get('labelbottom', True):
            ax.set_xlabel('')
        if not ax.yaxis.get_tick_params().get('labelleft', True):
            ax.set_ylabel('')
        for handle, label in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(textwrap.fill(label, int(FULL / LETTER)), handle)
    if entries:
        columns = int(figure.get_figwidth() / (LETTER * max(map(len, entries)) + 0.5))
        figure.legend(entries.values(), entries, title=title, loc='upper left', bbox_to_anchor=(0.02, 0), alignment='left',
                      ncols=min(max(1, columns), len(entries)))
    return figure


# ----------------------------------------------------------------------------- numbers over the iterations

def numbers_in(value, key='', curve=''):
    """Yield (key, curve, number) of the numbers in a row of log.jsonl or measure.jsonl.

    A key is a path of names with dots between them. A plain number is of the curve ''. The items of a list are curves, one for
    each layer, named 1, 2, …, or by their entry 'at'. A list within a list, as of heads, has its layer's name."""
    if is_number(value):
        yield key, curve, value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in ('iter', 'histogram'):
                yield from numbers_in(part, f'{key}.{name}' if key else name, curve)
    elif isinstance(value, list):
        for i, item in enumerate(value, 1):
            yield from numbers_in(item, key, curve or str(item.get('at', i) if isinstance(item, dict) else i))


def read_curves(folder, files=('log.jsonl', 'measure.jsonl')):
    """Return {key: {curve: (iterations, numbers)}} of a run's files, of several heads their mean, without numbers that are not
    finite. A run that diverged has the key 'diverged'."""
    log = os.path.join(folder, 'log.jsonl')
    if not os.path.exists(log):
        raise ValueError(f'there is no {log}: {folder!r} is not the folder of a run')
    points = {}
    for row in (row for name in files for row in read_rows(os.path.join(folder, name))):
        found = {}
        for key, curve, value in numbers_in(dict(diverged=1) if 'diverged' in row else row):
            found.setdefault((key, curve), []).append(value)
        for (key, curve), values in found.items():
            if math.isfinite(mean := sum(values) / len(values)):
                points.setdefault(key, {}).setdefault(curve, []).append((row['iter'], mean))
    return {key: {curve: np.array(found, float).T for curve, found in curves.items()} for key, curves in points.items()}


def smoothed(x, y, iterations):
    """Return y as its mean over the last so many iterations; 0: as it is."""
    if iterations <= 0:
        return y
    sums, first = np.concatenate(([0.0], y.cumsum())), np.searchsorted(x, x - iterations, 'right')
    return (sums[1:] - sums[first]) / (np.arange(len(x)) + 1 - first)


def draw_mean(ax, seeds, smooth=0, shift=0, band=True, **style):
    """Draw the mean over seeds, [(iterations, numbers), …], at the iterations that all have, in a band of its 95% interval."""
    seeds = [dict(zip(x, smoothed(x, y, smooth))) for x, y in seeds]
    x = np.array(sorted(set.intersection(*map(set, seeds)))) if seeds else []
    if not len(x):
        return
    mean, half = mean_interval([[seed[it] for it in x] for seed in seeds])
    draw_curve(ax, x, mean, shift, **style)
    if band and len(seeds) > 1:
        limits = ax.dataLim.frozen()
        ax.fill_between(x, mean - half, mean + half, color=style['color'], alpha=0.2, lw=0)
        ax.dataLim.set(limits)                          # of two seeds the band is too wide for the axis


OVER_SEEDS = '\n(several seeds: their mean, in a band of its 95% interval)'
START, LONG = 0.02, 50          # the share of a run in which the loss falls so far that the rest looks flat; points of a long run


def name_with_loss(name, seeds):
    """Return a run's name with its lowest validation loss, and how many of its seeds diverged."""
    lows = [curves['val_loss'][''][1].min() for curves in seeds if 'val_loss' in curves]
    mean, half = mean_interval(lows) if lows else (math.nan, math.nan)
    lost = sum('diverged' in curves for curves in seeds)
    name += f': {mean:.3f}' * bool(lows) + f' ± {half:.3f}' * math.isfinite(half)
    return name + (', diverged' if len(seeds) == 1 else f', {lost} diverged') * (lost > 0)


def end_axis(ax, curves):
    """End the axis above these curves, [(iterations, numbers), …], or if one of them is long, below their START."""
    is_long = any(len(x) >= LONG for x, _ in curves)
    late = [y[x > START * x[-1]] if is_long else y for x, y in curves if x[-1] > 0]
    top, low = max((np.quantile(y, 0.99 if is_long else 1) for y in late), default=math.inf), min(y.min() for _, y in curves)
    if top < ax.dataLim.y1:
        ax.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low))


def plot_loss(runs, smooth=0, hide=()):
    """Training and validation loss, and the learning rate; for images also the validation accuracy.

    The axis leaves out the first 2% of a long run, and what exceeds the runs that did not diverge. Only the training loss is
    smoothed. Seeds that diverged are left out if others did not."""
    found = [[read_curves(folder, ['log.jsonl']) for folder in folders] for _, folders in runs]
    names = [name_with_loss(name, seeds) for (name, _), seeds in zip(runs, found)]
    found = [[curves for curves in seeds if 'diverged' not in curves] or seeds for seeds in found]
    logged = {key for seeds in found for curves in seeds for key in curves}
    losses = [key for key in ('loss', 'val_loss') if key in logged and not (key == 'loss' and 'train' in hide)]
    if not losses:
        raise ValueError(f'{runs[0][1][0]} has no loss in its log.jsonl yet, so that there is nothing to draw')
    both = len(losses) == 2
    shown = {'loss (nats)' if both else f'{NAMES[losses[0]]}\n(nats)': losses}
    shown |= {'validation top-1': ['val_top1']} if 'val_top1' in logged else {}
    shown |= {'learning rate': ['lr']} if 'lr' in logged and 'rate' not in hide else {}
    heights = [1.9, 1.2, 1.2][:len(shown)]
    figure, axes = panels(len(shown), 1, sum(heights) / len(shown), height_ratios=heights)
    for ax, (ylabel, keys) in zip(axes, shown.items()):
        ax.set(xlabel='iteration', ylabel=ylabel)
        for i, (name, seeds) in enumerate(zip(names, found)):
            for key in keys:
                curves = [curves[key][''] for curves in seeds if key in curves]
                is_pale = key == 'loss' and any('val_loss' in curves for curves in seeds)
                pale = dict(lw=0.8, alpha=0.5, marker='', band=False, label='') if is_pale else {}
                draw_mean(ax, curves, smooth * (key == 'loss'), i, **style_of(i) | dict(label=name) | pale)
    ended = [seeds for seeds in found if 'diverged' not in seeds[0]] or found
    end_axis(axes[0], [curves[key][''] for seeds in ended for curves in seeds for key in losses if key in curves])
    peaks = [line.get_ydata().max() for line in axes[-1].lines]
    if 'learning rate' in shown and max(peaks) > 10 * min(peaks) > 0:
        axes[-1].set(yscale='log', ylim=(min(peaks) / 30, None))
    about = 'run: lowest validation loss' + '\n(pale: training, the other: validation)' * both
    return finish(figure, about + OVER_SEEDS * any(len(folders) > 1 for _, folders in runs))


def curves_of(key, folder):
    """Return {curve: (iterations, numbers)} of a key, or of the keys below it, as grad_norms.qk is below grad_norms."""
    found = read_curves(folder)
    below = {name.removeprefix(f'{key}.'): curves[''] for name, curves in found.items()
             if name.startswith(f'{key}.') and '' in curves}
    if key not in found and not below:
        near = difflib.get_close_matches(key, [*pictures(), *found], 1)
        raise ValueError(f'what={key!r} is none of the pictures {", ".join(pictures())}, and no key of {folder}: '
                         + (f'did you mean {near[0]!r}? ' if near else '') + f'keys are {", ".join(found) or "none"}')
    return found.get(key) or below


def plot_key(runs, key, smooth=0):
    """Any key of log.jsonl or measure.jsonl over the iterations.

    A number is a curve for each run. A list has a panel for each run, with a curve for each layer, and so has a key that stands
    before several, such as grad_norms, with a curve for each block type. Eight layers at most are drawn. The axis is logarithmic
    if the values are positive and their middle 90% span a factor of more than 100."""
    found = [[curves_of(key, folder) for folder in folders] for _, folders in runs]
    parts = [*dict.fromkeys(part for seeds in found for curves in seeds for part in curves)]
    shown = [parts[i] for i in sorted({round(k * (len(parts) - 1) / (MOST - 1)) for k in range(MOST)})]
    single = parts == ['']
    figure, axes = panels(1 if single else len(runs), height=2.4, sharey=True)
    for i, ((name, _), seeds) in enumerate(zip(runs, found)):
        ax = axes[0 if single else i]
        for k, part in enumerate(shown):
            style = style_of(i) | dict(shift=i, label=name) if single else style_of_part(part, shown) | dict(shift=k, label=part)
            draw_mean(ax, [curves[part] for curves in seeds if part in curves], smooth, **style)
        ax.set(xlabel='iteration', ylabel=fill(name_of_key(key), 3), title='' if single else fill(name, len(axes)))
    values = np.concatenate([y for seeds in found for curves in seeds for _, y in curves.values()])
    if values.min() > 0 and np.quantile(values, 0.95) > 100 * np.quantile(values, 0.05):
        axes[0].set_yscale('log')
    kind = 'run' if single else 'layer' if all(part.isdigit() for part in parts) else 'part'
    kind += f', {len(shown)} of {len(parts)}' * (shown != parts)
    return finish(figure, kind + OVER_SEEDS * any(len(folders) > 1 for _, folders in runs))


COLUMNS = 400           # of a heat map; each shows the largest of the values in it, so that no spike is lost


def heat_map(curves, depth):
    """Return the edges of the columns of a heat map, and its values (depth, columns), NaN for none, of {layer: (iterations,
    numbers)}. The map ends where the run ends."""
    iterations = np.unique(np.concatenate([x for x, _ in curves.values()]))
    values = np.full((depth, len(iterations)), np.nan)
    for layer, (x, y) in curves.items():
        values[int(layer) - 1, np.searchsorted(iterations, x)] = y
    starts = np.arange(0, len(iterations), -(-len(iterations) // COLUMNS))
    middles = (iterations[starts[1:]] + iterations[starts[:-1]]) / 2
    end = iterations[-1] + (len(iterations) == 1)
    return [iterations[0], *middles, end], np.fmax.reduceat(values, starts, axis=1)


def scale_of(values):
    """Return a scale of colours: logarithmic if the values are positive and their middle 90% span a factor of 10."""
    low, high = values.min(), values.max()
    if low > 0 and np.quantile(values, 0.95) > 10 * np.quantile(values, 0.05):
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low + 1)


def plot_heat(runs):
    """All that a run logs per layer, as heat maps of layers × iterations: norms too with --log_layers=True.

    A column of the picture is one run if there are several, and their colours mean the same. Grey: there is no such number."""
    maps = []
    for _, folder in runs:
        curves = {key: curves for key, curves in read_curves(folder, ['log.jsonl']).items() if all(map(str.isdigit, curves))}
        depth = max((int(layer) for layers in curves.values() for layer in layers), default=0)
        maps.append({key: heat_map(layers, depth) for key, layers in curves.items()})
    keys = [*dict.fromkeys(key for of_run in maps for key in of_run)]
    if not keys:
        raise ValueError(f'{runs[0][1]} has logged no number per layer: each evaluation does, but not with --parallel=fsdp')
    columns = len(runs) if len(runs) > 1 else 3
    figure, axes = panels(len(keys) * len(runs), columns, 1.5)
    cells = [(key, name, of_run) for key in keys for (name, _), of_run in zip(runs, maps)]
    for i, (ax, (key, name, of_run)) in enumerate(zip(axes, cells)):
        above = f'{fill(name, len(runs))}\n\n' * (i < len(runs) > 1)
        ax.set_title(above + name_of_key(key), fontsize=7)
        ax.set(facecolor='0.85', xlabel='iteration', ylabel='layer' * (i % columns == 0))
        ax.grid(False)
        if key in of_run:
            edges, values = of_run[key]
            of_all = np.concatenate([other[key][1].ravel() for other in maps if key in other])
            image = ax.pcolormesh(edges, np.arange(len(values) + 1) + 0.5, np.ma.masked_invalid(values), rasterized=True,
                                  norm=scale_of(of_all[np.isfinite(of_all)]))
            figure.colorbar(image, ax=ax, pad=0.02).ax.tick_params(labelsize=6)
            ax.yaxis.get_major_locator().set_params(nbins=4, integer=True)
    return finish(figure)


# ----------------------------------------------------------------------------- measurements

def read_measured(folder, what):
    """Return the result of this measurement in measure.json. Raise ValueError if there is none."""
    path = os.path.join(folder, 'measure.json')
    measured = (read_json(path, 'remove it and measure again', math.nan) or {}).get(what)
    if not measured:
        raise ValueError(f'there is no {what} in {path}: make it with  python -m lab.measure --out_dir={folder} --what={what}')
    return measured


def column(measured, key):
    """Return the numbers of a key along the depth, NaN where a row lacks it: 'ma' of [{'ma': …}, …], 'wq.spectral' of {'wq':
    [{'spectral': …}, …]}."""
    for name in key.split('.'):
        if isinstance(measured, dict):
            measured = measured.get(name, [])
        else:
            measured = [row.get(name, math.nan) if isinstance(row, dict) else math.nan for row in measured]
    return measured


HALVES = dict(x='blocks passed', first=0.0, step=0.5)       # in front of all blocks, behind each attention, behind each FFN


def along_depth(runs, what, shown, x='layer', first=1.0, step=1.0, y='', linear=0, dashed=''):
    """Plot a curve for each run along the depth, which starts at `first`, in a panel for each entry of `shown`: {its name: the
    key of a `column`, a function of the measurement, or the keys of a curve and of a dashed one}. Numbers of heads become their
    mean, with bars from the lowest to the highest. The last `linear` panels have no log axis. More than four runs have no dashed
    curves."""
    figure, axes = panels(len(shown), sharey=bool(y))
    about = dict(run=None)
    for k, (ax, (name, keys)) in enumerate(zip(axes, shown.items())):
        keys = keys if isinstance(keys, tuple) else (keys,)
        for i, (run, folder) in enumerate(runs):
            measured = read_measured(folder, what)
            styles = [style_of(i) | dict(label=run)] + [dict(color=COLORS[i], ls='--', lw=0.8)] * (2 * len(runs) <= MOST)
            for key, style in zip(keys, styles):
                values = np.array(key(measured) if callable(key) else column(measured, key), float)
                at = first + step * np.arange(len(values))
                if values.ndim > 1:
                    mean, low, high = values.mean(1), values.min(1), values.max(1)
                    shift = 0.06 * (i - (len(runs) - 1) / 2)            # so that bars stand side by side
                    ax.errorbar(at + shift, mean, [mean - low, high - mean], elinewidth=0.8, **style)
                    about['a bar reaches from the lowest head to the highest'] = None
                elif np.isfinite(values).any():
                    ax.plot(at, values, **style)
                    about |= {f'dashed: {dashed}': None} if style is styles[-1] and key is not keys[0] else {}
        if k < len(shown) - linear and ax.lines:
            ax.set_yscale('log')
        ax.set(xlabel=x, ylabel=y or name, title=name if y else '')
        ax.xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, '; '.join(about))


def draw_histogram(ax, histogram, shift=0, **style):
    """Draw a histogram of log10, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left out."""
    counts = np.array(histogram['counts'])
    held = np.flatnonzero(counts > 1e-4 * counts.sum())
    inside = np.arange(held[0], held[-1] + 1) if len(held) else held
    draw_curve(ax, histogram['start'] + (inside + 0.5) * histogram['width'], counts[inside] / counts.sum(), shift, **style)


def plot_sweep(runs):
    """The validation loss of a sweep's runs.csv against the learning rate, a curve for each row of its table.

    The curve is seed 1, which chose the rate. A star is the mean of the seeds that are compared, with its standard error. A rate
    at which seed 1 diverged is a gap."""
    from lab.sweep.table import read_csv, rows_of, runs_of  # here, for the other pictures do without SciPy
    figure, axes = panels(len(runs), height=2.6, sharex=False)
    for ax, (name, folder) in zip(axes, runs):
        path = os.path.join(folder, 'runs.csv')
        rows = rows_of(runs_of(read_csv(path), path))
        if not rows:
            raise ValueError(f'there is no {path}, or it has no runs yet')
        for k, row in enumerate(rows):
            x = [float(point[0]) if point else k for point in row.points]
            first = [at.val_loss[(at.seed == 1) & (at.status == 'done')].mean() for at in row.points.values()]
            draw_curve(ax, x, first, label=str(row), **style_of(k))
            if any(row.compared.seed > 1) and len(losses := row.losses()):
                ax.errorbar(float(row.best[0]) if row.best else k, losses.mean(), losses.sem() if len(losses) > 1 else 0,
                            **style_of(k) | dict(marker='*', ls='', ms=7))
        ax.set(xscale='log' if row.keys else 'linear', xlabel='learning rate' if row.keys else 'row of the table',
               ylabel='validation loss (nats)', yscale='log' if 0 < 4 * ax.dataLim.y0 < ax.dataLim.y1 else 'linear',
               title=name if len(runs) > 1 else '')
    return finish(figure, 'curve: seed 1\nstar: mean ± standard error of the seeds compared')


# ----------------------------------------------------------------------------- all pictures

def pictures():
    """Return {name: function of [(run's name, folder), …], which returns a figure}. lab.measure has most of them."""
    from lab.coordinates import plot_coordinates
    from lab.measure import MEASUREMENTS
    measured = {name: measure.plot for name, measure in MEASUREMENTS.items()}
    return {'loss': plot_loss, 'heat': plot_heat, **measured, 'coordinates': plot_coordinates, 'sweep': plot_sweep}


def picture(what, folders, labels=(), smooth=0, hide=(), xlim=None, ylim=None, log=''):
    """Return one of pictures(), or a key over the iterations, as a figure of matplotlib. `hide` is for the loss: 'rate', 'train'.
    Limits and log axes are of the first panel, and of those that share its axes."""
    folders, known = [*dict.fromkeys(os.path.normpath(folder) for folder in folders)], pictures()
    over_seeds = what == 'loss' or what not in known    # runs that differ only in their seed are one curve
    if {*hide} - {'rate', 'train'} or hide and what != 'loss' or smooth and not over_seeds:
        raise ValueError(f'what={what}: --hide=rate,train is for the picture of the loss, --smooth for that and for a key')
    configs = {folder: read_object(folder, 'config.json') for folder in folders}
    groups = group_by_seed(configs) if over_seeds else [[folder] for folder in folders]
    names = [*labels] or name_runs(groups)
    if len(names) != len(groups):
        raise ValueError(f'labels={",".join(labels)}: wants {len(groups)} names, for {"; ".join(name_runs(groups))}')
    with matplotlib.rc_context(STYLE):
        if what == 'loss':
            figure = plot_loss([*zip(names, groups)], smooth, hide)
        elif over_seeds:
            figure = plot_key([*zip(names, groups)], what, smooth)
        else:
            figure = known[what]([*zip(names, folders)])
        first = figure.axes[0]
        for axis in log:
            getattr(first, f'set_{axis}scale')('log')
        first.set(**{name: limits for name, limits in (('xlim', xlim), ('ylim', ylim)) if limits})
    return figure


def draw(what, folders, out, **more):
    """Write a picture to the file `out`, with 200 dots an inch. An SVG is the same each time, so that git sees real changes
    alone. `more` goes to picture()."""
    figure = picture(what, folders, **more)
    with matplotlib.rc_context({'svg.hashsalt': 'nanonorm'}):
        figure.savefig(out, dpi=200, bbox_inches='tight', pad_inches=0.05,
                       metadata={'Date': None} if out.endswith('.svg') else None)
    print(f'wrote {out}')


def low_high(text):
    """'2,3' → (2.0, 3.0); either may be left out, as in '2,' and ',3'"""
    low, high = (float(part) if part else None for part in text.split(','))
    return low, high


def words(text):
    return text.split(',')


def main():
    about = {name: plot.__doc__ for name, plot in pictures().items()} | {'KEY': plot_key.__doc__}
    parser = argument_parser('lab.plot', __doc__, 'out_dir of each run, or sweep', epilog='pictures:\n' + '\n'.join(
        f'  {name:16} {text.partition(chr(10))[0]}' for name, text in about.items()))
    parser.add_argument('--what', default='loss', metavar='PICTURE|KEY',
                        help='default: loss. All except loss, heat, sweep and KEY need python -m lab.measure')
    parser.add_argument('--out', help='.png, .svg or .pdf; default: WHAT.png in the first folder')
    parser.add_argument('--labels', default=(), type=words, metavar='A,B', help='names of the curves, not folders and keys')
    parser.add_argument('--hide', default=(), type=words, metavar='rate,train', help='no learning rate, no training loss')
    parser.add_argument('--xlim', type=low_high, metavar='LOW,HIGH', help='limits of the axis; one may be left out: --xlim=100,')
    parser.add_argument('--ylim', type=low_high, metavar='LOW,HIGH', help='of the first panel, and of those that share its axis')
    parser.add_argument('--log', default='', choices=('x', 'y', 'xy'), help='logarithmic axes')
    parser.add_argument('--smooth', default=0, type=int, metavar='N', help='each point is the mean over the last N iterations')
    options = vars(parser.parse_args())
    begin(options.pop('debug'))
    what, folders = options.pop('what'), options.pop('folders')
    draw(what, folders, options.pop('out') or os.path.join(folders[0], f'{what}.png'), **options)


if __name__ == '__main__':
    main()
