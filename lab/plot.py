"""
Draw pictures of runs. The ending of --out chooses the format: .png, .svg or .pdf.

    python -m lab.plot out-quick                                    # the loss: out-quick/loss.png
    python -m lab.plot out-a out-b --out=loss.pdf --labels=Pre-LN,DNT         # several runs, with names of your own
    python -m lab.plot out-a out-b --ylim=2,3 --smooth=100          # also --xlim, and --log=y
    python -m lab.plot out-a out-b --hide=rate,train                # the validation loss alone
    python -m lab.plot out-a --what=heat                            # all that is logged per layer, layers × iterations
    python -m lab.plot out-a out-b --what=gradients                 # another picture of the list below
    python -m lab.plot out-a out-b --what=grad_norm                 # any number of log.jsonl over the iterations
    python -m lab.plot out-a out-b --what=updates.qk                # any number of measure.jsonl

In a notebook: from lab.plot import picture; picture('loss', ['out-quick', 'out-s1'])
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

from engine.process import begin

import argparse
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
from lab.runs import group_by_seed, mean_interval, name_of_group, read_object, section_of, tell_apart

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


# ----------------------------------------------------------------------------- names of runs

def name_runs(groups):
    """Return a name for each group of runs: its folder, and the architecture, optimizer and up to three other keys in which the
    groups differ. What the folder's name says is left out, and so are keys of logging and of the machine."""
    configs = [read_object(os.path.join(folders[0], 'config.json')) for folders in groups]
    archs, keys = tell_apart(configs)
    keys = [key for key in keys if section_of(key) not in ('run', 'machine') and key != 'optimizer']
    folders, names = [name_of_group(group) for group in groups], []
    parts = [[arch, config.get('optimizer', ''), *(f'{key}={config[key]}' for key in keys if key in config)]
             for arch, config in zip(archs, configs)]
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    for group, folder, about in zip(groups, folders, parts):
        about = [part for part in about if part and part not in {*shared, *re.split(r'[\W_]+', folder)}]
        about[5:] = ['…'] * (len(about) > 5)
        name = folder if folders.count(folder) == 1 else os.path.normpath(group[0])
        names.append(name + f' ({", ".join(about)})' * bool(about) + f', {len(group)} seeds' * (len(group) > 1))
    return names


def name_of_key(key):
    first, _, rest = key.removeprefix('layers.').partition('.')
    return f'{NAMES[first]}, {rest}'.removesuffix(', ') if first in NAMES else key


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
    i = names.index(name)
    if all(other.isdigit() for other in names):
        return style_of(i) | dict(color=matplotlib.colormaps['viridis'](0.9 * i / max(1, len(names) - 1)), ls='-')
    others = [other for other in names if other not in TYPES]
    return style_of(TYPES.index(name)) if name in TYPES else style_of(len(TYPES) + others.index(name))


