"""
Draws pictures of runs. Each is written as PNG and, beside it, as SVG:

    python -m lab.plot out-quick                                    # the loss: out-quick/loss.png and loss.svg
    python -m lab.plot out-a out-b out-c --out=abc.png              # up to eight runs in one picture
    python -m lab.plot out-a out-b --what=gradients                 # another picture of the list below
    python -m lab.plot out-a out-b --what=grad_norm                 # any number of log.jsonl over the iterations
    python -m lab.plot out-a out-b --what=updates.qk                # any number of measure.jsonl
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

from configurator import ROOT, read_config

import argparse
import difflib
import functools
import glob
import math
import os
import re
import textwrap

import matplotlib

matplotlib.use('Agg')
from configurator import begin  # noqa: E402

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter  # noqa: E402
from matplotlib.transforms import ScaledTranslation  # noqa: E402

from engine.errors import NUMBER, fits, read_json, read_rows, read_table  # noqa: E402

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


# ----------------------------------------------------------------------------- reading the files of runs

# What a picture reads has a shape as engine.errors.fits takes it, so that a damaged file is an error in one line. NaN stands for
# numbers that are not finite. The shape of a measurement is next to its picture.
ROW = {'iter': int, 'loss?': NUMBER, 'val_loss?': NUMBER, 'val_top1?': NUMBER, 'lr?': NUMBER}         # of log.jsonl
CONFIG = {'optimizer': str, str: (bool, *NUMBER, str, list)}
HISTOGRAM = dict(start=NUMBER, width=NUMBER, counts=[lambda n: type(n) is int and n >= 0])


def read_log(folder):
    """The rows of a run's log.jsonl."""
    path = os.path.join(folder, 'log.jsonl')
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: {folder!r} is not the folder of a run')
    return read_rows(path, ROW)


def read_measured(folder, what, shape):
    """The result of this measurement in measure.json. ValueError if it is not there, empty, or not of this shape."""
    path = os.path.join(folder, 'measure.json')
    measured = read_json(path, {f'{what}?': shape}, 'remove it and measure again', math.nan)
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
    config = read_json(os.path.join(folder, 'config.json'), CONFIG, 'remove it, and the run will be named by its folder')
    if config is None:
        return name
    known = fragments(config.get('model') == 'vit' if 'model' in config else 'patch_size' in config)    # older runs have `model`
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


# ----------------------------------------------------------------------------- tools for drawing

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


# ----------------------------------------------------------------------------- pictures: each takes folders, returns a figure

def of_images(folders):
    return any('val_top1' in row for folder in folders for row in read_log(folder))


def plot_loss(folders):
    """Training and validation loss, and the learning rate; for images also the validation accuracy.

    Up to four runs have both losses in one panel. More have a panel for each."""
    vision = of_images(folders)
    apart = 2 * len(folders) > MOST
    names = ['loss', *['val_loss'] * apart, *['top1'] * vision, 'lr']
    figure, axes = panels(len(names), 1, sharex=True, height_ratios=[1 if name == 'lr' else 2.2 for name in names])
    figure.set_figheight(1.7 * len(names) + 0.3)
    at, peaks = dict(zip(names, axes)), []
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        rows = read_log(folder)
        val, right, train, lrs = ([(row['iter'], row[key]) for row in rows if key in row and 'diverged' not in row]
                                  for key in ('val_loss', 'val_top1', 'loss', 'lr'))
        text += f': {min(v for _, v in val):.3f}' if val else ''
        text += f', {right[-1][1]:.1%}' if right else ''
        peaks += [max(rate for _, rate in lrs)] if lrs else []
        draw_over_time(at['loss'], train, color=COLORS[i], linewidth=0.8, alpha=1.0 if apart else 0.6,
                       label='' if val else text)
        draw_over_time(at['val_loss' if apart else 'loss'], val, **run_style(i), label=text)
        draw_over_time(at['lr'], lrs, color=COLORS[i])
        if vision:
            draw_over_time(at['top1'], [(it, 100 * share) for it, share in right], **run_style(i))
    unit = f'nats per {"image" if vision else "token"}'
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
    legend(figure, 'run: lowest validation loss' + (', last top-1' if vision else '')
           + ('' if apart else '\n(thin line: training, with marks: validation)'))
    return figure


