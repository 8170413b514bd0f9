"""What the papers predict, beside what is measured (LN stability, T3 and T6; DNT, equation 16)."""
import math
from functools import partial

import torch

from lab.measure.gradients import MATRICES
from lab.measure.hidden import bounds, mid_norm_gains, places, stream
from lab.measure.sensitivity import branch
from lab.measure.tools import inputs, matrix_kind, measurement, table
from lab.plot import HALVES, along_depth


@measurement(partial(table, 'hidden states by attention alone, and their bound (T3)', first='block'),
             partial(along_depth, what='attention_growth', x='blocks passed', dashed='its bound',
                     shown={'mean |x| of the hidden state': ('ma', 'ma_bound')}))
@torch.no_grad()
def attention_growth(model, batches, rng):
    """The mean size of the hidden states with attention only, and its bound for Pre-LN (LN stability, T3, eq. 82).

    It is for one head and RMSNorm: X ← X + Δt attn(X), block after block, on one sequence X (n tokens × d). Per block: MA(X), and

        ‖X_0‖_F / √(nd) · Π (1 + Δt √n √d ‖γ‖_∞ max_j 1/‖x_j‖ ‖W_o W_v‖)        (√d is for our RMSNorm; theirs is x / ‖x‖)

    For other models, and for a block that was edited to add something else than Δt attn(norm(X)), the result is empty.
    """
    c = model.config
    if (c.norm != 'rmsnorm' or c.n_head != 1 or not c.attn_pre_norm or c.attn_mid_norm or c.attn_post_norm or c.bias
            or c.v_norm or c.linear_norm or c.sub_norm or c.attn_gate or c.value_residual or c.residual != 'add'
            or c.skip_scale != 'one' or c.embedding_skip or c.mix_ln):
        return []
    x = stream(model, batches[0][0][:1])[0]
    bound, rows = x.norm().item() / math.sqrt(x[0].numel()), []
    for block in model.h:
        f, normed = branch(block, 'attn')(x), block.attn_pre_norm(x)
        if not (bounds(block.attn_pre_norm.gain.abs().max(), normed)
                and torch.allclose(f, block.attn(normed)[0], rtol=1e-3, atol=1e-3 * f.abs().max().item())):
            return []
        w = block.attn.wo.weight @ block.attn.wv.weight
        step = math.sqrt(x[0].numel()) * block.attn_pre_norm.gain.abs().max() * (1 / x.norm(dim=-1)).max()
        bound *= 1 + abs(c.branch_scale) * (step * torch.linalg.matrix_norm(w, 2)).item()
        x = x + c.branch_scale * f
        rows.append(dict(ma=x.abs().mean().item(), ma_bound=bound))
    return rows


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


def show_output_spectrum(result):
    table('σ_1 of W / ‖W x‖, and what DNT predicts of random weights',
          {f'{kind} {i}': row for kind, rows in result.items() for i, row in enumerate(rows, 1)})


@measurement(show_output_spectrum,
             partial(along_depth, what='output_spectrum', y='σ₁ of W / ‖W x‖', dashed='predicted',
                     shown={f'$W_{kind[1]}$': (f'{kind}.measured', f'{kind}.predicted') for kind in MATRICES}))
@torch.no_grad()
def output_spectrum(model, batches, rng):
    """The largest singular value of W / ‖W x‖, and what DNT predicts of random weights (eq. 16).

    For each matrix (m × n) of the blocks, it is a mean over tokens x. The prediction is from the shape and the root mean square
    σ_x of x's entries: (√m + √n) / (√(mn) σ_x). {kind: [per layer]}"""
    matrices = {name: module for name, module in model.named_modules() if matrix_kind(f'{name}.weight')}
    result = {}
    with inputs(*matrices.values()) as seen:
        model.hidden(batches[0][0])
    for (name, module), (x, *_) in zip(matrices.items(), seen):
        w, x = module.weight.double(), x.double().flatten(0, -2)
        m, n = w.shape
        rms = x.square().mean(1).sqrt()
        measured = torch.linalg.matrix_norm(w, 2) / (x @ w.T).norm(dim=1)
        predicted = (math.sqrt(m) + math.sqrt(n)) / (math.sqrt(m * n) * rms)
        result.setdefault(matrix_kind(f'{name}.weight'), []).append(dict(measured=measured.mean().item(),
                                                                         predicted=predicted.mean().item()))
    return result
