"""A picture of curves, described once: drawn by matplotlib for files and notebooks, by lab/plot/page.py as a page."""
import math
import textwrap
from dataclasses import dataclass, field, replace

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

# Okabe and Ito's palette, which colour-blind readers tell apart
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442']
MARKERS, DASHES = 'os^DvPX*', ('-', '--', ':', '-.')
TYPES = dict(zip(('emb', 'head', 'qk', 'vo', 'ffn', 'pos', 'norm'), [*COLORS[:5], '#888888', '#000000']))

HALF, FULL = 3.5, 7.2                   # inches: the width of a column and of a page, so that papers need not resize a picture
CHARACTER = 0.068                       # inches: the average width of a letter in a legend
MARKED = 50                             # points: longer curves have no markers
STYLE = {'font.size': 9, 'axes.titlesize': 9, 'axes.labelsize': 9, 'xtick.labelsize': 8, 'ytick.labelsize': 8,
         'legend.fontsize': 8, 'legend.title_fontsize': 8, 'legend.frameon': False, 'lines.markersize': 3.5, 'axes.grid': True,
         'grid.alpha': 0.3, 'grid.linewidth': 0.6, 'axes.spines.top': False, 'axes.spines.right': False}


@dataclass
class Curve:
    """Points and the line through them. The curves of a name have one entry in the legend; '' has none."""
    x: list
    y: list
    name: str = ''
    color: str = COLORS[0]
    marker: str = ''
    dash: str = '-'                     # '' for points alone
    width: float = 1.2
    pale: bool = False
    low: list = ()                      # a range around the points: a band, or bars
    high: list = ()
    bars: bool = False

    def is_empty(self):
        return not any(map(math.isfinite, self.y))

    def style(self):
        return dict(color=self.color, marker=self.marker, linestyle=self.dash or 'none', linewidth=self.width,
                    alpha=0.5 if self.pale else None)


@dataclass
class Panel:
    curves: list
    x: str = ''                         # names of the axes
    y: str = ''
    title: str = ''
    remark: str = ''                    # above the axes, at the right
    log: str = ''                       # x, y or xy
    xlim: tuple = (None, None)
    ylim: tuple = (None, None)
    ticks: dict = field(default_factory=dict)           # {x: its text} instead of matplotlib's ticks
    height: float = 2.2                 # inches


@dataclass
class Lines:
    """Panels row by row, and one legend for all of them. What they share is said as to plt.subplots."""
    panels: list
    legend: str                         # its title
    columns: int = 0
    sharex: str = 'all'                 # none, all, row or col
    sharey: str = 'none'

    def __post_init__(self):
        self.columns = self.columns or (2 if len(self.panels) == 4 else min(len(self.panels), 3))
        self.heights = [panel.height for panel in self.panels[::self.columns]]
        for panel in self.panels:
            if max((len(curve.x) for curve in panel.curves if curve.marker), default=0) > MARKED:
                panel.curves = [replace(curve, marker='') for curve in panel.curves]

    def axis_names(self, i):
        """Return the names of panel i's axes, without those that the panel below or at the left says too"""
        panel, below = self.panels[i], self.panels[i + self.columns:][:1]
        left = self.panels[i - 1] if i % self.columns else None
        return dict(xlabel='' if below and below[0].x == panel.x else panel.x,
                    ylabel='' if left and left.y == panel.y else panel.y)

    def entries(self):
        """Return {name: the curve that stands for it in the legend}, the widest that is not empty"""
        found = {}
        for curve in (curve for panel in self.panels for curve in panel.curves if curve.name and not curve.is_empty()):
            if curve.name not in found or curve.width > found[curve.name].width:
                found[curve.name] = curve
        return found

    def zoom(self, xlim=None, ylim=None, log=''):
        """Set limits and scales of the first panel, and of all where they share its axes."""
        for i, panel in enumerate(self.panels):
            if i == 0 or self.sharex == 'all':
                panel.xlim, panel.log = xlim or panel.xlim, panel.log + 'x' * ('x' in log)
            if i == 0 or self.sharey == 'all':
                panel.ylim, panel.remark = (ylim, '') if ylim else (panel.ylim, panel.remark)
                panel.log += 'y' * ('y' in log)

    def figure(self):
        """Return the picture as a figure of matplotlib, without pyplot, so that a notebook keeps its backend."""
        width = HALF if self.columns == 1 else FULL
        figure = Figure(figsize=(width, sum(self.heights)), layout='constrained')
        figure.get_layout_engine().set(w_pad=0.1)
        axes = [*figure.subplots(len(self.heights), self.columns, sharex=self.sharex, sharey=self.sharey, squeeze=False,
                                 height_ratios=self.heights).flat]
        for ax in axes[len(self.panels):]:
            ax.remove()
        for i, (ax, panel) in enumerate(zip(axes, self.panels)):
            ax.set(title=textwrap.fill(panel.title, int((FULL / self.columns - 0.4) / CHARACTER)), **self.axis_names(i))
            if i + self.columns >= len(self.panels):    # nothing below says what x is
                ax.tick_params(labelbottom=True)
            ax.set_title(panel.remark, loc='right', fontsize=8, color='0.4')
            for curve in panel.curves:
                draw_curve(ax, curve)
        for ax, panel in zip(axes, self.panels):        # now that all that share an axis are drawn
            set_axes(ax, panel)
        if entries := self.entries():                   # below the figure; savefig makes room for them
            texts = [textwrap.fill(name, int(FULL / CHARACTER)) for name in entries]
            columns = int(width / (CHARACTER * max(map(len, texts)) + 0.5))
            figure.legend([Line2D([], [], **curve.style()) for curve in entries.values()], texts, title=self.legend,
                          loc='upper center', bbox_to_anchor=(0.5, 0), ncols=min(max(1, columns), len(texts)), alignment='left')
        return figure