def shares(ax, histogram, **style):
    """A histogram of log10 as a line, in shares of what it holds. Bins at its ends with at most 1e-4 of all are left out."""
    counts, total = histogram['counts'], sum(histogram['counts'])
    held = [i for i, n in enumerate(counts) if n > 1e-4 * total]
    if held:
        inside = range(held[0], held[-1] + 1)
        middles = [histogram['start'] + (i + 0.5) * histogram['width'] for i in inside]
        ax.plot(middles, [counts[i] / total for i in inside], **style)


def per_bin(measured):
    return f'per {measured["histogram"]["width"]:.2g} decade'


MATRICES = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')


def short(x):
    return f'{x:.3g}' if abs(x) < 1000 or math.isnan(x) else f'{x:,.0f}'


def plot_gradients(folders):
    """The distribution of |gradient| in each kind of matrix (DNT, figure 1).

    The legend of a panel gives, for each run, the 99.9% quantile over the median, and the kurtosis."""
    shape = {str: dict(histogram=HISTOGRAM, tail=NUMBER, kurtosis=NUMBER)}
    found = [(text, read_measured(folder, 'gradients', shape)) for text, folder in zip(labels(folders), folders)]
    figure, axes = panels(6, sharex=True, sharey=True, height=2.1 + LINE * len(folders))
    for ax, kind in zip(axes, MATRICES):
        ax.set_title(f'$W_{kind[1]}$')
        for i, (text, measured) in enumerate(found):
            if kind in measured:                        # W_k is W_q in tied L2 attention
                shares(ax, measured[kind]['histogram'], color=COLORS[i], label=text)
    name_axes(axes, 'log₁₀ |gradient|', 'share of the entries\n' + per_bin(next(iter(found[0][1].values()))))
    for ax, kind in zip(axes, MATRICES):
        tails = [', '.join(short(m[kind][key]) for key in ('tail', 'kurtosis')) for _, m in found if kind in m]
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        legend_below(ax, 'run: p99.9/p50, kurtosis', ax.get_lines(), tails)
    legend(figure, 'run')
    return figure


