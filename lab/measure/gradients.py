"""The distribution of the gradient in each kind of matrix (DNT, figure 1)."""
import math

import torch
from matplotlib.ticker import MaxNLocator

from lab.figures import (
    COLORS,
    LINE,
    draw_histogram,
    labels,
    legend,
    legend_below,
    name_axes,
    panels,
    per_bin,
    read_measured,
    short,
)
from lab.measure.tools import log_histogram, matrix_kind, mean_gradient, table


def distribution(x):
    """The tails of x: quantiles of |x|, kurtosis (3 for a Gaussian), Hill's tail index over the largest 1% (smaller means
    heavier), and p99.9 / p50."""
    magnitude = x.abs().flatten().float().sort().values
    n = len(magnitude)
    quantile = {q: magnitude[min(n - 1, math.ceil(q * n) - 1)].item() for q in (0.5, 0.9, 0.99, 0.999)}
    centred = x.flatten().double() - x.double().mean()
    top = magnitude[-max(2, n // 100):].double()
    excess = (top[1:] / top[0]).log().mean().item() if top[0] > 0 else math.nan
    return dict(p50=quantile[0.5], p90=quantile[0.9], p99=quantile[0.99], p999=quantile[0.999], max=magnitude[-1].item(),
                kurtosis=(centred.pow(4).mean() / centred.square().mean().square()).item(),
                hill=1 / excess if excess else math.inf, tail=quantile[0.999] / quantile[0.5] if quantile[0.5] else math.inf)


def gradients(model, batches, rng):
    """DNT's figure 1: the distribution of |gradient| of each kind of matrix, over all layers and per layer."""
    by_kind = {}
    for name, g in mean_gradient(model, batches).items():
        if matrix_kind(name):
            by_kind.setdefault(matrix_kind(name), []).append(g.flatten())
    return {kind: dict(distribution(torch.cat(grads)), histogram=log_histogram(torch.cat(grads)),
                       layers=[distribution(g) for g in grads]) for kind, grads in by_kind.items()}


def show_gradients(result):
    keys = ('p50', 'p99', 'p999', 'max', 'tail', 'kurtosis', 'hill')
    table('|gradient| of each kind of matrix; tail is p99.9 / p50, hill the tail index of the largest 1%', ['', *keys],
          [[kind, *(stats[key] for key in keys)] for kind, stats in result.items()])


MATRICES = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')


def plot_gradients(folders):
    """The distribution of |gradient| in each kind of matrix (DNT, figure 1).

    The legend of a panel gives, for each run, the 99.9% quantile over the median, and the kurtosis."""
    runs = [(text, read_measured(folder, 'gradients')) for text, folder in zip(labels(folders), folders)]
    figure, axes = panels(6, sharex=True, sharey=True, height=2.1 + LINE * len(folders))
    for ax, kind in zip(axes, MATRICES):
        ax.set_title(f'$W_{kind[1]}$')
        for i, (text, measured) in enumerate(runs):
            if kind in measured:                        # W_k is W_q in tied L2 attention
                draw_histogram(ax, measured[kind]['histogram'], color=COLORS[i], label=text)
    name_axes(axes, 'log₁₀ |gradient|', 'share of the entries\n' + per_bin(next(iter(runs[0][1].values()))))
    for ax, kind in zip(axes, MATRICES):
        tails = [', '.join(short(m[kind][key]) for key in ('tail', 'kurtosis')) for _, m in runs if kind in m]
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        legend_below(ax, 'run: p99.9/p50, kurtosis', ax.get_lines(), tails)
    legend(figure, 'run')
    return figure
