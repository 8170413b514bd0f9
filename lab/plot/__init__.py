"""
Pictures of runs, and what those of lab.measure share. In a notebook:

    from lab.plot import picture
    picture('loss', ['out-quick', 'out-s1'])
"""
import math
import os
import re
import textwrap

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from engine.files import read_json, read_rows
from lab.runs import group_by_seed, mean_interval, name_of_group, numbers_in, read_object, section_of, tell_apart

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
START, LONG = 0.02, 50          # the share of a run in which the loss falls so far that the rest looks flat; points of a long run
OVER_SEEDS = '\n(several seeds: their mean, in a band of its 95% interval)'
NAMES = {'loss': 'training loss', 'val_loss': 'validation loss', 'lr': 'learning rate', 'grad_norm': 'norm of the gradient',
         'grad_norms': 'norm of the gradient', 'weight_norms': 'norm of the weights', 'update_norms': 'norm of the update',
         'residual_rms': 'RMS of the residual stream', 'attn_rms': "RMS of attention's branch",
         'ffn_rms': "RMS of the FFN's branch", 'max_logits': 'largest attention logit',
         'attn_entropy': 'entropy of attention, over that of equal weights',
         'dead_units': 'share of dead units of the FFN', 'updates': 'relative size of a step'}


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


def panels(count, columns=0, height=2.2, **more):
    """Return a figure of so many panels, and their axes row by row. Without pyplot, a notebook keeps its backend."""
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


def draw_histogram(ax, histogram, shift=0, **style):
    """Draw a histogram of log10, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left out."""
    counts = np.array(histogram['counts'])
    held = np.flatnonzero(counts > 1e-4 * counts.sum())
    inside = np.arange(held[0], held[-1] + 1) if len(held) else held
    draw_curve(ax, histogram['start'] + (inside + 0.5) * histogram['width'], counts[inside] / counts.sum(), shift, **style)


def finish(figure, title=''):
    """Leave out the names of axes whose numbers a neighbour shows, and put a legend with this title below the figure."""
    entries = {}
    for ax in figure.axes:
        for axis, side in (ax.xaxis, 'labelbottom'), (ax.yaxis, 'labelleft'):
            if not axis.get_tick_params().get(side, True):
                axis.set_label_text('')
        for handle, label in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(textwrap.fill(label, int(FULL / LETTER)), handle)
    if entries:
        columns = int(figure.get_figwidth() / (LETTER * max(map(len, entries)) + 0.5))
        figure.legend(entries.values(), entries, title=title, loc='upper left', bbox_to_anchor=(0.02, 0), alignment='left',
                      ncols=min(max(1, columns), len(entries)))
    return figure


def read_curves(folder, files=('log.jsonl', 'measure.jsonl')):
    """Return {key: {curve: (iterations, numbers)}} of a run's files, of several heads their mean, without numbers that are not
    finite. A run that diverged has the key 'diverged'."""
    values, points = {}, {}
    if not os.path.exists(f'{folder}/log.jsonl'):
        raise ValueError(f'there is no {folder}/log.jsonl: {folder!r} is not the folder of a run')
    for row in (row for name in files for row in read_rows(os.path.join(folder, name))):
        for key, curve, value in numbers_in(dict(diverged=1) if 'diverged' in row else row):
            values.setdefault((key, curve, row['iter']), []).append(value)
    for (key, curve, it), found in values.items():
        if math.isfinite(mean := sum(found) / len(found)):
            points.setdefault(key, {}).setdefault(curve, []).append((it, mean))
    return {key: {curve: np.array(found, float).T for curve, found in curves.items()} for key, curves in points.items()}


def draw_mean(ax, seeds, shift=0, band=True, **style):
    """Draw the mean over seeds, [(iterations, numbers), …], at the iterations that all have, in a band of its 95% interval."""
    seeds = [dict(zip(x, y)) for x, y in seeds]
    if not (x := sorted(set.intersection(*map(set, seeds))) if seeds else []):
        return
    mean, half = mean_interval([[seed[it] for it in x] for seed in seeds])
    draw_curve(ax, x, mean, shift, **style)
    if band and len(seeds) > 1:
        limits = ax.dataLim.frozen()
        ax.fill_between(x, mean - half, mean + half, color=style['color'], alpha=0.2, lw=0)
        ax.dataLim.set(limits)                          # of two seeds the band is too wide for the axis