def type_style(kind, kinds):
    """The colour and line style of a block type, one of `kinds`. Types that TYPES does not have take the colours that it leaves,
    and after these dashed lines."""
    of_all = [*TYPES, *(other for other in kinds if other not in TYPES)]
    i = of_all.index(kind)
    return COLORS[i % MOST], ('-', '--', ':', '-.')[i // MOST % 4]


def plot_sharpness(folders):
    """The distribution of sharpness in each block type, and its mean during training if that was measured.

    A dot marks the log10 of the mean."""
    names = labels(folders)
    found = [read_measured(folder, 'sharpness', {str: dict(histogram=HISTOGRAM, log10_mean=NUMBER)}) for folder in folders]
    kinds = dict.fromkeys(kind for measured in found for kind in measured)
    over_time = [read_rows(os.path.join(folder, 'measure.jsonl'), {'iter': int, 'sharpness?': {str: dict(log10_mean=NUMBER)}})
                 for folder in folders]
    columns, kinds_of_rows = columns_for(len(folders)), 1 + any(over_time)
    places = [i // columns * kinds_of_rows * columns + i % columns for i in range(len(folders))]
    figure, axes = panels(places[-1] - places[-1] % columns + kinds_of_rows * columns, columns, 2.4)
    tops, bottoms = [axes[at] for at in places], [axes[at + columns] for at in places] if any(over_time) else []
    for ax in set(axes) - {*tops, *bottoms}:
        figure.delaxes(ax)
    for row in tops, bottoms:
        for ax in row[1:]:
            ax.sharex(row[0])
            ax.sharey(row[0])
    for i, (measured, top) in enumerate(zip(found, tops)):
        for kind in measured:
            color, line = type_style(kind, kinds)
            shares(top, measured[kind]['histogram'], color=color, linestyle=line, label=kind)
            top.plot(measured[kind]['log10_mean'], 0, 'o', markersize=5, color=color, clip_on=False, zorder=3)
            if bottoms:
                rows = [(row['iter'], row['sharpness'][kind]['log10_mean'])
                        for row in over_time[i] if kind in row.get('sharpness', {})]
                draw_over_time(bottoms[i], rows, color=color, linestyle=line, marker='o')
        top.set_title(wrap(names[i], figure.get_figwidth() / columns - 0.2))
        top.set_xlabel('log₁₀ of the sharpness')
        if bottoms:
            bottoms[i].set_xlabel('iteration')
            if not over_time[i]:
                bottoms[i].text(0.5, 0.5, 'not measured\nwhile training', ha='center', transform=bottoms[i].transAxes)
    tops[0].set_ylabel('share of the parameters\n' + per_bin(next(iter(measured.values()))))
    if bottoms:
        bottoms[0].set_ylabel('log₁₀ of the\nmean sharpness')
    legend(figure, 'block type; a dot is the log₁₀ of its mean')
    return figure


def along_depth(ax, rows, key, **style):
    """A line over the blocks passed, with a point after each attention, at a half, and after each FFN."""
    ax.plot([i / 2 for i in range(len(rows))], [row.get(key, math.nan) for row in rows], **style)


def plot_hidden(folders):
    """Mean size and variance of the hidden states along the depth (LN stability, figure 1), and over sequences (T5).

    Dashed lines are the bounds under MidNorm (T4, T5). They are left out if a panel would have more than eight curves."""
    shape = dict(ma=NUMBER, var=NUMBER) | {f'{key}?': NUMBER for key in ('entry_var', 'ma_bound', 'var_bound', 'entry_var_bound')}
    found = [read_measured(folder, 'hidden', [shape, 1]) for folder in folders]
    bounded = [rows for rows in found if 'ma_bound' in rows[0]]
    bounds = bounded and len(found) + len(bounded) <= MOST
    figure, axes = panels(3, height=2.2)
    for i, (rows, text) in enumerate(zip(found, labels(folders))):
        for ax, key in zip(axes, ('ma', 'var', 'entry_var') if 'entry_var' in rows[0] else ('ma', 'var')):
            along_depth(ax, rows, key, **run_style(i), label=text)
            if bounds and f'{key}_bound' in rows[0]:
                along_depth(ax, rows, f'{key}_bound', color=COLORS[i], linestyle='--', linewidth=0.8)
    names = ('mean |x|\nof the hidden state', 'variance\nof the hidden state', 'variance of an entry\nover sequences')
    for ax, name in zip(axes, names):
        log_scale(ax)
        ax.set_ylabel(name)
        ax.set_xlabel('blocks passed')
        whole_ticks(ax)
    legend(figure, 'run; dashed: its bound under MidNorm' if bounds else 'run')
    return figure


def plot_sensitivity(folders):
    """The spectral norms of the Jacobians of blocks and branches, and from each block to the end (LN stability, P7, P8)."""
    figure, axes = panels(4, columns=2, height=2.0)
    keys = {'block': 'block', 'attn': 'attention branch', 'ffn': 'FFN branch', 'to_end': 'from here to the last block'}
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        rows = read_measured(folder, 'sensitivity', [dict.fromkeys(keys, NUMBER)])
        for ax, (key, title) in zip(axes, keys.items()):
            ax.plot(range(len(rows)), [row[key] for row in rows], **run_style(i), label=text)
            ax.set_title(title)
    for ax in axes:
        log_scale(ax)
        whole_ticks(ax)
    name_axes(axes, 'layer', 'spectral norm\nof the Jacobian')
    legend(figure, 'run')
    return figure


def plot_parameters(folders):
    """The spectral norm of each matrix along the depth."""
    figure, axes = panels(6, height=1.8, sharex=True)
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        measured = read_measured(folder, 'parameters', {f'{kind}?': [dict(spectral=NUMBER)] for kind in MATRICES})
        for ax, kind in zip(axes, MATRICES):
            norms = [matrix['spectral'] for matrix in measured.get(kind, [])]
            ax.plot(range(len(norms)), norms, **run_style(i), label=text)
            ax.set_title(f'$W_{kind[1]}$')
    for ax in axes:
        whole_ticks(ax)
    name_axes(axes, 'layer', 'spectral norm')
    legend(figure, 'run')
    return figure


def plot_attention(folders):
    """The largest attention logit and the mean entropy of the attention weights, in each block.

    A point is the mean over the heads of a block. Its bar reaches from the lowest head to the highest."""
    figure, axes = panels(2, height=2.4)
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        measured = read_measured(folder, 'attention', dict(max_logit=[[NUMBER, 1]], entropy=[[NUMBER, 1]]))
        aside = 0.06 * (i - (len(folders) - 1) / 2)
        for ax, key in zip(axes, ('max_logit', 'entropy')):
            heads = measured[key]
            means = [sum(layer) / len(layer) for layer in heads]
            reach = [[m - min(layer) for m, layer in zip(means, heads)], [max(layer) - m for m, layer in zip(means, heads)]]
            ax.errorbar([n + aside for n in range(len(heads))], means, reach, **run_style(i), elinewidth=0.8, label=text)
    for ax, name in zip(axes, ('largest attention logit', 'entropy of attention (nats)')):
        ax.set_ylabel(name)
        ax.set_xlabel('layer')
        whole_ticks(ax)
    legend(figure, 'run; a bar reaches from the lowest head to the highest')
    return figure


def plot_drift(folders):
    """The distance between two inputs that start out almost equal, along the depth."""
    figure, axes = panels(2, height=2.4)
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        rows = read_measured(folder, 'drift', [dict(distance=NUMBER, relative=NUMBER)])
        for ax, key in zip(axes, ('distance', 'relative')):
            along_depth(ax, rows, key, **run_style(i), label=text)
    for ax, name in zip(axes, ('distance / first distance', 'distance / size of the state')):
        log_scale(ax)
        ax.set_ylabel(name)
        ax.set_xlabel('blocks passed')
        whole_ticks(ax)
    legend(figure, 'run')
    return figure


def plot_layers(folders):
    """Sharpness per layer (sharpness disparity, figure 9a), and n·S·‖θ‖² per weight (its theorems 4.1 to 4.3).

    A row of panels is a run. Layer 0 is the embeddings. In theorem 4.1 the three weights have one factor in common. In 4.2 W_q
    and W_k have one, W_v and W_o another, and the norm has the sum of both. Dotted: the token embedding, with its own (4.3)."""
    groups = {'theorem 4.1': ('ffn_pre_norm', 'w1', 'w2'), 'theorem 4.2': ('attn_pre_norm', 'wq', 'wk', 'wv', 'wo')}
    colors = dict(zip((*groups['theorem 4.1'], *groups['theorem 4.2']), COLORS))
    figure, axes = panels(3 * len(folders), height=2.2)
    for row, folder, text in zip(range(0, len(axes), 3), folders, labels(folders)):
        measured = read_measured(folder, 'layers', dict(sharpness=[dict(log10_mean=NUMBER)], factors={str: [NUMBER]}))
        logs = [layer['log10_mean'] for layer in measured['sharpness']]
        axes[row].plot(range(len(logs)), logs, color='0.3', marker='o')
        axes[row].set_ylabel(f'{wrap(text, 2)}\nlog10 of the mean sharpness')
        for ax, (title, names) in zip(axes[row + 1:], groups.items()):
            for name in names:
                values = measured['factors'].get(name, [])
                shown = name.replace('_', ' ') if name.endswith('norm') else symbols(name)
                ax.plot(range(len(values)), values, color=colors[name], marker='.', label=shown)
            for value in measured['factors'].get('emb', []):
                ax.axhline(value, color='0.3', linestyle=':', label='$W_E$')
            ax.set_title(f'n·S·‖θ‖², {title}')
            log_scale(ax)
        axes[row].set_xlabel('layer (0: embeddings)')
        for ax in axes[row + 1:row + 3]:
            ax.set_xlabel('block')
    for ax in axes:
        whole_ticks(ax)
    legend(figure, 'weight')
    return figure


def plot_attention_growth(folders):
    """Mean size of the hidden states with attention only, and its bound for Pre-LN (LN stability, T3, eq. 82)."""
    figure, axes = panels(1, columns=1, height=2.6)
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        rows = read_measured(folder, 'attention_growth', [dict(ma=NUMBER, ma_bound=NUMBER)])
        if not rows:
            raise ValueError(f'{folder} has no bound to draw: it holds for one head, RMSNorm, PreNorm and no other norm')
        blocks = range(1, len(rows) + 1)
        axes[0].plot(blocks, [row['ma'] for row in rows], **run_style(i), label=text)
        axes[0].plot(blocks, [row['ma_bound'] for row in rows], color=COLORS[i], linestyle='--', linewidth=0.8)
    log_scale(axes[0])
    axes[0].set_ylabel('mean |x| of the hidden state')
    axes[0].set_xlabel('blocks passed')
    whole_ticks(axes[0])
    legend(figure, 'run; dashed: its bound')
    return figure


def plot_transport(folders):
    """Distance between two halves of the sequences, as distributions, along the depth (LN stability, T6)."""
    shape = {'w1': NUMBER, 'w2': NUMBER, 'w1_bound?': NUMBER, 'w2_bound?': NUMBER}
    found = [read_measured(folder, 'transport', [shape, 1]) for folder in folders]
    bounded = [rows for rows in found if 'w2_bound' in rows[0]]
    bounds = bounded and len(found) + len(bounded) <= MOST
    figure, axes = panels(2, height=2.4)
    for i, (rows, text) in enumerate(zip(found, labels(folders))):
        for ax, key in zip(axes, ('w2', 'w1')):
            along_depth(ax, rows, key, **run_style(i), label=text)
            if bounds and f'{key}_bound' in rows[0]:
                along_depth(ax, rows, f'{key}_bound', color=COLORS[i], linestyle='--', linewidth=0.8)
    for ax, name in zip(axes, ('$W_2$', '$W_1$')):
        log_scale(ax)
        ax.set_ylabel(f'{name} between the halves')
        ax.set_xlabel('blocks passed')
        whole_ticks(ax)
    legend(figure, 'run; dashed: its bound under MidNorm' if bounds else 'run')
    return figure


def plot_output_spectrum(folders):
    """The largest singular value of W / ‖W x‖, and what DNT predicts of random weights (eq. 16)."""
    shape = {f'{kind}?': [dict(measured=NUMBER, predicted=NUMBER)] for kind in MATRICES}
    figure, axes = panels(6, height=1.8, sharex=True)
    for i, (folder, text) in enumerate(zip(folders, labels(folders))):
        measured = read_measured(folder, 'output_spectrum', shape)
        for ax, kind in zip(axes, MATRICES):
            rows = measured.get(kind, [])
            ax.plot(range(len(rows)), [row['measured'] for row in rows], **run_style(i), label=text)
            if len(folders) <= MOST // 2:
                ax.plot(range(len(rows)), [row['predicted'] for row in rows], color=COLORS[i], linestyle='--', linewidth=0.8)
            ax.set_title(f'$W_{kind[1]}$')
    for ax in axes:
        log_scale(ax)
        whole_ticks(ax)
    name_axes(axes, 'layer', 'σ₁ of W / ‖W x‖')
    legend(figure, 'run; dashed: predicted' if len(folders) <= MOST // 2 else 'run')
    return figure


def symbols(text):
    """'gradient of wq', 'W_q W_k' → with $W_q$."""
    return re.sub(r'\b(?:W_|w)([qkvo123])\b', r'$W_\1$', text)


def plot_preflight(folders):
    """How each quantity (a row) responds if one thing (a column) grows, before training.

    A cell is an exponent: 0 is immune, 1 is proportional, more is explosive. Below a panel is how the mean |x| and the
    variance of the hidden state grow along the depth, and the power of the depth."""
    grown = dict(shape=str, power=NUMBER)
    shape = dict(invariance=lambda table: fits(table, {str: {str: NUMBER}}) and any(table.values()),
                 growth={'as is': dict(ma=grown, var=grown)})
    found = [read_measured(folder, 'preflight', shape) for folder in folders]
    effects = list(dict.fromkeys(effect for measured in found for row in measured['invariance'].values() for effect in row))
    columns = min(4, len(folders))
    figure, axes = panels(len(folders), columns, 3.1, sharey=True)
    figure.set_size_inches(1.4 + 1.6 * columns, figure.get_figheight() + 1.4)
    for i, (ax, measured, name) in enumerate(zip(axes, found, labels(folders, optimizer=False))):
        causes = list(measured['invariance'])
        values = [[measured['invariance'][cause].get(effect, math.nan) for cause in causes] for effect in effects]
        image = ax.imshow(values, cmap='PuOr', vmin=-2, vmax=2, aspect='auto')
        ax.grid(False)
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                text = '' if math.isnan(value) else f'{value:.1f}'.replace('-0.0', '0.0').removesuffix('.0')
                ax.text(x, y, text, ha='center', va='center', fontsize=8, color='white' if abs(value) > 1.4 else 'black')
        ax.set_xticks(range(len(causes)), map(symbols, causes) if i >= len(axes) - columns else [''] * len(causes), rotation=90)
        ax.set_yticks(range(len(effects)), map(symbols, effects))
        ax.set_title(wrap(name, 1.8), fontsize=8)
        grown = measured['growth']['as is']
        ax.set_xlabel('\n'.join(wrap(f'{name}: {g["shape"]}, {g["power"]:.2f}'.replace('-0.00', '0.00'), 1.8)
                                for name, g in (('mean |x|', grown['ma']), ('variance', grown['var']))), fontsize=8)
    title = wrap('exponent of the answer; below a panel: growth along the depth, with its power', 1.6 * columns)
    figure.colorbar(image, ax=axes, location='bottom', shrink=0.4, aspect=30).set_label(title, fontsize=8)
    return figure


def plot_coordinates(folders):
    """How far activations move in the first steps, against the width: the coordinate check of muP.

    Solid: after the last step, dashed: after the first. A flat line means that the base width's learning rate fits. It needs
    python -m lab.coordinates."""
    shape = dict(steps=int, activations={str: dict(moves={str: [NUMBER, 1]}, exponent=NUMBER)})
    found = []
    for folder in folders:
        path, make = os.path.join(folder, 'coordinates.json'), 'make it with  python -m lab.coordinates'
        found.append(read_json(path, shape, make, math.nan))
        if found[-1] is None:
            raise ValueError(f'there is no {path}: {make}')
    names = list(dict.fromkeys(name for measured in found for name in measured['activations']))
    figure, axes = panels(len(names), height=2.0, sharex=True)
    for ax, name in zip(axes, names):
        ax.set_title(name.replace('_', ' '))
        for i, (measured, text) in enumerate(zip(found, labels(folders))):
            of_one = measured['activations'].get(name, {}).get('moves', {})
            for step, style in (-1, {'label': text, **run_style(i)}), (0, dict(color=COLORS[i], linestyle='--', linewidth=0.8)):
                ax.plot([*map(int, of_one)], [sizes[step] for sizes in of_one.values()], **style)
        ax.set_xscale('log', base=2)
        ax.xaxis.set_major_formatter('{x:.0f}')
        log_scale(ax)
    name_axes(axes, 'width', 'change (RMS)')
    legend(figure, f'run, after {found[0]["steps"]} steps; dashed: after the first')
    return figure


def not_negative(text):
    x = float(text)
    if x < 0:
        raise ValueError(f'{text} is negative')
    return x


# of a sweep's table.csv; all others are axes
COLUMNS = {'learning_rate?': not_negative, 'val_loss': float, 'standard_error': not_negative, 'done': int, 'diverged': int,
           'failed?': int, 'missing?': int, 'stopped?': int, 'test_loss?': float, 'test_standard_error?': not_negative}


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
        ax.errorbar(list(map(rate_of, row)), losses, errors, **style_of[name], elinewidth=0.8, label=name)
        lost = [rate_of(point) for point in row if is_lost(point)]
        ax.plot(lost, [0.98 - 0.04 * crosses.count(rate) for rate in lost], 'x', color=style_of[name]['color'], markersize=5,
                transform=ax.get_xaxis_transform())
        crosses += lost
    rates = sorted({rate_of(point) for row in rows.values() for point in row})
    texts, crowded = [f'{rate:g}' for rate in rates], False
    if len(rates) > 1 and rates[0] > 0:
        log_scale(ax, 'x')
        closest = min(math.log(b / a) for a, b in zip(rates, rates[1:])) / math.log(rates[-1] / rates[0])
        crowded = closest * width < CHARACTER * (max(map(len, texts)) + 1)
    ax.set_xticks(rates, texts, **dict(rotation=45, ha='right', rotation_mode='anchor') if crowded else {})
    ax.minorticks_off()
    ax.set_xlabel('learning rate')


CROSS = '\n(×: every run diverged)'


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
    ax.set_xlabel(f'validation loss (nats){at}' + CROSS * bool(lost))


def plot_sweep(folders):
    """The validation loss against the learning rate, a curve for each row of the sweep's table.

    Bars are standard errors over seeds. A cross marks a point at which every run diverged. More than eight rows are split into
    panels. A sweep of one learning rate has a line of text and a point for each row."""
    parts = []                                          # of all folders: (title, rows, axes, whether over learning rates)
    for folder in folders:
        points = read_points(folder)
        axes = [axis for axis in points[0] if axis not in COLUMNS and f'{axis}?' not in COLUMNS]
        over_rates = len(set(map(rate_of, points))) > 1
        split, axes = split_rows(points, axes) if over_rates else ([('', rows_of(points, axes))], axes)
        name = os.path.basename(os.path.normpath(folder)) if len(folders) > 1 else ''
        parts += [('; '.join(filter(None, (name, title))), rows, axes, over_rates) for title, rows in split]
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
        title = ', '.join(axes) + CROSS * any(is_lost(point) for _, rows, *_ in parts for row in rows.values() for point in row)
        if not together:
            legend_below(ax, title)
    if together:
        legend(figure, title)
    return figure


PICTURES = {name.removeprefix('plot_'): f for name, f in globals().copy().items() if name.startswith('plot_')}


# ----------------------------------------------------------------------------- any quantity of a run's rows

def quantities(value, key=''):
    """{key: {curve: number}} of what is numeric in a row of log.jsonl or measure.jsonl.

    A key is a path of names with dots between them. A number is one curve, named ''. A list is a curve for each of its items,
    which are the layers, named 0, 1, …, or by their entry 'at'. A list within a list, as of heads, is its mean."""
    if fits(value, NUMBER):
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
        for row in read_rows(os.path.join(folder, name), dict(iter=int)):
            for key, curves in quantities(row).items() if 'diverged' not in row else ():
                for curve, value in curves.items():
                    found.setdefault(key, {}).setdefault(curve, []).append((row['iter'], value))
    return found


def braced(words):
    return words[0] if len(words) == 1 else '{' + ','.join(words) + '}'


def brief(keys):
    """The keys in short, as a shell's braces would give them: ['loss', 'updates.{emb,qk}']."""
    below = {}                                          # {first name of a key: what may follow}
    for key in keys:
        name, _, rest = key.partition('.')
        below.setdefault(name, []).append(rest)
    ends = {}                                           # {what follows, in short: names}
    for name, rests in below.items():
        rests = brief([rest for rest in rests if rest])
        ends.setdefault('.' + braced(rests) if rests else '', []).append(name)
    return [text for end, names in ends.items() for text in ([braced(names) + end] if end else names)]


NAMES = dict(loss='loss', grad_norms='norm of the gradient', weight_norms='norm of the weights',
             train_loss='training loss', val_loss='validation loss', lr='learning rate',
             grad_norm='norm of the gradient', tokens_per_s='tokens per second', images_per_s='images per second',
             mfu='share of the peak FLOP/s', train_top1='training top-1 (share)', val_top1='validation top-1 (share)')


def over_iterations(key, folders):
    """Any key of log.jsonl or measure.jsonl over the iterations.

    A number is a curve for each run. A list, such as attention.max_logit, has a panel for each run, with a curve for each
    layer: the mean over its heads. So has a key that stands before several, such as grad_norms, with a curve for each block
    type. Of more than eight layers, eight are drawn, from the first to the last. The axis is logarithmic if the values are
    positive and their middle 90% span a factor of more than 100."""
    names, found = labels(folders), []
    for folder in folders:
        there = read_quantities(folder)
        by_name = {name.removeprefix(f'{key}.'): curves for name, curves in there.items() if name.startswith(f'{key}.')}
        if by_name and all(set(curves) == {''} for curves in by_name.values()):
            there[key] = {name: curves[''] for name, curves in by_name.items()}         # a curve for each name below the key
        if key not in there:
            near = difflib.get_close_matches(key, [*PICTURES, *there], 1)
            near = f'did you mean {near[0]!r}? ' if near else ''
            raise ValueError(f'what={key!r} is no picture, and {folder} does not have this key: {near}'
                             f'pictures are {", ".join(PICTURES)}; keys are '
                             + (', '.join(brief(there)) or f'none: there is no {os.path.join(folder, "log.jsonl")}'))
        found.append(there[key])
    curves = list(dict.fromkeys(curve for run in found for curve in run))
    several = curves != ['']
    shown = [curves[i] for i in sorted({round(k * (len(curves) - 1) / (MOST - 1)) for k in range(MOST)})]
    figure, axes = panels(len(found) if several else 1, columns_for(len(found)), 2.4, sharex=several, sharey=several)
    for i, (run, name) in enumerate(zip(found, names)):
        ax = axes[i] if several else axes[0]
        for k, curve in enumerate(shown):
            points = run.get(curve, [])
            style = run_style(k if several else i)
            if curve in TYPES:
                style.update(zip(('color', 'linestyle'), type_style(curve, curves)))
            if len(points) > 50:
                del style['marker']
            draw_over_time(ax, points, **style, label=curve if several else name)
        if several:
            ax.set_title(wrap(name, figure.get_figwidth() / columns_for(len(found)) - 0.2))
    values = sorted(value for run in found for curve in shown for _, value in run.get(curve, []) if math.isfinite(value))
    unit = f' (nats per {"image" if of_images(folders) else "token"})' if key in ('train_loss', 'val_loss') else ''
    if values and values[0] > 0 and values[-1 - len(values) // 20] > 100 * values[len(values) // 20]:
        for ax in axes:
            log_scale(ax)
    name_axes(axes, 'iteration', NAMES.get(key, key) + unit)
    layers = 'layer' if all(curve.isdigit() for curve in curves) else 'block type' if TYPES.keys() & {*curves} else 'place'
    legend(figure, 'run' if not several else layers if shown == curves else f'{layers}, {len(shown)} of {len(curves)}')
    return figure


# ----------------------------------------------------------------------------- the command

def picture(what, folders):
    """The figure of this name in PICTURES, or of this key."""
    return PICTURES[what](folders) if what in PICTURES else over_iterations(what, folders)


def draw(what, folders, out):
    """Writes the picture of these folders to `out`."""
    write(lambda: picture(what, folders), out)


def write(make_figure, out):
    """Writes the figure that make_figure() returns to `out`, with 200 dots an inch, and as SVG beside it."""
    stem, kind = os.path.splitext(out)
    paths = [stem + (kind if kind not in ('', '.svg') else '.png'), f'{stem}.svg']
    try:
        figure = make_figure()
        figure.draw_without_rendering()
        figure.set_layout_engine('none')                # the layout is done, once for both files
        for path in paths:
            figure.savefig(path, dpi=200, metadata={'Date': None} if path.endswith('.svg') else None)
    finally:
        plt.close('all')
    print(f'wrote {paths[0]} and {paths[1]}')


def first_line(f):
    return f.__doc__.partition('\n')[0]


def rest(f):
    return textwrap.dedent(f.__doc__.partition('\n')[2]).strip()


if __name__ == '__main__':
    about = '\n'.join(f'  {name:14}{first_line(f)}' for name, f in {**PICTURES, 'KEY': over_iterations}.items())
    parser = argparse.ArgumentParser(
        prog='python -m lab.plot', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f'pictures:\n{about}\n\n{rest(over_iterations)}\nAn unknown KEY is answered with the keys that there are.')
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('folders', nargs='+', help='out_dir of each run, or sweep')
    parser.add_argument('--what', default='loss', metavar='PICTURE|KEY',
                        help='a picture of the list below; default: loss. All except loss, sweep and KEY need '
                             'python -m lab.measure')
    parser.add_argument('--out', help='the picture; default: WHAT.png in the first folder')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    begin(vars(args))
    draw(args.what, args.folders, args.out or os.path.join(args.folders[0], f'{args.what}.png'))
