"""Tools for pictures: style, axes, legends, labels of runs, and curves."""
from configurator import ROOT, read_config, script_of

import functools
import glob
import json
import math
import os
import re
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from engine.errors import read_json
from lab.runs import keys_that_differ

plt.switch_backend('Agg')               # pictures are files

# Okabe and Ito's palette, which colour-blind readers tell apart
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442']
MARKERS = 'os^DvPX*'
MOST = len(COLORS)                      # curves in one axes
TYPES = dict(zip(('emb', 'head', 'qk', 'vo', 'ffn', 'pos', 'norm'), [*COLORS[:5], '#888888', '#000000']))

HALF, FULL = 3.5, 7.2                   # inches: the width of a column and of a page, so that papers need not resize a picture
plt.rcParams.update({'font.size': 9, 'axes.titlesize': 9, 'axes.labelsize': 9, 'xtick.labelsize': 8, 'ytick.labelsize': 8,
                     'legend.fontsize': 8, 'legend.title_fontsize': 8, 'legend.frameon': False, 'lines.linewidth': 1.2,
                     'lines.markersize': 3.5, 'svg.hashsalt': 'nanonorm'})
CHARACTER, LINE = 0.068, 0.16           # inches: the average width of a letter in a legend, and the height of a line


def read_measured(folder, what):
    """The result of this measurement in measure.json. ValueError if it is not there, or empty."""
    path = os.path.join(folder, 'measure.json')
    measured = read_json(path, 'remove it and measure again', math.nan)
    if measured is None:
        raise ValueError(f'there is no {path}: make it with  python -m lab.measure --out_dir={folder}')
    if measured.get(what, {}) == {}:
        raise ValueError(f'{path} holds no {what}: make it with  python -m lab.measure --out_dir={folder} --what={what}')
    return measured[what]


@functools.cache
def fragments(vision):
    """{name: keys} of config/arch, for a run of train.py or of vision.train. The files ask for a key of the latter."""
    paths = sorted(glob.glob(os.path.join(ROOT, 'config', 'arch', '*.py')))
    keys = {os.path.basename(path).removesuffix('.py'): read_config(path, {'patch_size': 16} if vision else {}) for path in paths}
    return {name: {key: value for key, value in of_file.items() if key != 'patch_size'} for name, of_file in keys.items()}


def title_of(fragment):
    """The name of an architecture: what stands before the colon in the first line of its file, as 'Pre-LN' for pre"""
    with open(os.path.join(ROOT, 'config', 'arch', f'{fragment}.py'), encoding='utf-8') as f:
        name, colon, _ = f.readline().strip('# ').partition(': ')
    return name if colon else fragment


def read_keys(folder):
    """A run's config.json, None if there is none"""
    return read_json(os.path.join(folder, 'config.json'), 'remove it, and the run will be named by its folder')


def architecture(config):
    """['pre', 'residual_scale=0.1']: the nearest fragment of config/arch, and the keys in which the run differs from it; [] if
    these are more than two."""
    known = fragments(script_of(config) == 'vision.train')
    if any(key not in config for key in known['pre']):  # an older run has not all of today's keys
        from model import GPTConfig  # here, for PyTorch is slow to import
        config = {**vars(GPTConfig()), **config}
    nearest = min(([arch, *(f'{key}={config.get(key)}' for key, value in keys.items() if config.get(key) != value)]
                   for arch, keys in known.items()), key=len)
    return nearest if len(nearest) <= 3 else []


def name_of(folder):
    return os.path.basename(os.path.normpath(folder))


def titles(folders):
    """The names of the runs' architectures: 'Pre-LN', 'Pre-LN, residual_scale=0.1'. A run whose architecture has no name, or that
    of another run, is named by its folder."""
    parts = [architecture(config) if (config := read_keys(folder)) else [] for folder in folders]
    names = [', '.join([title_of(part[0]), *part[1:]]) if part else name_of(folder) for folder, part in zip(folders, parts)]
    return [name if names.count(name) == 1 else f'{name} ({name_of(folder)})' for folder, name in zip(folders, names)]


