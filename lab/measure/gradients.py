"""The gradient in each kind of matrix (DNT, figure 1), and the sharpness of block types and layers, which is estimated from
gradients (sharpness disparity, equations 3 and 4, figure 9a)."""
import math
import os
import re
from functools import partial

import torch

from lab import plot
from lab.measure.tools import BIN, MATRICES, log_histogram, matrix_kind, mean_gradient, measurement, table
from model import block_type

COLUMNS = 'log10_mean: log10 of the mean, mean_log10: mean of log10 over entries above 0, zeros: share of zeros'


def distribution(x):
    """Return quantiles of |x|, kurtosis, Hill's tail index over the largest 1% (smaller means heavier), and p99.9 / p50."""
    magnitude = x.abs().flatten().float().sort().values
    n = len(magnitude)
    quantile = {q: magnitude[min(n - 1, math.ceil(q * n) - 1)].item() for q in (0.5, 0.9, 0.99, 0.999)}
    centred = x.flatten().double() - x.double().mean()
    top = magnitude[-max(2, n // 100):].double()
    excess = (top[1:] / top[0]).log().mean().item() if top[0] > 0 else math.nan
    return dict(p50=quantile[0.5], p90=quantile[0.9], p99=quantile[0.99], p999=quantile[0.999], max=magnitude[-1].item(),
                kurtosis=(centred.pow(4).mean() / centred.square().mean().square()).item(),
                hill=1 / excess if excess else math.inf, tail=quantile[0.999] / quantile[0.5] if quantile[0.5] else math.inf)


def plot_gradients(runs):
    """The title of a panel gives, for each run, the 99.9% quantile over the median."""
    figure, axes = plot.panels(len(MATRICES), sharey=True)
    measured = [plot.read_measured(folder, 'gradients') for _, folder in runs]
    for ax, kind in zip(axes, MATRICES):
        tails = []
        for i, ((name, _), by_kind) in enumerate(zip(runs, measured)):
            if kind in by_kind:                         # tied L2 attention has no W_k
                plot.draw_histogram(ax, by_kind[kind]['histogram'], i, label=name, **plot.style_of(i))
                tails.append(f'{by_kind[kind]["tail"]:.3g}')
        ax.set(xlabel='log₁₀ |gradient|', ylabel=f'share of the entries\nper {BIN:g} decade',
               title=f'$W_{kind[1]}$, p99.9/p50:\n{", ".join(tails)}')
    return plot.finish(figure, 'run')


@measurement(partial(table, '|gradient| of each kind of matrix; p50: median, tail: p99.9 / p50, kurtosis: 3 for a Gaussian, '
                     'hill: tail index of the largest 1%', keys=('p50', 'p99', 'p999', 'max', 'tail', 'kurtosis', 'hill')),
             plot_gradients)
def gradients(model, batches, rng):
    """The distribution of |gradient| in each kind of matrix, over all layers and in each (DNT, figure 1)."""
    by_kind = {}
    for name, g in mean_gradient(model, batches).items():
        if matrix_kind(name):
            by_kind.setdefault(matrix_kind(name), []).append(g.flatten())
    return {kind: dict(distribution(torch.cat(grads)), histogram=log_histogram(torch.cat(grads)),
                       layers=[distribution(g) for g in grads]) for kind, grads in by_kind.items()}


def sampled_labels(rng):
    """Return a function: logits → labels drawn from their softmax, arbitrary ones for NaN."""
    def draw(logits):
        return torch.multinomial(logits.softmax(-1).nan_to_num(1.0).flatten(0, -2), 1, generator=rng).view(logits.shape[:-1])
    return draw


def diagonal_estimate(model, batches, rng):
    """Return {name: h}, h = N g ⊙ g: an unbiased estimate of the diagonal Gauss–Newton matrix of the mean loss over N samples. g
    is the gradient with labels drawn from the model's own softmax (sharpness disparity, eq. 3)."""
    targets = sum(y.numel() for _, y in batches)
    return {name: targets * g.square() for name, g in mean_gradient(model, batches, sampled_labels(rng)).items()}


def summary(h):
    """log10 of the mean, the mean of log10 over nonzero entries, and the share of zeros, such as embeddings of absent tokens."""
    positive = h[h > 0]
    return dict(log10_mean=h.mean().log10().item(), mean_log10=positive.log10().mean().item() if len(positive) else -math.inf,
                zeros=1 - len(positive) / h.numel())


def plot_sharpness(runs):
    """A large marker is the log10 of the mean. If a run measured while it trained, that of each time stands beside it."""
    trained = [os.path.exists(os.path.join(folder, 'measure.jsonl')) for _, folder in runs]
    columns, share = (2, 'col') if any(trained) else (min(3, len(runs)), 'all')
    figure, axes = plot.panels((1 + any(trained)) * len(runs), columns, sharex=share, sharey=share)
    for (name, folder), has_means in zip(runs, trained):
        ax, measured = axes.pop(0), plot.read_measured(folder, 'sharpness')
        styles = {kind: plot.style_of_part(kind, [*measured]) for kind in measured}
        ax.set(xlabel='log₁₀ of the sharpness', ylabel=f'share of the parameters\nper {BIN:g} decade')
        ax.set_title(plot.fill(name, columns))
        for k, (kind, style) in enumerate(styles.items()):
            plot.draw_histogram(ax, measured[kind]['histogram'], k, label=kind, **style)
            ax.plot(measured[kind]['log10_mean'], 0, ms=7, clip_on=False, zorder=3, **style)
        if any(trained):
            ax, curves = axes.pop(0), plot.read_curves(folder) if has_means else {}
            ax.set(xlabel='iteration', ylabel='log₁₀ of the\nmean sharpness')
            for kind, style in styles.items():
                plot.draw_mean(ax, [*curves.get(f'sharpness.{kind}.log10_mean', {}).values()], label=kind, **style)
    return plot.finish(figure, 'block type; a large marker is the log₁₀ of its mean')


@measurement(partial(table, f'sharpness of each block type; {COLUMNS}', keys=('log10_mean', 'mean_log10', 'zeros')),
             plot_sharpness)
def sharpness(model, batches, rng):
    """The distribution of sharpness in each block type, and its mean during training (sharpness disparity, eq. 4)."""
    h, table, result = diagonal_estimate(model, batches, rng), model.config.params, {}
    for kind in dict.fromkeys(row.type for row in table.values()):
        of_type = {name: value for name, value in h.items() if block_type(name, table) == kind}
        if of_type:
            values = torch.cat([value.flatten() for value in of_type.values()])
            layers = [summary(of_layer) for i, of_layer in by_layer(of_type).items() if i]
            result[kind] = dict(summary(values), histogram=log_histogram(values), layers=layers)
    return result


def by_layer(h):
    """Return {layer: its values} of {parameter: its values}. Layer 0 is embeddings and InputNorm, blocks are from 1 on, and what
    comes after them has none (sharpness disparity, figure 9)."""
    layers = {}
    for name, values in h.items():
        block = re.match(r'h\.(\d+)\.', name)
        if block or not re.match(r'(lm_)?head\.|final_norm\.', name):
            layers.setdefault(int(block[1]) + 1 if block else 0, []).append(values.flatten())
    return {layer: torch.cat(layers[layer]) for layer in sorted(layers)}


def show_layers(result):
    table(f'sharpness of each layer, 0 is the embeddings; {COLUMNS}', {str(i): row for i, row in enumerate(result)}, 'layer')


@measurement(show_layers, plot.along_depth, x='layer (0: embeddings)', first=0.0, linear=1,
             shown={'log₁₀ of the mean sharpness': 'log10_mean'})
def layers(model, batches, rng):
    """Sharpness per layer (sharpness disparity, figure 9a)."""
    return [summary(values) for values in by_layer(diagonal_estimate(model, batches, rng)).values()]
