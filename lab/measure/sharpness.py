"""Blockwise sharpness, by block type and by layer (sharpness disparity, equations 3 and 4, figure 9a, theorems 4.1 to 4.3)."""
import math
import os
import re
from functools import partial

import torch

from engine.errors import read_rows
from lab.measure.tools import log_histogram, mean_gradient, measurement, table
from lab.plot.lines import COLORS, Curve, Lines, Panel, type_style
from lab.plot.measured import histogram_curve, per_bin, read_measured, symbols
from lab.plot.names import labels
from lab.plot.runs import over_time
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


def plot_sharpness(folders):
    """A dot marks the log10 of the mean. If a run measured while it trained, that of each time stands beside its distribution."""
    runs = [(text, read_measured(folder, 'sharpness'), read_rows(os.path.join(folder, 'measure.jsonl')))
            for text, folder in zip(labels(folders), folders)]
    trained, panels = any(rows for *_, rows in runs), []
    for text, measured, rows in runs:
        histograms = Panel([], 'log₁₀ of the sharpness', 'share of the parameters\n' + per_bin(measured), text)
        means = Panel([], 'iteration', 'log₁₀ of the mean sharpness', '' if rows else 'not measured while training')
        for kind, of_kind in measured.items():
            style = type_style(kind, measured)
            histograms.curves += [histogram_curve(of_kind['histogram'], name=kind, **style),
                                  Curve([of_kind['log10_mean']], [0], color=style['color'], marker='o', dash='')]
            points = [(row['iter'], row['sharpness'][kind]['log10_mean']) for row in rows if kind in row.get('sharpness', {})]
            means.curves.append(over_time([points], name=kind, marker='o', **style))
        panels += [histograms, means] if trained else [histograms]
    shared = 'col' if trained else 'all'
    return Lines(panels, 'block type; a dot is the log₁₀ of its mean', 2 if trained else 0, shared, shared)


@measurement(partial(table, 'sharpness of each block type', keys=('log10_mean', 'mean_log10', 'zeros')), plot_sharpness)
def sharpness(model, batches, rng):
    """The distribution of sharpness in each block type, and its mean during training (sharpness disparity, eq. 4)."""
    h, types, result = diagonal_estimate(model, batches, rng), model.config.block_types, {}
    for kind in dict.fromkeys(types.values()):
        of_type = {name: value for name, value in h.items() if block_type(name, types) == kind}
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


def smallest_row(w):
    """Return the norm of an embedding's shortest row, after each row's mean is subtracted: ‖w̃‖ in sharpness disparity's theorem
    4.3."""
    return (w - w.mean(1, keepdim=True)).norm(dim=1).min().item()


FACTORED = ('wq', 'wk', 'wv', 'wo', 'attn_pre_norm', 'w1', 'w2', 'ffn_pre_norm')


def factors(model, h):
    """n S ‖θ‖² of each weight in FACTORED, {name: [per block]}, and of the token embedding, whose ‖θ‖ is its smallest_row.
    Sharpness disparity bounds them from above: by one Ψ² for W_1, W_2 and the norm before them (theorem 4.1); by one Φ² for W_q
    and W_k, one Ψ² for W_v and W_o, and Φ² + Ψ² for the norm before them (theorem 4.2); by a Ψ² for the embedding (theorem 4.3).
    The theorems do not have SwiGLU's W_3. The sharpness of a tied embedding includes its part as the head."""
    result = {}
    for name, p in model.named_parameters():
        part = re.fullmatch(r'h\.\d+\.(?:attn\.|ffn\.)?(\w+)\.weight', name)
        size = smallest_row(p.detach()) ** 2 if name == 'wte.weight' else p.detach().square().sum().item()
        if name == 'wte.weight':
            result['emb'] = [h[name].sum().item() * size]
        elif part and part[1] in FACTORED:
            result.setdefault(part[1], []).append(h[name].sum().item() * size)
    return result


def show_layers(result):
    table('sharpness of each layer; 0 is the embeddings', {str(i): row for i, row in enumerate(result['sharpness'])}, 'layer')
    table('n S ‖θ‖², which theorems 4.1 to 4.3 bound from above',
          {name: {f'layer {i}': value for i, value in enumerate(values, 1)} for name, values in result['factors'].items()})


def plot_layers(folders):
    """A row of panels is a run. Layer 0 is the embeddings. In theorem 4.1 the three weights have one factor in common. In 4.2 W_q
    and W_k have one, W_v and W_o another, and the norm has the sum of both. Dotted: the token embedding, with its own (4.3)."""
    theorems = {'theorem 4.1': ('ffn_pre_norm', 'w1', 'w2'), 'theorem 4.2': ('attn_pre_norm', 'wq', 'wk', 'wv', 'wo')}
    colors, panels = dict(zip(sum(theorems.values(), ()), COLORS)), []
    for folder, text in zip(folders, labels(folders)):
        measured = read_measured(folder, 'layers')
        logs = [row['log10_mean'] for row in measured['sharpness']]
        panels.append(Panel([Curve(list(range(len(logs))), logs, color='#4d4d4d', marker='o')], 'layer (0: embeddings)',
                            'log₁₀ of the mean sharpness', text))
        for theorem, names in theorems.items():
            curves = [Curve(list(range(1, len(values) + 1)), values, symbols(name.replace('_', ' ')), colors[name], '.')
                      for name in names if (values := measured['factors'].get(name))]
            curves += [Curve([1, len(logs) - 1], [value] * 2, '$W_E$', '#4d4d4d', dash=':')
                       for value in measured['factors'].get('emb', [])]
            panels.append(Panel(curves, 'layer', 'n·S·‖θ‖²', theorem, log='y'))
    return Lines(panels, 'weight', 3, 'none', 'col')


@measurement(show_layers, plot_layers)
def layers(model, batches, rng):
    """Sharpness per layer (sharpness disparity, figure 9a), and n·S·‖θ‖² per weight (its theorems 4.1 to 4.3)."""
    h = diagonal_estimate(model, batches, rng)
    return dict(sharpness=[summary(values) for values in by_layer(h).values()], factors=factors(model, h))
