"""The residual stream at each place, and the distance between two halves of the sequences there, with the bounds of Peri-LN
(LN stability, figure 1, T4, T5, T6)."""
import math
from functools import partial

import torch

from engine.stats import collected
from lab.measure.tools import measurement, outputs, table
from lab.plot import HALVES, along_depth
from model import LayerNorm, RMSNorm, StableNorm, VariantBlock

BOUNDED = (LayerNorm, RMSNorm, StableNorm)      # norms whose output's root mean square is at most γ_max + β_max
TRANSPORTED, HELD = 64, 2 ** 28         # sequences, and numbers of their hidden states that `transport` holds, at most


def places(model):
    """Return the names of the points in the residual stream that `stream` collects."""
    return ['input', *(f'{i}.{branch}' for i in range(1, len(model.h) + 1) for branch in ('attn', 'ffn'))]


@torch.no_grad()
def stream(model, x):
    """Return the residual state at each of `places`, (B, T, D) each, or (B, T, n, D) for n streams."""
    with outputs(model.dropout, *(norm for b in model.h for norm in (b.attn_post_norm, b.ffn_post_norm))) as seen:
        model.hidden(x)
    (embedded,), *states = seen
    expand = model.h[0].attn_residual.expand if isinstance(model.h[0], VariantBlock) else lambda x: x
    return [expand(embedded), *(state for state, in states)]


@torch.no_grad()
def branch_inputs(model, x):
    """Return the residual states that the branches get, [attn, ffn] of each block. A parallel FFN gets attention's."""
    part = 'residual' if isinstance(model.h[0], VariantBlock) else 'pre_norm'
    entries = [getattr(b, f'{name}_{part}') for b in model.h for name in ('attn', 'ffn')]
    with collected(entries, lambda args, out: args[0]) as seen:
        model.hidden(x)
    if any(len(states) != 1 for states in seen):
        raise ValueError(f'a block does not call its attn_{part} or ffn_{part} once: nobody knows what its branches read')
    states = [state for state, in seen]
    return list(zip(states[::2], states[::2] if model.config.parallel_ffn else states[1::2]))


@measurement(partial(table, 'hidden states; ma: mean |x|, var: variance in a sequence, entry_var: of an entry over sequences, '
                     'bound: under MidNorm', first='behind'), along_depth, **HALVES, dashed='its bound under MidNorm',
             shown={'mean |x|\nof the hidden state': ('ma', 'ma_bound'), 'variance\nof the hidden state': ('var', 'var_bound'),
                    'variance of an entry\nover sequences': ('entry_var', 'entry_var_bound')})
def hidden(model, batches, rng):
    """The mean size and the variance of the hidden state along the depth (LN stability, figure 1), and over sequences (T5).

    MA and Var are the mean |x| and the variance over all entries of a sequence, averaged over sequences. entry_var is the
    variance of an entry over the sequences: its mean and maximum over entries. If MidNorms bound them, the bounds are added (T4,
    and T5 for one entry)."""
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
    if gains := mid_norm_gains(model, batches[0][0][:1]):
        for k, row in enumerate(result):
            reach = k * model.config.branch_scale * gains[1]
            whole = square + 2 * norm * math.sqrt(n) * reach + n * reach ** 2               # the mean of (‖X‖ + √n reach)²
            row.update(ma_bound=norm / math.sqrt(n) + reach, var_bound=whole / (n - 1), entry_var_bound=whole)
    return result


@torch.no_grad()
def mid_norm_gains(model, x):
    """Return γ_max and γ_max + β_max over the MidNorms if T4 to T6 apply: each branch adds Δt times the output of a BOUNDED norm.
    Return None if not, as in edited blocks."""
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm)]
    if not all(type(norm) in BOUNDED for norm in norms):
        return None
    gain = max(norm.gain.abs().max().item() * getattr(norm, 'scale', 1.0) for norm in norms)
    biases = [norm.bias.abs().max().item() for norm in norms if getattr(norm, 'bias', None) is not None]
    largest = gain + max(biases, default=0.0)
    with outputs(*norms) as seen:
        states = stream(model, x)
    for (out,), before, after in zip(seen, states, states[1:]):
        step = model.config.branch_scale * out
        if out.square().mean(-1).sqrt().max() > largest * (1 + 1e-4) or not before.shape == step.shape == after.shape:
            return None
        if not torch.allclose(before + step, after, rtol=1e-4, atol=1e-4 * after.abs().max().item()):
            return None
    return gain, largest


@measurement(partial(table, 'Wasserstein distances between two halves of the sequences; bound: under MidNorm', first='behind'),
             along_depth, **HALVES, y='distance between the halves', dashed='its bound under MidNorm',
             shown={'$W_2$': ('w2', 'w2_bound'), '$W_1$': ('w1', 'w1_bound')})
@torch.no_grad()
def transport(model, batches, rng):
    """The distance between two halves of the sequences, as distributions, along the depth (LN stability, T6).

    W_1 and W_2 are the optimal transport distances with the 1-norm and 2-norm of the entries. If MidNorms bound the branches, the
    bounds with Δt (eq. 17) are added. The paper leaves its constant Ĉ(p) open. For p = 2 it is 1. For p = 1 the equivalence of
    norms gives √(nd), which then multiplies both terms."""
    from scipy.optimize import linear_sum_assignment  # here, for the other measurements do without scipy
    c = model.config
    most = min(TRANSPORTED, HELD // (len(places(model)) * c.block_size * c.n_embd))
    sequences = torch.cat([x for x, _ in batches])[:max(4, most)]
    half = len(sequences) // 2
    if half == 0:
        return []
    gains, rows = mid_norm_gains(model, sequences[:1]), []
    states = [torch.cat(parts) for parts in zip(*([s.flatten(1).cpu() for s in stream(model, x[None])] for x in sequences))]
    for k, (at, s) in enumerate(zip(places(model), states)):
        row, s = dict(at=at), s.double()                # (sequences, T·D)
        for p in (1, 2):
            cost = torch.cdist(s[:half], s[half:2 * half], p=p) ** p
            row[f'w{p}'] = cost[linear_sum_assignment(cost)].mean().item() ** (1 / p)
        rows.append(row)
        if gains:
            n = s.size(-1)
            reach = 2 * k * abs(c.branch_scale) * math.sqrt(n) * gains[0]
            row.update(w1_bound=math.sqrt(n) * (rows[0]['w1'] + reach), w2_bound=math.sqrt(2) * (rows[0]['w2'] + reach))
    return rows
