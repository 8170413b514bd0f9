"""The distance between two halves of the sequences as distributions, with its bound under MidNorm (LN stability, T6)."""
import math
from functools import partial

import torch

from lab.measure.hidden import mid_norm_gains, places, stream
from lab.measure.tools import measurement, table
from lab.plot import HALVES, along_depth

TRANSPORTED = 64        # sequences, at most
HELD = 2 ** 28          # numbers, at most, that `transport` holds of their hidden states


@measurement(partial(table, 'distance between two halves of the sequences, as distributions (T6)', first='behind'),
             partial(along_depth, what='transport', **HALVES, y='distance between the halves', dashed='its bound under MidNorm',
                     shown={'$W_2$': ('w2', 'w2_bound'), '$W_1$': ('w1', 'w1_bound')}))
@torch.no_grad()
def transport(model, batches, rng):
    """The distance between two halves of the sequences, as distributions, along the depth (LN stability, T6).

    W_1 and W_2 are the optimal transport distances with the 1-norm and 2-norm of the entries, at each of `places`. If MidNorms
    bound the branches, the bounds with Δt (eq. 17) are added. The paper leaves its constant Ĉ(p) open. For p = 2 it is 1. For
    p = 1 the equivalence of norms gives √(nd), which then multiplies both terms.
    """
    from scipy.optimize import linear_sum_assignment  # here, for the other measurements do without scipy
    c, sequences = model.config, torch.cat([x for x, _ in batches])
    most = HELD // (len(places(model)) * c.block_size * c.n_embd)
    sequences = sequences[:max(4, min(TRANSPORTED, most))]
    half = len(sequences) // 2
    if half == 0:
        return []
    gains = mid_norm_gains(model, sequences[:1])
    states = [torch.cat(parts) for parts in zip(*([s.flatten(1).cpu() for s in stream(model, x[None])] for x in sequences))]
    rows = []
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
