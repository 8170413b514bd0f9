"""The Jacobians of blocks and branches (LN stability, P7, P8, eq. 16, 18)."""
import math
from functools import partial

import torch

from engine.run import progress
from lab.measure.hidden import branch_inputs, stream
from lab.measure.tools import jacobian_norm, measurement, scaled, table
from lab.plot import along_depth
from model import run_blocks


def branch(block, name, v1=None):
    """The branch 'attn' or 'ffn' of a block as a function of the residual state that it gets, (B, T, D) or (B, T, n, D) →
    (B, T, D): what is added to the stream, before it is multiplied by Δt. v₁ as in Block.forward."""
    return block.ffn_branch if name == 'ffn' else lambda x: block.attn_branch(x, v1)[0]


@torch.no_grad()
def first_values(model, inputs):
    """Return the first block's values v₁ for the inputs, or None without value_residual."""
    return model.h[0].attn_branch(inputs[0][0])[1] if model.config.value_residual else None


SCALING = 10.0          # the factor on W_o and W_2, to see how the sensitivity of a branch changes


COLUMNS = f'to_end: from a block to the last, response: how many times as large a branch\'s is with W_o or W_2 × {SCALING:g}'


@measurement(partial(table, f'spectral norm of the Jacobians; {COLUMNS}', first='layer'), along_depth,
             y='spectral norm\nof the Jacobian', shown={
                 'block': 'block', 'attention branch': 'attn', 'FFN branch': 'ffn', 'from here to the last block': 'to_end'})
def sensitivity(model, batches, rng):
    """The spectral norms of the Jacobians of blocks and branches, and from each block to the end (LN stability, P7, P8).

    Per layer, at one sequence: that of ∂block(X)/∂X, of this block and all that follow, J_{i:D} (eq. 16, 18), and of each branch;
    and the factor by which a branch's changes if W_o or W_2 is multiplied by SCALING: SCALING with Pre-LN (P7), 1 with Peri-LN
    (P8)."""
    states, inputs = stream(model, batches[0][0][:1]), branch_inputs(model, batches[0][0][:1])
    x0, v1, rows = states[0], first_values(model, inputs), []

    def random(x):
        return torch.randn(x.shape, generator=rng, device=x.device, dtype=x.dtype)

    for i, block in enumerate(progress(model.h, 'sensitivity, layers')):
        state, given = states[2 * i], v1 if i else None           # the first block makes v₁
        row = dict(block=jacobian_norm(lambda x: block(x, x0, given)[0], state, random(state)),
                   to_end=jacobian_norm(lambda x: run_blocks(model.h[i:], x, x0, given), state, random(state)))
        for name, x, w in zip(('attn', 'ffn'), inputs[i], (block.attn.wo, block.ffn.w2)):
            start = random(x)                           # the same for both, so that their ratio is exact sooner
            row[name] = jacobian_norm(branch(block, name, v1), x, start)
            with scaled([w.weight], SCALING):
                row[f'{name}_response'] = jacobian_norm(branch(block, name, v1), x, start) / row[name] if row[name] else math.nan
        rows.append(row)
    return rows
