"""The distribution of the gradient in each kind of matrix (DNT, figure 1)."""
import math
from functools import partial

import torch

from lab.measure.tools import BIN, log_histogram, matrix_kind, mean_gradient, measurement, table
from lab.plot import draw_histogram, finish, panels, read_measured, style_of


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


def plot_gradients(runs):
    """The title of a panel gives, for each run, the 99.9% quantile over the median."""
    figure, axes = panels(len(MATRICES), sharey=True)
    measured = [read_measured(folder, 'gradients') for _, folder in runs]
    for ax, kind in zip(axes, MATRICES):
        tails = []
        for i, ((name, _), by_kind) in enumerate(zip(runs, measured)):
            if kind in by_kind:                         # tied L2 attention has no W_k
                draw_histogram(ax, by_kind[kind]['histogram'], i, label=name, **style_of(i))
                tails.append(f'{by_kind[kind]["tail"]:.3g}')
        ax.set(xlabel='log₁₀ |gradient|', ylabel=f'share of the entries\nper {BIN:g} decade',
               title=f'$W_{kind[1]}$, p99.9/p50:\n{", ".join(tails)}')
    return finish(figure, 'run')


COLUMNS = 'p50: median, tail: p99.9 / p50, kurtosis: 3 for a Gaussian, hill: tail index of the largest 1%'


@measurement(partial(table, f'|gradient| of each kind of matrix; {COLUMNS}',
                     keys=('p50', 'p99', 'p999', 'max', 'tail', 'kurtosis', 'hill')), plot_gradients)
def gradients(model, batches, rng):
    """The distribution of |gradient| in each kind of matrix, over all layers and in each (DNT, figure 1)."""
    by_kind = {}
    for name, g in mean_gradient(model, batches).items():
        if matrix_kind(name):
            by_kind.setdefault(matrix_kind(name), []).append(g.flatten())
    return {kind: dict(distribution(torch.cat(grads)), histogram=log_histogram(torch.cat(grads)),
                       layers=[distribution(g) for g in grads]) for kind, grads in by_kind.items()}