def name_with_loss(name, seeds):
    """Return a run's name with its lowest validation loss, and how many of its seeds diverged."""
    lows = [curves['val_loss'][''][1].min() for curves in seeds if 'val_loss' in curves]
    mean, half = mean_interval(lows) if lows else (math.nan, math.nan)
    name += f': {mean:.3f}' * bool(lows) + f' ± {half:.3f}' * math.isfinite(half)
    lost = sum('diverged' in curves for curves in seeds)
    return name + (', diverged' if len(seeds) == 1 else f', {lost} diverged') * (lost > 0)


def end_axis(ax, curves):
    """End the axis above these curves, [(iterations, numbers), …], or if one of them is long, below their START."""
    is_long = any(len(x) >= LONG for x, _ in curves)
    late = [y[x > START * x[-1]] if is_long else y for x, y in curves if x[-1] > 0]
    top, low = max((np.quantile(y, 0.99 if is_long else 1) for y in late), default=math.inf), min(y.min() for _, y in curves)
    if top < ax.dataLim.y1:
        ax.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low))


def plot_loss(runs, hide=''):
    """Training and validation loss, and the learning rate; for images also the validation accuracy.

    The axis leaves out the first 2% of a long run, and what exceeds the runs that did not diverge. Seeds that diverged are left
    out if others did not."""
    found = [[read_curves(folder, ['log.jsonl']) for folder in folders] for _, folders in runs]
    names = [name_with_loss(name, seeds) for (name, _), seeds in zip(runs, found)]
    found = [[curves for curves in seeds if 'diverged' not in curves] or seeds for seeds in found]
    logged = {key for seeds in found for curves in seeds for key in curves} - {*hide.split(',')}
    losses = [key for key in ('loss', 'val_loss') if key in logged]
    if not losses:
        raise ValueError(f'{runs[0][1][0]} has no loss in its log.jsonl yet, so that there is nothing to draw')
    both = len(losses) == 2
    shown = {'loss (nats)' if both else f'{NAMES[losses[0]]}\n(nats)': losses}
    shown |= {name: [key] for name, key in (('validation top-1', 'val_top1'), ('learning rate', 'lr')) if key in logged}
    heights = [1.9, 1.2, 1.2][:len(shown)]
    figure, axes = panels(len(shown), 1, sum(heights) / len(shown), height_ratios=heights)
    for ax, (ylabel, keys) in zip(axes, shown.items()):
        ax.set(xlabel='iteration', ylabel=ylabel)
        for i, (name, seeds) in enumerate(zip(names, found)):
            for key in keys:
                curves = [curves[key][''] for curves in seeds if key in curves]
                is_pale = key == 'loss' and any('val_loss' in curves for curves in seeds)
                pale = dict(lw=0.8, alpha=0.5, marker='', band=False, label='') if is_pale else {}
                draw_mean(ax, curves, i, **style_of(i) | dict(label=name) | pale)
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
    curves = found.get(key) or {name[len(key) + 1:]: below[''] for name, below in found.items()
                                if name.startswith(f'{key}.') and '' in below}
    if not curves:
        raise ValueError(f'what={key}: choose a picture, which --help lists, or a key of {folder}: {", ".join(found)}')
    return curves


