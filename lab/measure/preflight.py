"""The checks before training (LN stability, appendix B): which quantity responds to which cause, and how the stream grows."""
import copy
import math
import re
import textwrap
from contextlib import contextmanager

import torch
from matplotlib.figure import Figure

from engine.run import progress
from engine.stats import capture_attention_inputs
from lab.measure.attention import attention_logits
from lab.measure.hidden import branch_inputs, hidden, stream
from lab.measure.sensitivity import branch, check_branches, jacobian_norm
from lab.measure.tools import KINDS, matrix_kind, mean_gradient, measurement, scaled, slope, table
from lab.plot import read_measured

FACTORS = (1.0, 3.0, 10.0, 30.0, 100.0)
CAUSES = {'embeddings': '', 'input of block 1': '', 'W_q W_k': 'wq wk', 'W_v W_o': 'wv wo', 'W_1': 'w1', 'W_2': 'w2'}


@contextmanager
def amplified(model, cause, factor):
    """Within this context, multiply one of CAUSES by the factor, in all layers."""
    embeddings = [next(model.children()), model.wpe]    # the first turns tokens or images into vectors
    modules = {'embeddings': embeddings, 'input of block 1': [model.dropout]}.get(cause, [])
    hooks = [module.register_forward_hook(lambda module, args, out: factor * out) for module in modules if module is not None]
    with scaled([p for name, p in model.named_parameters() if matrix_kind(name) in CAUSES[cause].split()], factor):
        yield
    for hook in hooks:                                  # of a copy of the model, so that an error may leave them
        hook.remove()


def effects(model, batch, seed):
    """Return {quantity: size} for the invariance matrix. Logits, branches and their Jacobians are those of the first block."""
    x, block, seen = batch[0], model.h[0], []
    with torch.no_grad(), capture_attention_inputs([block], lambda *inputs: seen.append(inputs)):
        at_attn, at_ffn = branch_inputs(model, x)[0]
        branches = [branch(block, 'attn')(at_attn), branch(block, 'ffn')(at_ffn)]
        last = stream(model, x)[-1]
    logits = {'attention logits': attention_logits(q, k, scale).std() for q, k, scale, _ in seen[:1]}
    starts = [torch.randn(at[:1].shape, generator=torch.Generator(x.device).manual_seed(seed), device=x.device, dtype=at.dtype)
              for at in (at_attn, at_ffn)]
    result = {**logits, 'attention branch': branches[0].norm(), 'FFN branch': branches[1].norm(),
              'attention Jacobian': jacobian_norm(branch(block, 'attn'), at_attn[:1], starts[0], steps=10),
              'FFN Jacobian': jacobian_norm(branch(block, 'ffn'), at_ffn[:1], starts[1], steps=10),
              'last hidden state': last.norm()}
    gradient = mean_gradient(model, [batch])
    for kind in KINDS:
        grads = [g for name, g in gradient.items() if matrix_kind(name) == kind]
        if grads:
            result[f'gradient of {kind}'] = torch.stack([g.norm() for g in grads]).norm()
    return {name: float(value) for name, value in result.items()}


def growth(sizes):
    """Fit how a positive quantity grows with the layer: return the power, the factor per layer, and the shape that fits."""
    layers = range(1, len(sizes) + 1)
    power, miss_of_power = slope([math.log(layer) for layer in layers], sizes)
    rate, miss_of_rate = slope(list(layers), sizes)
    is_exponential = len(sizes) > 2 and rate > 0.05 and miss_of_rate < miss_of_power / 2
    return dict(power=power, factor_per_layer=math.exp(rate), shape='exponential' if is_exponential else 'power')


def show_preflight(result):
    invariance = result['invariance']
    table('invariance: exponent with which a row responds to a column (0 immune, 1 proportional, more explosive)',
          {effect: {cause: f'{invariance[cause][effect]:.2f}' for cause in invariance} for effect in invariance['embeddings']})
    table('growth with depth; power: of the layer; ma: mean |x|, var: variance',
          {f'{quantity}, {name}': g for name, both in result['growth'].items() for quantity, g in both.items()})