def draw_curve(ax, x, y, shift=0, **style):
    """Draw a curve. A long one has about six markers, and `shift` keeps those of several curves apart."""
    step = max(1, len(x) // 6) if len(x) > 12 else 1
    return ax.plot(x, y, markevery=(shift * max(1, step // MOST) % step, step), **style)


def finish(figure, title=''):
    """Leave out the names of axes that a neighbour shows too, and put a legend with this title below the figure."""
    grid = {(spec.rowspan.start, spec.colspan.start): ax for ax in figure.axes if (spec := ax.get_subplotspec())}
    names = {place: (ax.get_xlabel(), ax.get_ylabel()) for place, ax in grid.items()}
    entries = {}
    for (row, column), ax in grid.items():
        xlabel, ylabel = names[row, column]
        if names.get((row + 1, column), ('', ''))[0] == xlabel:
            ax.set_xlabel('')
        if names.get((row, column - 1), ('', ''))[1] == ylabel:
            ax.set_ylabel('')
        for handle, label in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(textwrap.fill(label, int(FULL / LETTER)), handle)
    if entries:
        columns = int(figure.get_figwidth() / (LETTER * max(map(len, entries)) + 0.5))
        figure.legend(entries.values(), entries, title=title, loc='upper left', bbox_to_anchor=(0.02, 0), alignment='left',
                      ncols=min(max(1, columns), len(entries)))
    return figure


def fill(text, columns):
    """Break a title into lines as wide as a panel, of so many side by side."""
    return textwrap.fill(text, int((FULL / columns - 0.4) / LETTER))


def symbols(text):
    """'gradient of wq', 'W_q W_k' → with $W_q$."""
    return re.sub(r'\b(?:W_|w)([qkvo123])\b', r'$W_\1$', text)


# ----------------------------------------------------------------------------- numbers over the iterations

def numbers_in(value, key=''):
    """Return {key: {curve: number}} of the numbers in a row of log.jsonl or measure.jsonl.

    A key is a path of names with dots between them. A number is one curve, named ''. A list is a curve for each of its items,
    which are layers, named 1, 2, …, or by their entry 'at'. A list within a list, as of heads, is its mean."""
    if is_number(value):
        return {key: {'': value}}
    found = {}
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in ('iter', 'histogram'):
                found.update(numbers_in(part, f'{key}.{name}' if key else name))
    elif isinstance(value, list):
        for i, item in enumerate(value, 1):
            name = str(item.get('at', i)) if isinstance(item, dict) else str(i)
            for path, curves in numbers_in(item, key).items():
                found.setdefault(path, {})[name] = sum(curves.values()) / len(curves)
    return found


def read_curves(folder, files=('log.jsonl', 'measure.jsonl'), names=()):
    """Return {key: {curve: (iterations, numbers)}} of a run's files, without numbers that are not finite; `names` of the keys to
    look at, by default all. A run that diverged has the key 'diverged'."""
    log = os.path.join(folder, 'log.jsonl')
    if not os.path.exists(log):
        raise ValueError(f'there is no {log}: {folder!r} is not the folder of a run')
    points = {}
    for row in (row for name in files for row in read_rows(os.path.join(folder, name))):
        points.pop('diverged', None)                    # a resumed run has gone on
        kept = {name: row[name] for name in names or row if name in row}
        for key, curves in numbers_in(dict(diverged=1) if 'diverged' in row else kept).items():
            for curve, value in curves.items():
                if math.isfinite(value):
                    points.setdefault(key, {}).setdefault(curve, []).append((row['iter'], value))
    return {key: {curve: np.array(found, float).T for curve, found in curves.items()} for key, curves in points.items()}


def smoothed(x, y, iterations):
    """Return y as its mean over the last so many iterations; 0: as it is."""
    if not iterations:
        return y
    sums, first = np.concatenate(([0.0], y.cumsum())), np.searchsorted(x, x - iterations, 'right')
    return (sums[1:] - sums[first]) / (np.arange(len(x)) + 1 - first)


def draw_mean(ax, seeds, smooth=0, shift=0, band=True, **style):
    """Draw the mean over seeds, [(iterations, numbers), …], at the iterations that all have, in a band of its 95% interval.
    Return the iterations and the mean."""
    seeds = [dict(zip(x, smoothed(x, y, smooth))) for x, y in seeds]
    x = np.array(sorted(set.intersection(*map(set, seeds)))) if seeds else np.array([])
    if not len(x):
        return x, x
    mean, half = mean_interval([[seed[it] for it in x] for seed in seeds])
    draw_curve(ax, x, mean, shift, **style)
    if band and len(seeds) > 1:
        limits = ax.dataLim.frozen()
        ax.fill_between(x, mean - half, mean + half, color=style['color'], alpha=0.2, lw=0)
        ax.dataLim.set(limits)                          # of two seeds the band is too wide for the axis
    return x, mean


# ----------------------------------------------------------------------------- the loss

START, LONG = 0.02, 50          # the share of a run in which the loss falls so far that the rest looks flat; points of a long run
LOSS_KEYS = ('loss', 'val_loss', 'val_top1', 'lr')
OVER_SEEDS = '\n(several seeds: their mean, in a band of its 95% interval)'


def leave_out_start(ax, curves):
    """End the axis below the START of these curves, [(iterations, numbers), …], and below all other curves."""
    late = [y[x > START * x[-1]] for x, y in curves if x[-1] > 0]
    top, low = max((np.quantile(y, 0.99) for y in late), default=math.inf), min((y.min() for y in late), default=0)
    if top < ax.dataLim.y1:
        ax.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low))
        ax.set_title('the axis leaves out the start', loc='right', fontsize=8, color='0.4')


def name_with_loss(name, seeds):
    """Return a run's name with its lowest validation loss, its last accuracy on images, and how many of its seeds diverged."""
    lows, right = ([curves[key][''][1] for curves in seeds if key in curves] for key in ('val_loss', 'val_top1'))
    mean, half = mean_interval([y.min() for y in lows]) if lows else (math.nan, math.nan)
    lost = sum('diverged' in curves for curves in seeds)
    name += f': {mean:.3f}' * bool(lows) + f' ± {half:.3f}' * math.isfinite(half)
    name += f', {np.mean([y[-1] for y in right]):.1%}' if right else ''
    return name + (', diverged' if len(seeds) == 1 else f', {lost} diverged') * (lost > 0)


def plot_loss(runs, smooth=0, hide=()):
    """Training and validation loss, and the learning rate; for images also the validation accuracy.

    Up to four runs have both losses in one panel, more have a panel for each. The axis leaves out the first 2% of a long run.
    Only the training loss is smoothed. Seeds that diverged are left out if others did not."""
    found = [[read_curves(folder, ['log.jsonl'], LOSS_KEYS) for folder in folders] for _, folders in runs]
    names = [name_with_loss(name, seeds) for (name, _), seeds in zip(runs, found)]
    found = [[curves for curves in seeds if 'diverged' not in curves] or seeds for seeds in found]
    logged = {key for seeds in found for curves in seeds for key in curves}
    losses = [key for key in ('loss', 'val_loss') if key in logged and not (key == 'loss' and 'train' in hide)]
    if not losses:
        raise ValueError(f'{runs[0][1][0]} has no loss in its log.jsonl yet, so that there is nothing to draw')
    both = len(losses) == 2 and 2 * len(runs) <= MOST
    shown = {'loss (nats)': losses} if both else {f'{NAMES[key]} (nats)': [key] for key in losses}
    shown |= {'validation top-1': ['val_top1']} if 'val_top1' in logged else {}
    shown |= {'learning rate': ['lr']} if 'lr' in logged and 'rate' not in hide else {}
    heights = [1.9 if 'loss' in name else 1.2 for name in shown]
    figure, axes = panels(len(shown), 1, sum(heights) / len(shown), height_ratios=heights)
    is_long = any(len(x) >= LONG for seeds in found for curves in seeds for x, _ in curves.get('loss', {}).values())
    for ax, (name, keys) in zip(axes, shown.items()):
        drawn, ended = [], []
        for i, seeds in enumerate(found):
            for key in keys:
                curves = [curves[key][''] for curves in seeds if key in curves]
                style = style_of(i) | dict(label=names[i])
                if both and key == 'loss' and any('val_loss' in curves for curves in seeds):
                    style |= dict(lw=0.8, alpha=0.5, marker='', band=False, label='')           # pale
                curve = draw_mean(ax, curves, smooth * (key == 'loss'), i, **style)
                drawn += [curve] if curves else []
                ended += [curve] if curves and 'diverged' not in seeds[0] else []
        ax.set(xlabel='iteration', ylabel=textwrap.fill(name, 16))
        if is_long and 'loss' in name:
            leave_out_start(ax, ended or drawn)
        peaks = [y.max() for _, y in drawn]
        if name == 'learning rate' and max(peaks) > 10 * min(peaks) > 0:
            ax.set(yscale='log', ylim=(min(peaks) / 30, None))
    about = 'run: lowest validation loss' + ', last top-1' * ('val_top1' in logged)
    about += '\n(pale: training, the other: validation)' * both
    return finish(figure, about + OVER_SEEDS * any(len(folders) > 1 for _, folders in runs))


# ----------------------------------------------------------------------------- any number

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


def plot_key(key, runs, smooth=0):
    """Any key of log.jsonl or measure.jsonl over the iterations.

    A number is a curve for each run. A list, such as attention.max_logit, has a panel for each run, with a curve for each layer:
    the mean over its heads. So has a key that stands before several, such as grad_norms, with a curve for each block type. Of
    more than eight layers, eight are drawn, from the first to the last. The axis is logarithmic if the values are positive and
    their middle 90% span a factor of more than 100."""
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
    size = -(-len(iterations) // COLUMNS)
    values = np.pad(values, ((0, 0), (0, -len(iterations) % size)), constant_values=np.nan).reshape(len(values), -1, size)
    starts = iterations[::size]
    edges = [starts[0], *(starts[1:] + starts[:-1]) / 2, iterations[-1] if len(iterations) > 1 else starts[0] + 1]
    return edges, np.fmax.reduce(values, axis=-1)


def scale_of(values):
    """Return a scale of colours: logarithmic if the values are positive and their middle 90% span a factor of 10."""
    low, high = values.min(), values.max()
    if low > 0 and np.quantile(values, 0.95) > 10 * np.quantile(values, 0.05):
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low + 1)


def plot_heat(runs):
    """All that a run logs per layer, as heat maps of layers × iterations: norms too with --log_layers=True.

    A column of the picture is one run if there are several, and their colours mean the same. Grey: there is no such number.
    Where several iterations share a column of pixels, the largest value is shown."""
    maps = []
    for _, folder in runs:
        curves = {key: curves for key, curves in read_curves(folder, ['log.jsonl']).items() if all(map(str.isdigit, curves))}
        depth = max((int(layer) for layers in curves.values() for layer in layers), default=0)
        maps.append({key: heat_map(layers, depth) for key, layers in curves.items()})
    keys = [*dict.fromkeys(key for of_run in maps for key in of_run)]
    if not keys:
        raise ValueError(f'{runs[0][1]} has logged no number per layer: each evaluation does, but not with --parallel=fsdp')
    figure, axes = panels(len(keys) * len(runs), len(runs) if len(runs) > 1 else 3, 1.5)
    cells = [(key, name, of_run) for key in keys for (name, _), of_run in zip(runs, maps)]
    for i, (ax, (key, name, of_run)) in enumerate(zip(axes, cells)):
        title = name_of_key(key) if len(runs) == 1 or i % len(runs) == 0 else ''
        ax.set_title(f'{fill(name, len(runs))}\n\n{title}' if i < len(runs) > 1 else title, fontsize=7)
        ax.set(facecolor='0.85', xlabel='iteration', ylabel='layer')
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
    """Return the result of this measurement in measure.json. Raise ValueError if it is not there, or empty."""
    path = os.path.join(folder, 'measure.json')
    measured = read_json(path, 'remove it and measure again', math.nan)
    if measured is None:
        raise ValueError(f'there is no {path}: make it with  python -m lab.measure --out_dir={folder}')
    if not measured.get(what):
        raise ValueError(f'{path} holds no {what}: make it with  python -m lab.measure --out_dir={folder} --what={what}')
    return measured[what]


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
    explained = {}
    for k, (ax, (name, keys)) in enumerate(zip(axes, shown.items())):
        key, *bound = keys if isinstance(keys, tuple) else [keys]
        for i, (run, folder) in enumerate(runs):
            measured = read_measured(folder, what)
            values = key(measured) if callable(key) else column(measured, key)
            at = first + step * np.arange(len(values))
            if values and isinstance(values[0], list):
                heads = np.array(values)
                mean = heads.mean(1)
                ax.errorbar(at + 0.06 * (i - (len(runs) - 1) / 2), mean, [mean - heads.min(1), heads.max(1) - mean],
                            elinewidth=0.8, label=run, **style_of(i))
                explained['a bar reaches from the lowest head to the highest'] = True
            elif np.isfinite(values).any():
                ax.plot(at, values, label=run, **style_of(i))
            for other in (column(measured, key) for key in bound if 2 * len(runs) <= MOST):
                if np.isfinite(other).any():
                    ax.plot(at, other, color=COLORS[i], ls='--', lw=0.8)
                    explained[f'dashed: {dashed}'] = True
        if k < len(shown) - linear and ax.lines:
            ax.set_yscale('log')
        ax.set(xlabel=x, ylabel=y or name, title=name if y else '')
        ax.xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, '; '.join(['run', *explained]))


def draw_histogram(ax, histogram, shift=0, **style):
    """Draw a histogram of log10, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left out."""
    counts = np.array(histogram['counts'])
    held = np.flatnonzero(counts > 1e-4 * counts.sum())
    inside = np.arange(held[0], held[-1] + 1) if len(held) else held
    draw_curve(ax, histogram['start'] + (inside + 0.5) * histogram['width'], counts[inside] / counts.sum(), shift, **style)


# ----------------------------------------------------------------------------- sweeps

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
            if any(row.compared.seed > 1) and len(losses := row.losses('val')):
                ax.errorbar(float(row.best[0]) if row.best else k, losses.mean(), losses.sem() if len(losses) > 1 else 0,
                            **style_of(k) | dict(marker='*', ls='', ms=7))
        ax.set(xscale='log' if row.keys else 'linear', xlabel='learning rate', ylabel='validation loss (nats)',
               yscale='log' if 0 < 4 * ax.dataLim.y0 < ax.dataLim.y1 else 'linear', title=name if len(runs) > 1 else '')
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
    is_key = what not in known
    if hide and what != 'loss' or smooth and what != 'loss' and not is_key:
        raise ValueError(f'what={what}: hide is for the picture of the loss, smooth for that and for a key')
    groups = [[folder] for folder in folders]
    if what == 'loss' or is_key:                        # runs that differ only in their seed are one curve
        groups = group_by_seed({folder: read_object(os.path.join(folder, 'config.json')) for folder in folders})
    names = [*labels] or name_runs(groups)
    if len(names) != len(groups):
        raise ValueError(f'labels={",".join(labels)}: wants {len(groups)} names, for {"; ".join(name_runs(groups))}')
    with matplotlib.rc_context(STYLE):
        if is_key:
            figure = plot_key(what, [*zip(names, groups)], smooth)
        elif what == 'loss':
            figure = plot_loss([*zip(names, groups)], smooth, hide)
        else:
            figure = known[what]([(name, folder) for name, (folder,) in zip(names, groups)])
        first = figure.axes[0]
        for axis in log:
            getattr(first, f'set_{axis}scale')('log')
        first.set(**{name: limits for name, limits in (('xlim', xlim), ('ylim', ylim)) if limits})
        if ylim:
            first.set_title('', loc='right')            # which says what was left out
    return figure


def save(figure, out):
    """Write a figure to a file, with 200 dots an inch. An SVG is the same each time, so that git sees real changes alone."""
    out = out if os.path.splitext(out)[1] else f'{out}.png'
    with matplotlib.rc_context({'svg.hashsalt': 'nanonorm'}):
        figure.savefig(out, dpi=200, bbox_inches='tight', pad_inches=0.05,
                       metadata={'Date': None} if out.endswith('.svg') else None)
    print(f'wrote {out}')


def draw(what, folders, out, **more):
    """Write a picture to the file `out`. `more` goes to picture()."""
    save(picture(what, folders, **more), out)


def limits(text):
    """'2,3' → (2.0, 3.0); either may be left out, as in '2,' and ',3'"""
    try:
        low, high = (float(part) if part else None for part in text.split(','))
    except ValueError:
        raise ValueError(f'{text!r}: wants LOW,HIGH, as 2,3 or 2, or ,3') from None
    return low, high


def main():
    about = {name: plot.__doc__ for name, plot in pictures().items()} | {'KEY': plot_key.__doc__}
    epilog = '\n'.join(f'  {name:16} {text.partition(chr(10))[0]}' for name, text in about.items())
    parser = argparse.ArgumentParser(prog='python -m lab.plot', description=__doc__, epilog=f'pictures:\n{epilog}',
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('folders', nargs='+', help='out_dir of each run, or sweep')
    parser.add_argument('--what', default='loss', metavar='PICTURE|KEY',
                        help='default: loss. All except loss, heat, sweep and KEY need python -m lab.measure')
    parser.add_argument('--out', help='.png, .svg or .pdf; default: WHAT.png in the first folder')
    parser.add_argument('--labels', default='', metavar='A,B', help='names of the curves, instead of folders and keys')
    parser.add_argument('--hide', default='', metavar='rate,train', help='leave out the learning rate or the training loss')
    parser.add_argument('--xlim', metavar='LOW,HIGH', help='limits of the axis; one may be left out, as in --xlim=100,')
    parser.add_argument('--ylim', metavar='LOW,HIGH', help='the same of the first panel, and of those that share its axis')
    parser.add_argument('--log', default='', choices=('x', 'y', 'xy'), help='logarithmic axes')
    parser.add_argument('--smooth', default=0, type=int, metavar='N', help='each point is the mean over the last N iterations')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    begin(args.debug)
    labels, hide = (text.split(',') if text else [] for text in (args.labels, args.hide))
    if {*hide} - {'rate', 'train'} or args.smooth < 0:
        raise ValueError(f'hide={args.hide}, smooth={args.smooth}: hide wants rate, train or both, smooth a number of iterations')
    xlim, ylim = (limits(text) if text else None for text in (args.xlim, args.ylim))
    out = args.out or os.path.join(args.folders[0], f'{args.what}.png')
    draw(args.what, args.folders, out, labels=labels, smooth=args.smooth, hide=hide, xlim=xlim, ylim=ylim, log=args.log)


if __name__ == '__main__':
    main()
