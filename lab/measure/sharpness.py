"""Blockwise sharpness, by block type and by layer (sharpness disparity, equations 3 and 4, figure 9a)."""
import math
import os
import re
from functools import partial

import torch

from lab.measure.tools import BIN, log_histogram, mean_gradient, measurement, table
from lab.plot import along_depth, draw_histogram, draw_mean, fill, finish, panels, read_curves, read_measured, style_of_part
from model import block_type


def sampled_labels(rng):
    """Return a function: logits → labels drawn from their softmax. NaN logits give arbitrary labels, because nothing can be
    measured."""
    def draw(logits):
        return torch.multinomial(logits.softmax(-1).nan_to_num(1.0).flatten(0, -2), 1, generator=rng).view(logits.shape[:-1])
    return draw


def diagonal_estimate(model, batches, rng):
    """Return {name: h}, h = N g ⊙ g: an unbiased estimate of the diagonal Gauss–Newton matrix of the mean loss over these N
    tokens or images. g is the gradient with labels drawn from the model's own softmax (sharpness disparity, eq. 3, for
    samples)."""
    targets = sum(y.numel() for _, y in batches)
    return {name: targets * g.square() for name, g in mean_gradient(model, batches, sampled_labels(rng)).items()}


def summary(h):
    """log10 of the mean, the mean of log10 over nonzero entries, and the share of zeros, such as embeddings of absent tokens."""
    positive = h[h > 0]
    return dict(log10_mean=h.mean().log10().item() if len(positive) else -math.inf,
                mean_log10=positive.log10().mean().item() if len(positive) else -math.inf, zeros=1 - len(positive) / h.numel())


def plot_sharpness(runs):
    """A large marker is the log10 of the mean. If a run measured while it trained, that of each time stands beside it."""
    trained = [os.path.exists(os.path.join(folder, 'measure.jsonl')) for _, folder in runs]
    columns, share = (2, 'col') if any(trained) else (min(3, len(runs)), 'all')
    figure, axes = panels((1 + any(trained)) * len(runs), columns, sharex=share, sharey=share)
    for (name, folder), has_means in zip(runs, trained):
        ax, measured = axes.pop(0), read_measured(folder, 'sharpness')
        ax.set(xlabel='log₁₀ of the sharpness', ylabel=f'share of the parameters\nper {BIN:g} decade', title=fill(name, columns))
        for k, (kind, of_kind) in enumerate(measured.items()):
            style = style_of_part(kind, [*measured])
            draw_histogram(ax, of_kind['histogram'], k, label=kind, **style)
            ax.plot(of_kind['log10_mean'], 0, ms=7, clip_on=False, zorder=3, **style)
        if any(trained):
            ax, curves = axes.pop(0), read_curves(folder) if has_means else {}
            ax.set(xlabel='iteration', ylabel='log₁₀ of the\nmean sharpness', title='' if has_means else 'only at the end')
            for kind in measured:
                of_kind = curves.get(f'sharpness.{kind}.log10_mean', {})
                draw_mean(ax, [*of_kind.values()], label=kind, **style_of_part(kind, [*measured]))
    return finish(figure, 'block type; a large marker is the log₁₀ of its mean')


COLUMNS = 'log10_mean: log10 of the mean, mean_log10: mean of log10 over entries above 0, zeros: share of zeros'


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
    """Return {layer: its values} of {parameter: its values}. Layers are as sharpness disparity counts them (figure 9): 0 is
    embeddings and InputNorm, blocks are from 1 on. What comes after the blocks has none."""
    layers = {}
    for name, values in h.items():
        block = re.match(r'h\.(\d+)\.', name)
        if block or not re.match(r'(lm_)?head\.|final_norm\.', name):
            layers.setdefault(int(block[1]) + 1 if block else 0, []).append(values.flatten())
    return {layer: torch.cat(layers[layer]) for layer in sorted(layers)}


def show_layers(result):
    table(f'sharpness of each layer, 0 is the embeddings; {COLUMNS}', {str(i): row for i, row in enumerate(result)}, 'layer')


@measurement(show_layers, along_depth, x='layer (0: embeddings)', first=0.0, linear=1,
             shown={'log₁₀ of the mean sharpness': 'log10_mean'})
def layers(model, batches, rng):
    """Sharpness per layer (sharpness disparity, figure 9a)."""
    return [summary(values) for values in by_layer(diagonal_estimate(model, batches, rng)).values()]