def symbols(text):
    """'gradient of wq', 'W_q W_k' → with $W_q$."""
    return re.sub(r'\b(?:W_|w)([qkvo123])\b', r'$W_\1$', text)


def plot_preflight(runs):
    """A cell is an exponent. Below a panel is the power of the depth with which the mean |x| and the variance of the hidden state
    grow."""
    found = [read_measured(folder, 'preflight') for _, folder in runs]
    effects = [*dict.fromkeys(effect for measured in found for row in measured['invariance'].values() for effect in row)]
    columns = min(4, len(runs))
    rows = math.ceil(len(runs) / columns)
    figure = Figure(figsize=(1.4 + 1.6 * columns, 1.4 + 3.1 * rows), layout='constrained')
    axes = [*figure.subplots(rows, columns, squeeze=False, sharey=True).flat]
    for ax in axes[len(runs):]:
        ax.remove()
    for i, (ax, measured, (name, _)) in enumerate(zip(axes, found, runs)):
        causes = [*measured['invariance']]
        values = [[measured['invariance'][cause].get(effect, math.nan) for cause in causes] for effect in effects]
        image = ax.imshow(values, cmap='PuOr', vmin=-2, vmax=2, aspect='auto')
        ax.grid(False)
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                text = '' if math.isnan(value) else f'{round(value, 1) + 0:g}'.replace('-', '−')        # + 0: no −0
                ax.text(x, y, text, ha='center', va='center', fontsize=7, color='white' if abs(value) > 1.2 else 'black')
        below = i + columns < len(runs)                 # a panel, which says the causes
        ax.set_xticks(range(len(causes)), [''] * len(causes) if below else map(symbols, causes), rotation=90)
        ax.set_yticks(range(len(effects)), map(symbols, effects))
        ax.set_title(textwrap.fill(name, 26), fontsize=8)
        grown = [f'{quantity}: × {g["factor_per_layer"]:.2f} a block' if g['shape'] == 'exponential' else
                 f'{quantity} ∝ depth$^{{{round(g["power"], 2) + 0:.2f}}}$'
                 for quantity, g in zip(('mean |x|', 'variance'), measured['growth']['as is'].values())]
        ax.set_xlabel('\n'.join(grown), fontsize=8)
    bar = figure.colorbar(image, ax=axes[:len(runs)], location='bottom', shrink=min(1.0, 2 / columns), aspect=30,
                          extend='both', ticks=range(-2, 3))
    about = 'exponent with which a row responds to a column; below: growth with the depth'
    bar.set_label(textwrap.fill(about, 24 * columns), fontsize=8)
    return figure


@measurement(show_preflight, plot_preflight)
def preflight(model, batches, rng):
    """How each quantity (a row) responds if one thing (a column) grows, before training (LN stability, appendix B).

    In float64, on one batch. `invariance`: the exponent with which each of `effects` responds if one of CAUSES grows by FACTORS.
    `growth`: how MA and Var grow with depth, with the weights as they are, and with those of the blocks × 10."""
    model = copy.deepcopy(model).double()
    check_branches(model, branch_inputs(model, batches[0][0]), stream(model, batches[0][0]))
    batch, seed = batches[0], int(torch.randint(2 ** 31, (), generator=rng, device=rng.device))
    unscaled = effects(model, batch, seed)
    invariance = {}
    for cause in progress(CAUSES, 'preflight, columns'):
        sizes = [unscaled]
        for factor in FACTORS[1:]:
            with amplified(model, cause, factor):
                sizes.append(effects(model, batch, seed))
        invariance[cause] = {name: slope([math.log(c) for c in FACTORS], [s[name] for s in sizes])[0] for name in unscaled}
    grown = {}
    for name, factor in (('as is', 1.0), ('blocks × 10', 10.0)):
        with scaled([p for n, p in model.named_parameters() if matrix_kind(n)], factor):
            rows = [row for row in hidden(model, [batch], rng) if row['at'].endswith('ffn')]
        grown[name] = {quantity: growth([row[quantity] for row in rows]) for quantity in ('ma', 'var')}
    return dict(invariance=invariance, growth=grown)