def labels(folders, most=MOST):
    """The label of each run: 'out-a (pre, residual_scale=0.1, sgdw, learning_rate=0.1)', with its architecture, its optimizer and
    the other keys in which runs differ. What all runs have in common is left out, and what the folder's name says already. Where
    two folders have one name, labels have their paths."""
    if len(folders) > most:
        raise ValueError(f'{len(folders)} runs are too many for this picture: name at most {most}, and draw the others with '
                         f'another --out')
    configs = [read_keys(folder) or {} for folder in folders]
    archs = [architecture(config) if 'optimizer' in config else [] for config in configs]
    told = {'optimizer', *(fragments(False)['pre'] if all(archs) else [])}
    keys = [key for key in keys_that_differ(configs) if key not in told]
    abouts = [[*arch, config['optimizer'], *(f'{key}={config.get(key)}' for key in keys)] if 'optimizer' in config else []
              for arch, config in zip(archs, configs)]
    common = set.intersection(*map(set, abouts)) if len(folders) > 1 else set()
    names = [name_of(folder) for folder in folders]
    names = names if len(set(names)) == len(names) else [os.path.normpath(folder) for folder in folders]
    found = []
    for folder, name, about in zip(folders, names, abouts):
        said = {*common, *re.split(r'[\W_]+', name_of(folder)), *name_of(folder).split(',')}
        rest = ', '.join(part for part in about if part not in said)
        found.append(f'{name} ({rest})' if rest else name)
    return found


OF_A_SEED = {'seed', 'data_seed', 'out_dir', 'init_from', 'overwrite', 'debug', 'wandb_run_name'}


def grouped_by_seed(folders):
    """[(label, folders)]: runs that differ only in their seed are one group."""
    groups, found = {}, []
    for folder in folders:
        config = read_keys(folder) or dict(folder=folder)
        rest = json.dumps({key: value for key, value in config.items() if key not in OF_A_SEED}, sort_keys=True)
        groups.setdefault(rest, []).append((folder, (config.get('seed'), config.get('data_seed'))))
    for group in groups.values():
        members, seeds = zip(*group)
        found += [members] if len(set(seeds)) == len(seeds) else [(folder,) for folder in members]
    found.sort(key=lambda group: folders.index(group[0]))
    return list(zip(map(label_of_group, labels([group[0] for group in found], math.inf), found), found))


def label_of_group(label, folders):
    """The label of a group's first run, with what the names of the folders begin with instead of its own"""
    if len(folders) == 1:
        return label
    begin = re.sub(r'[\W_]*(seed[\W_]*\d*)?[\W_]*$', '', os.path.commonprefix(list(map(name_of, folders))))
    return label.replace(name_of(folders[0]), begin or name_of(os.path.dirname(folders[0])), 1) + f', {len(folders)} seeds'


def unit_of(folders):
    """Of what the loss of these runs is the mean: 'byte', 'character', 'token' or 'image'"""
    units = set()
    for config in map(read_keys, folders):
        config = config or {}
        meta = read_json(os.path.join('data', str(config.get('dataset')), 'meta.json'), 'prepare it again') or {}
        units.add('image' if 'patch_size' in config or config.get('model') == 'vit' else
                  {'bytes': 'byte', 'char': 'character'}.get(meta.get('tokenizer'), 'token'))
    return units.pop() if len(units) == 1 else 'token'