def plot_key(runs, key):
    """Any key of log.jsonl or measure.jsonl over the iterations.

    A number is a curve for each run. Layers, and keys below one, such as grad_norms.qk, are curves in a panel for each run, eight
    layers at most."""
    found = [[curves_of(key, folder) for folder in folders] for _, folders in runs]
    parts = [*dict.fromkeys(part for seeds in found for curves in seeds for part in curves)]
    shown = [parts[i] for i in sorted({round(k * (len(parts) - 1) / (MOST - 1)) for k in range(MOST)})]
    single = parts == ['']
    figure, axes = panels(1 if single else len(runs), height=2.4, sharey=True)
    for i, ((name, _), seeds) in enumerate(zip(runs, found)):
        ax = axes[0 if single else i]
        for k, part in enumerate(shown):
            style = style_of(i) | dict(shift=i, label=name) if single else style_of_part(part, shown) | dict(shift=k, label=part)
            draw_mean(ax, [curves[part] for curves in seeds if part in curves], **style)
        ax.set(xlabel='iteration', ylabel=fill(name_of_key(key), 3), title='' if single else fill(name, len(axes)))
    if spans(np.concatenate([y for seeds in found for curves in seeds for _, y in curves.values()]), 100):
        axes[0].set_yscale('log')
        for path in (path for ax in axes for band in ax.collections for path in band.get_paths()):
            path.vertices[:, 1] = np.maximum(path.vertices[:, 1], axes[0].get_ylim()[0])        # what is below 0 would be stripes
    kind = 'run' if single else 'layer' if all(part.isdigit() for part in parts) else 'part'
    kind += f', {len(shown)} of {len(parts)}' * (shown != parts)
    return finish(figure, kind + OVER_SEEDS * any(len(folders) > 1 for _, folders in runs))


def spans(values, factor):
    """Return whether values are positive, and their middle 90% span more than a factor: then their scale is logarithmic."""
    return values.min() > 0 and np.quantile(values, 0.95) > factor * np.quantile(values, 0.05)


