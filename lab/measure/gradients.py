"""The distribution of the gradient in each kind of matrix (DNT, figure 1)."""
import math
from functools import partial

import torch

from lab.measure.tools import log_histogram, matrix_kind, mean_gradient, measurement, table
from lab.plot.lines import COLORS, Lines, Panel
from lab.plot.measured import histogram_curve, per_bin, read_measured, short
from lab.plot.names import labels


def distribution(x):
    """Return the tails of x: quantiles of |x|, kurtosis (3 for a Gaussian), Hill's tail index over the largest 1% (smaller means
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


MATRICES = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')


def plot_gradients(folders):
    """The title of a panel gives, for each run, the 99.9% quantile over the median."""
    runs = [(text, read_measured(folder, 'gradients')) for text, folder in zip(labels(folders), folders)]
    y = 'share of the entries\n' + per_bin(runs[0][1])
    panels = []
    for kind in MATRICES:
        drawn = [(text, measured[kind], COLORS[i]) for i, (text, measured) in enumerate(runs) if kind in measured]
        curves = [histogram_curve(stats['histogram'], name=text, color=color) for text, stats, color in drawn]
        tails = ', '.join(short(stats['tail']) for _, stats, _ in drawn)        # tied L2 attention has no W_k
        panels.append(Panel(curves, 'log₁₀ |gradient|', y, f'$W_{kind[1]}$, p99.9/p50: {tails}'))
    return Lines(panels, 'run', sharey='all')


@measurement(partial(table, '|gradient| of each kind of matrix; tail is p99.9 / p50, hill the tail index of the largest 1%',
                     keys=('p50', 'p99', 'p999', 'max', 'tail', 'kurtosis', 'hill')), plot_gradients)
def gradients(model, batches, rng):
    """The distribution of |gradient| in each kind of matrix, over all layers and in each (DNT, figure 1)."""
    by_kind = {}
    for name, g in mean_gradient(model, batches).items():
        if matrix_kind(name):
            by_kind.setdefault(matrix_kind(name), []).append(g.flatten())
    return {kind: dict(distribution(torch.cat(grads)), histogram=log_histogram(torch.cat(grads)),
                       layers=[distribution(g) for g in grads]) for kind, grads in by_kind.items()}