def panels(count, columns=3, height=2.0, **more):
    """A figure with this many axes, row by row → figure, list of axes. One column has half the width of a page, more have the
    full width; `height` is that of a row, in inches."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(HALF if columns == 1 else FULL, height * rows), layout='constrained',
                                squeeze=False, **more)
    for ax in axes.flat[count:]:
        figure.delaxes(ax)
    for ax in axes.flat[count - columns:count]:
        ax.xaxis.set_tick_params(labelbottom=True)      # sharex hides them above an empty place
    for ax in axes.flat:
        ax.grid(alpha=0.3, linewidth=0.6)
        ax.spines[['top', 'right']].set_visible(False)
    return figure, list(axes.flat[:count])


def name_axes(axes, x=None, y=None):
    """Writes x below the lowest axes of each column and y beside the first of each row."""
    columns = axes[0].get_gridspec().ncols
    for i, ax in enumerate(axes):
        if x and i >= len(axes) - columns:
            ax.set_xlabel(x)
        if y and i % columns == 0:
            ax.set_ylabel(y)


def run_style(i):
    return dict(color=COLORS[i % MOST], marker=MARKERS[i % MOST])


def in_order(i, count):
    """The colour of number i, from 0, of things that have an order: from dark to light"""
    return plt.cm.viridis(0.9 * i / max(1, count - 1))


def row_style(i, count):
    """The style of a run's curve, thin where there are too many for a style each. They are then in order, the best first."""
    return run_style(i) if count <= MOST else dict(color=in_order(i, count), linewidth=0.7)


LABELLED = 30           # curves at most that are labelled at their ends


def label_ends(ax, ends, title):
    """Labels curves at the right of these axes, [(text, colour, last point)] from the best to the worst. The number in front of a
    text is its place, and lines lead to the ends. Labels are ordered as the ends are, so that no two lines cross."""
    ends = [(f'{place}  {text}', color, end) for place, (text, color, end) in enumerate(ends[:LABELLED], 1)]
    ends.sort(key=lambda labelled: labelled[2][1])
    ax.figure.set_size_inches(FULL, ax.figure.get_figheight() + 0.13 * max(0, len(ends) - 8))
    for i, (text, color, end) in enumerate(ends):
        ax.annotate(text, end, (1.1, (i + 0.5) / len(ends)), textcoords='axes fraction', fontsize=8, va='center',
                    annotation_clip=False, arrowprops=dict(arrowstyle='-', color=color, linewidth=0.6, relpos=(0, 0.5)))
    ax.text(1.1, 1.04, title, fontsize=8, transform=ax.transAxes)


def wrap(text, inches):
    """The text in lines that fit into this width. A label breaks first where its bracket opens."""
    most = max(8, int(inches / CHARACTER))
    lines = text.split('\n') if len(text) <= most else text.replace(' (', '\n(', 1).split('\n')
    return '\n'.join(textwrap.fill(line, most, break_on_hyphens=False) for line in lines)


def columns_for(count):
    return 2 if count == 4 else min(count, 3)


def legend_columns(texts, width):
    return max(1, min(len(texts), int(width / (CHARACTER * max(map(len, texts)) + 0.5))))


def legend(figure, title):
    """One legend for the curves of all axes, below them. The figure grows by its height."""
    width, height = figure.get_size_inches()
    entries = {}
    for ax in figure.axes:
        for handle, text in zip(*ax.get_legend_handles_labels()):
            entries.setdefault(text, handle)
    if entries:
        columns = legend_columns(entries, width)
        texts = [wrap(text, width - 0.6) for text in entries]
        figure.legend(entries.values(), texts, title=title, loc='outside lower center', ncols=columns, alignment='left')
        lines = math.ceil(len(texts) / columns) * max(text.count('\n') + 1 for text in texts) + title.count('\n') + 1
        figure.set_figheight(height + LINE * (lines + 1))


def legend_below(ax, title, handles=None, texts=None):
    """A legend of these axes only, below their ticks and label. The caller makes room for it."""
    if texts is None:
        handles, texts = ax.get_legend_handles_labels()
    if texts:
        figure = ax.figure
        written = ax.get_window_extent().y0 - ax.get_tightbbox().y0         # ticks and label, in pixels
        below = ScaledTranslation(0, -written / figure.dpi - 0.05, figure.dpi_scale_trans)
        width = ax.get_position().width * figure.get_figwidth()
        ax.legend(handles, texts, title=title, loc='upper center', bbox_to_anchor=(0.5, 0), bbox_transform=ax.transAxes + below,
                  borderaxespad=0, ncols=legend_columns(texts, width), alignment='left')