def heat_map(curves, depth):
    """Return the edges of the columns of a heat map, and its values (depth, columns), NaN for none, of {layer: (iterations,
    numbers)}. A column shows the largest of its values, so that no spike is lost. The map ends where the run ends."""
    iterations = np.unique(np.concatenate([x for x, _ in curves.values()]))
    values = np.full((depth, len(iterations)), np.nan)
    for layer, (x, y) in curves.items():
        values[int(layer) - 1, np.searchsorted(iterations, x)] = y
    starts = np.arange(0, len(iterations), -(-len(iterations) // 400))      # at most 400 columns
    middles = (iterations[starts[1:]] + iterations[starts[:-1]]) / 2
    return [iterations[0], *middles, iterations[-1] + (len(iterations) == 1)], np.fmax.reduceat(values, starts, axis=1)


def plot_heat(runs):
    """All that a run logs per layer, as heat maps of layers × iterations: norms too with --log_layers=True.

    A column of the picture is one run if there are several, and their colours mean the same. Grey: there is no such number."""
    maps = {}                                           # {key: {folder: (edges, values)}}
    for _, folder in runs:
        curves = {key: curves for key, curves in read_curves(folder, ['log.jsonl']).items() if all(map(str.isdigit, curves))}
        depth = max((int(layer) for layers in curves.values() for layer in layers), default=0)
        for key, layers in curves.items():
            maps.setdefault(key, {})[folder] = heat_map(layers, depth)
    if not maps:
        raise ValueError(f'{runs[0][1]} has logged no number per layer: each evaluation does, but not with --parallel=fsdp')
    columns = len(runs) if len(runs) > 1 else 3
    figure, axes = panels(len(maps) * len(runs), columns, 1.5)
    for i, (ax, (key, name, folder)) in enumerate(zip(axes, [(key, *run) for key in maps for run in runs])):
        above = f'{fill(name, len(runs))}\n\n' * (i < len(runs) > 1)
        ax.set_title(above + name_of_key(key), fontsize=7)
        ax.set(facecolor='0.85', xlabel='iteration', ylabel='layer' * (i % columns == 0))
        ax.grid(False)
        if folder in maps[key]:
            edges, values = maps[key][folder]
            held = np.concatenate([of_run[np.isfinite(of_run)] for _, of_run in maps[key].values()])
            low, high = held.min(), held.max()
            norm = LogNorm(low, high) if spans(held, 10) else Normalize(low, high if high > low else low + 1)
            rows = np.arange(len(values) + 1) + 0.5
            image = ax.pcolormesh(edges, rows, np.ma.masked_invalid(values), norm=norm, rasterized=True)
            figure.colorbar(image, ax=ax, pad=0.02).ax.tick_params(labelsize=6)
            ax.yaxis.get_major_locator().set_params(nbins=4, integer=True)
    return finish(figure)


def read_measured(folder, what):
    """Return the result of this measurement in measure.json. Raise ValueError if there is none."""
    measured = (read_json(f'{folder}/measure.json', 'remove it and measure again', math.nan) or {}).get(what)
    if not measured:
        remedy = f'make it with  python -m lab.measure --out_dir={folder} --what={what}'
        raise ValueError(f'there is no {what} in {folder}/measure.json: {remedy}')
    return measured


def column(measured, key):
    """Return the numbers of a key along the depth, NaN where a row lacks it: 'ma' of [{'ma': …}, …], 'wq.spectral' of {'wq':
    [{'spectral': …}, …]}."""
    for name in key.split('.'):
        measured = measured.get(name, []) if isinstance(measured, dict) else [
            row.get(name, math.nan) if isinstance(row, dict) else math.nan for row in measured]
    return measured


HALVES = dict(x='blocks passed', first=0.0, step=0.5)       # in front of all blocks, behind each attention, behind each FFN


def along_depth(runs, what, shown, x='layer', first=1.0, step=1.0, y='', linear=0, dashed=''):
    """Plot a curve for each run along the depth, which starts at `first`, in a panel for each entry of `shown`: {its name: the
    key of a `column`, a function of the measurement, or the keys of a curve and of a dashed one}. Heads become their mean. The
    last `linear` panels have no log axis. More than four runs have no dashed curves."""
    (figure, axes), title = panels(len(shown), sharey=bool(y)), 'run'
    for k, (ax, (name, keys)) in enumerate(zip(axes, shown.items())):
        for i, (run, folder) in enumerate(runs):
            measured = read_measured(folder, what)
            styles = [style_of(i) | dict(label=run)] + [style_of(i) | dict(marker='', ls='--', lw=0.8)] * (2 * len(runs) <= MOST)
            for key, style in zip(keys if isinstance(keys, tuple) else (keys,), styles):
                values = np.array(key(measured) if callable(key) else column(measured, key), float)
                at = first + step * np.arange(len(values))
                if values.ndim > 1:
                    mean, low, high = values.mean(1), values.min(1), values.max(1)
                    at += 0.06 * (i - (len(runs) - 1) / 2)              # so that bars stand side by side
                    ax.errorbar(at, mean, [mean - low, high - mean], elinewidth=0.8, **style)
                    title = 'run; a bar reaches from the lowest head to the highest'
                elif np.isfinite(values).any():
                    ax.plot(at, values, **style)
                    title = title if 'label' in style else f'run; dashed: {dashed}'
        if k < len(shown) - linear and ax.lines:
            ax.set_yscale('log')
        ax.set(xlabel=x, ylabel=y or name, title=name if y else '')
        ax.xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, title)


def picture(what, folders, labels='', hide='', xlim=None, ylim=None):
    """Return a figure of matplotlib. `what`: 'loss', 'heat', a key over the iterations, or the plot of one of lab.measure's
    MEASUREMENTS, a function of [(run's name, folder), …]. Limits are of the first panel, and of those that share its axes."""
    folders, what = [*dict.fromkeys(map(os.path.normpath, folders))], {'loss': plot_loss, 'heat': plot_heat}.get(what, what)
    over_seeds = what is plot_loss or isinstance(what, str)     # runs that differ only in their seed are one curve
    groups = group_by_seed({folder: read_object(folder, 'config.json') for folder in folders})
    groups = groups if over_seeds else [[folder] for folder in folders]
    names = labels.split(',') if labels else name_runs(groups)
    if len(names) != len(groups):
        raise ValueError(f'labels={labels}: must be {len(groups)} names, for {"; ".join(name_runs(groups))}')
    runs = [*zip(names, groups if over_seeds else folders)]
    with matplotlib.rc_context(STYLE):
        figure = plot_loss(runs, hide) if what is plot_loss else plot_key(runs, what) if isinstance(what, str) else what(runs)
        figure.axes[0].set(**{name: limits for name, limits in (('xlim', xlim), ('ylim', ylim)) if limits})
    return figure


def draw(what, folders, out, **more):
    """Write a picture to the file `out`, with 200 dots an inch. The other arguments are those of picture()."""
    picture(what, folders, **more).savefig(out, dpi=200, bbox_inches='tight', pad_inches=0.05)
    print(f'wrote {out}')
