"""The residual stream at each place, with the bounds of Peri-LN (LN stability, figure 1, T4, T5)."""
import math
from contextlib import ExitStack

import torch

from lab.measure.tools import outputs, table
from lab.plot.measured import HALVES, along_depth
from model import LayerNorm, RMSNorm, StableNorm


def places(model):
    """Names of the points of the residual stream that `stream` collects."""
    return ['input', *(f'{i}.{branch}' for i in range(1, len(model.h) + 1) for branch in ('attn', 'ffn'))]


@torch.no_grad()
def stream(model, x):
    """The residual state at each of `places`, (B, T, D) each, or (B, T, n, D) for n streams, for the inputs x."""
    with outputs(model.dropout, *(norm for b in model.h for norm in (b.attn_post_norm, b.ffn_post_norm))) as seen:
        model.hidden(x)
    (embedded,), *states = seen
    return [model.residual.expand(embedded, model.config), *(state for state, in states)]


@torch.no_grad()
def branch_inputs(model, x):
    """The residual states that the branches get, [attn, ffn] of each block, for the inputs x. A parallel FFN gets attention's.
    ValueError for a block that was edited not to call its residuals, so that nobody knows what its branches add."""
    seen = []
    with ExitStack() as stack:
        for block in model.h:
            for residual in (block.attn_residual, block.ffn_residual):
                stack.callback(residual.register_forward_pre_hook(lambda module, args: seen.append(args[0])).remove)
        model.hidden(x)
    if len(seen) != 2 * len(model.h):
        raise ValueError('a block does not call its attn_residual or ffn_residual: nobody knows what its branches add')
    return list(zip(seen[::2], seen[::2] if model.config.parallel_ffn else seen[1::2]))


def hidden(model, batches, rng):
    """MA and Var of the hidden states at each of `places`: the mean |x| and the variance over all entries of a sequence, averaged
    over sequences (LN stability, figure 1). With more than one sequence also the variance of an entry over the sequences: its
    mean and maximum over entries. If MidNorms bound them, the bounds are added (T4, and T5 for one entry)."""
    sums, count = [0] * len(places(model)), sum(len(x) for x, _ in batches)
    for x, _ in batches:
        for k, state in enumerate(stream(model, x)):
            s = state.flatten(1).double()               # (B, T·D); in float32 a square would lose a small variance
            norm = s.norm(dim=1)
            of_sequences = torch.stack((s.abs().mean(1), s.var(1), norm, norm.square())).sum(1)
            sums[k] = sums[k] + torch.cat((of_sequences, s.sum(0), s.square().sum(0)))
    result = []
    for at, total in zip(places(model), sums):
        n = (len(total) - 4) // 2                       # the entries of a sequence's state, T·D of one stream
        (ma, var, *_), mean, square = (total / count).split((4, n, n))
        entry = square - mean.square()
        over_sequences = dict(entry_var=entry.mean().item(), entry_var_max=entry.max().item()) if count > 1 else {}
        result.append(dict(at=at, ma=ma.item(), var=var.item(), **over_sequences))
    norm, square = (sums[0] / count)[2:4].tolist()
    if bounded_by_mid_norms(model, batches[0][0][:1]):
        for k, row in enumerate(result):
            reach = k * model.config.branch_scale * largest_output(model)
            whole = square + 2 * norm * math.sqrt(n) * reach + n * reach ** 2               # the mean of (‖X‖ + √n reach)²
            row.update(ma_bound=norm / math.sqrt(n) + reach, var_bound=whole / (n - 1), entry_var_bound=whole)
    return result


BOUNDED = (LayerNorm, RMSNorm, StableNorm)      # norms whose output's root mean square is at most γ_max + β_max


def bounds(gain, out):
    """Whether the root mean square of a norm's outputs is at most its gain"""
    return bool(out.square().mean(-1).sqrt().max() <= gain * (1 + 1e-4))


@torch.no_grad()
def bounded_by_mid_norms(model, x):
    """Whether each branch adds Δt times the output of a MidNorm whose gain bounds it, and nothing follows, as T4 to T6 assume.
    False for norms that are not BOUNDED, also by an edit, and for blocks that were edited to add something else."""
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm)]
    if not all(type(norm) in BOUNDED for norm in norms):
        return False
    with outputs(*norms) as seen:
        states = stream(model, x)
    if not all(bounds(largest_output(model), out) for out, in seen):
        return False
    steps = [model.config.branch_scale * out for out, in seen]
    return all(before.shape == step.shape == after.shape
               and torch.allclose(before + step, after, rtol=1e-4, atol=1e-4 * after.abs().max().item())
               for before, step, after in zip(states, steps, states[1:]))


def largest_gain(model):
    """γ_max over the MidNorms"""
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm)]
    return max(norm.gain.abs().max().item() * getattr(norm, 'scale', 1.0) for norm in norms)


def largest_output(model):
    """γ_max + β_max over the MidNorms. It bounds the root mean square of their outputs."""
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm)]
    biases = [norm.bias for norm in norms if getattr(norm, 'bias', None) is not None]
    return largest_gain(model) + max((bias.abs().max().item() for bias in biases), default=0.0)


def show_hidden(result):
    keys = list(result[0])[1:]
    table('hidden states', ['behind', *keys], [[row['at'], *(row[key] for key in keys)] for row in result])


def plot_hidden(folders):
    """Mean size and variance of the hidden states along the depth (LN stability, figure 1), and over sequences (T5).

    Dashed lines are the bounds under MidNorm (T4, T5). They are left out if a panel would have more than eight curves."""
    panels = {'mean |x|\nof the hidden state': 'ma', 'variance\nof the hidden state': 'var',
              'variance of an entry\nover sequences': 'entry_var'}
    bounds = {key: f'{key}_bound' for key in panels.values()}
    return along_depth(folders, 'hidden', panels, **HALVES, bounds=bounds, dashed='its bound under MidNorm')