class LogTicks(LogLocator):
    """Ticks of a log axis, at least two: decades if there are three of them, else also 2 and 5 in each decade, else all digits,
    else evenly spaced numbers."""

    def __call__(self):
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, low, high):
        for digits in (1,), (1, 2, 5), range(1, 10):
            self.set_params(subs=digits, numticks=7)
            ticks = [tick for tick in super().tick_values(low, high) if low <= tick <= high]
            if len(ticks) >= 3:
                return ticks
        return [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]


class LogLabels(Formatter):
    """Plain numbers if all are of moderate size, else powers of ten."""

    def __call__(self, x, position=None):
        return self.format_ticks([x])[0]

    def format_ticks(self, values):
        if all(1e-3 <= x < 1e4 for x in values):
            return [f'{x:.6g}' for x in values]
        parts = [f'{x:.5e}'.split('e') for x in values]
        return [f'$10^{{{int(power)}}}$' if float(digits) == 1 else rf'${float(digits):g}\times10^{{{int(power)}}}$'
                for digits, power in parts]


def log_scale(ax, which='y'):
    getattr(ax, f'set_{which}scale')('log')
    axis = getattr(ax, f'{which}axis')
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(LogLabels())
    axis.set_minor_formatter(NullFormatter())


def whole_ticks(ax):
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


VIEW = dict(points=500, smooth=0)       # at most so many points of a curve; iterations over which each of them is a mean


def smoothed(points, iterations):
    """[(iteration, value)] → the same with the mean over the points of the last so many iterations; 0: as they are"""
    if not iterations or not points:
        return points
    places, values = np.array(points, dtype=float).T
    sums = np.concatenate(([0.0], values.cumsum()))
    first = np.searchsorted(places, places - iterations, 'right')
    return list(zip(places, (sums[1:] - sums[first]) / (np.arange(len(places)) + 1 - first)))


def draw_over_time(ax, *runs, **style):
    """A curve through [(iteration, value)]. Of several runs, which differ in their seed, it is the mean, over the iterations that
    all have, with a band from the lowest to the highest. Where there are more points than VIEW has, each is the mean over
    several."""
    runs = [dict(smoothed(points, VIEW['smooth'])) for points in runs if points]
    places = [it for it in runs[0] if all(it in run for run in runs)] if runs else []
    if not places:
        return
    values = np.array([[run[it] for it in places] for run in runs], dtype=float)
    parts = min(VIEW['points'], len(places))
    x, mean, low, high = ([part.mean() for part in np.array_split(row, parts)]
                          for row in (np.array(places, dtype=float), values.mean(0), values.min(0), values.max(0)))
    ax.plot(x, mean, **style)
    if len(runs) > 1:
        ax.fill_between(x, low, high, color=style['color'], alpha=0.2, linewidth=0)


def draw_histogram(ax, histogram, **style):
    """A histogram of log10 as a line, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left out."""
    counts, total = histogram['counts'], sum(histogram['counts'])
    held = [i for i, n in enumerate(counts) if n > 1e-4 * total]
    if held:
        inside = range(held[0], held[-1] + 1)
        middles = [histogram['start'] + (i + 0.5) * histogram['width'] for i in inside]
        ax.plot(middles, [counts[i] / total for i in inside], **style)


def per_bin(measured):
    return f'per {measured["histogram"]["width"]:.2g} decade'


def minus(text):
    """A number's text with a real minus sign"""
    return text.replace('-', '−')


def short(x):
    return minus(f'{x:.3g}' if abs(x) < 1000 or math.isnan(x) else f'{x:,.0f}')


def type_style(kind, kinds):
    """The colour and line style of a block type, one of `kinds`. Types that TYPES does not have take the colours that it leaves,
    and after these dashed lines."""
    if kind in TYPES:
        return TYPES[kind], '-'
    free = [color for color in COLORS if color not in TYPES.values()]
    i = [other for other in kinds if other not in TYPES].index(kind)
    return free[i % len(free)], ('-', '--', ':', '-.')[i // len(free) % 4]


def along_depth(ax, rows, key, **style):
    """A line over the blocks passed, with a point after each attention, at a half, and after each FFN."""
    ax.plot([i / 2 for i in range(len(rows))], [row.get(key, math.nan) for row in rows], **style)