def draw_curve(ax, curve):
    if curve.bars:
        ends = [[y - low for y, low in zip(curve.y, curve.low)], [high - y for y, high in zip(curve.y, curve.high)]]
        ax.errorbar(curve.x, curve.y, ends, elinewidth=0.8, **curve.style())
    elif not curve.is_empty():
        ax.plot(curve.x, curve.y, **curve.style(), clip_on=bool(curve.dash))
        if len(curve.low):
            ax.fill_between(curve.x, curve.low, curve.high, color=curve.color, alpha=0.2, linewidth=0)


def set_axes(ax, panel):
    """Set the scales, limits and ticks of a panel."""
    for name, limits in ('x', panel.xlim), ('y', panel.ylim):
        if name in panel.log and ax.lines:              # a log axis needs numbers
            getattr(ax, f'set_{name}scale')('log')
        if limits != (None, None):
            getattr(ax, f'set_{name}lim')(*limits)
        label_log_ticks(getattr(ax, f'{name}axis'))
    if panel.ticks:
        many = dict(rotation=45, ha='right', rotation_mode='anchor') if len(panel.ticks) > 4 else {}
        ax.set_xticks([*panel.ticks], panel.ticks.values(), **many)
        ax.xaxis.set_minor_locator(NullLocator())
    elif 'x' not in panel.log:
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))


def label_log_ticks(axis):
    """Label more than the powers of ten where a log axis has less than three of them."""
    low, high = sorted(axis.get_view_interval())
    if axis.get_scale() == 'log' and isinstance(axis.get_major_locator(), LogLocator) and high < 1000 * low:
        axis.set_major_locator(MaxNLocator(4) if high < 10 * low else LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter('{x:g}')


def run_style(i):
    """Return the colour, marker and dash of item number i of an unordered set."""
    return dict(color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)], dash=DASHES[i // len(COLORS) % len(DASHES)])


def ordered_color(i, count):
    """Return the colour of item number i, from 0, of an ordered set, from dark to light."""
    return matplotlib.colors.to_hex(matplotlib.colormaps['viridis'](0.9 * i / max(1, count - 1)))


def type_style(kind, kinds):
    """Return the colour and dash of a block type, one of `kinds`. Types that TYPES lacks are dashed, in its colours."""
    others = [other for other in kinds if other not in TYPES]
    return dict(color=TYPES[kind]) if kind in TYPES else dict(color=COLORS[others.index(kind) % len(COLORS)], dash='--')
