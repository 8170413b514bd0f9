"""Tools for pictures: style, axes, legends, labels of runs, and curves."""
from configurator import ROOT, read_config, script_of

import functools
import glob
import math
import os
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from engine.errors import read_json

plt.switch_backend('Agg')               # pictures are files

# Okabe and Ito's palette, which colour-blind readers tell apart
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442']
MARKERS = 'os^DvPX*'
MOST = len(COLORS)                      # curves in one axes
TYPES = dict(zip(('emb', 'head', 'qk', 'vo', 'ffn', 'norm', 'pos'), COLORS))

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


def label(folder, optimizer=True):
    """'out-a (pre, residual_scale=0.1, sgdw)': the folder, the nearest fragment of config/arch, the keys in which the run differs
    from it, and the optimizer if asked. A run that differs in more than two keys is named without a fragment."""
    name = os.path.basename(os.path.normpath(folder))
    config = read_json(os.path.join(folder, 'config.json'), 'remove it, and the run will be named by its folder')
    if config is None:
        return name
    known = fragments(script_of(config) == 'vision.train')
    if any(key not in config for key in known['pre']):  # an older run has not all of today's keys
        from model import GPTConfig  # here, for PyTorch is slow to import
        config = {**vars(GPTConfig()), **config}
    candidates = [[arch, *(f'{key}={config.get(key)}' for key, value in keys.items() if config.get(key) != value)]
                  for arch, keys in known.items()]
    nearest = min(candidates, key=len)
    about = [*(nearest if len(nearest) <= 3 else []), *[config['optimizer']] * optimizer]
    return f'{name} ({", ".join(about)})' if about else name


def labels(folders, optimizer=True):
    """The label of each run, with its path where two folders have the same name."""
    if len(folders) > MOST:
        raise ValueError(f'{len(folders)} runs are too many for one picture: name at most {MOST}, and draw the others with '
                         f'another --out')
    names = [label(folder, optimizer) for folder in folders]
    if len(set(names)) < len(names):
        names = [os.path.join(os.path.dirname(os.path.normpath(folder)), name) for folder, name in zip(folders, names)]
    return names


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


POINTS = 500            # of a curve at most


def draw_over_time(ax, points, **style):
    """A curve through [(iteration, value)]. Where there are more than POINTS, each is the mean over several."""
    if points:
        places, values = np.array(points, dtype=float).T
        parts = min(POINTS, len(points))
        means = [[part.mean() for part in np.array_split(x, parts)] for x in (places, values)]
        ax.plot(*means, **style)


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


def short(x):
    return f'{x:.3g}' if abs(x) < 1000 or math.isnan(x) else f'{x:,.0f}'


def type_style(kind, kinds):
    """The colour and line style of a block type, one of `kinds`. Types that TYPES does not have take the colours that it leaves,
    and after these dashed lines."""
    of_all = [*TYPES, *(other for other in kinds if other not in TYPES)]
    i = of_all.index(kind)
    return COLORS[i % MOST], ('-', '--', ':', '-.')[i // MOST % 4]


def along_depth(ax, rows, key, **style):
    """A line over the blocks passed, with a point after each attention, at a half, and after each FFN."""
    ax.plot([i / 2 for i in range(len(rows))], [row.get(key, math.nan) for row in rows], **style)
