"""The spectrum of each layer's Jacobian, and whether branches are orthogonal to the stream (DNT, eq. 1, 3, 5, 7, theorem 2)."""
import copy
import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.run import progress
from lab.measure.hidden import branch_inputs, places, stream
from lab.measure.sensitivity import branch, first_values
from lab.measure.tools import measurement, table
from lab.plot import HALVES, along_depth

ENTRIES = 1024          # of a causal model's sequence are taken: its first tokens, two at least
MOST_ENTRIES = 4096     # of another model's sequence, which cannot be cut
CHUNK = 64              # rows of a Jacobian at once


def layer(block, name, v1):
    """Return the layer 'attn' or 'ffn' of a block, as a function of the residual state that its branch gets: the state behind
    it."""
    f, residual, norm = branch(block, name, v1), getattr(block, f'{name}_residual'), getattr(block, f'{name}_post_norm')
    return lambda x: norm(residual(x, f(x), block.dt))


def spectrum(f, x):
    """Return the largest, median and smallest singular value of ∂f(x)/∂x, x (1, T, D) or of n streams; the condition number,
    infinite where the smallest is only rounding; and the effective rank, the exponential of the entropy of the singular values
    over their sum (Roy and Vetterli 2007)."""
    with sdpa_kernel(SDPBackend.MATH):
        sigma = torch.linalg.svdvals(torch.func.jacrev(f, chunk_size=CHUNK)(x.detach()).reshape(-1, x.numel()))
    sigma = sigma.where(sigma > sigma[0] * len(sigma) * torch.finfo(sigma.dtype).eps, 0.0)
    entropy = torch.special.entr(sigma / sigma.sum()).sum()
    return dict(largest=sigma[0].item(), median=sigma.median().item(), smallest=sigma[-1].item(),
                condition=(sigma[0] / sigma[-1]).item(), effective_rank=entropy.exp().item())


def show_jacobian(result):
    if 'layer' in result[0]:
        table('singular values of the Jacobian of each layer x + f(x), then of its branch f alone',
              {row['at']: {**row['layer'], **{f'f: {key}': value for key, value in row['branch'].items()}} for row in result})
    table('cos: of the angle of a branch with the stream, cos_rms: its root mean square, norm: that of the stream behind it, '
          'orthogonal: that norm if all branches were orthogonal', result, keys=('cos', 'cos_rms', 'norm', 'orthogonal'))


def ratio(rows):
    return [row['norm'] / row.get('orthogonal', math.nan) for row in rows]


@measurement(show_jacobian, along_depth, **HALVES | dict(first=0.5), linear=3, shown={
    'largest singular value': 'layer.largest', 'smallest singular value': 'layer.smallest', 'condition number': 'layer.condition',
    'effective rank': 'layer.effective_rank', 'mean cos(f, x)': 'cos', '‖x + f‖ / √(‖x⁰‖² + Σ‖f‖²)': ratio})
def jacobian(model, batches, rng):
    """The spectrum of each layer's Jacobian, and the angles between branches and stream (DNT, eq. 1, 3, theorem 2).

    Per layer x ← x + f(x), two of them in a block, in float64:

    layer, branch     the spectrum of ∂(x + f)/∂x (DNT, eq. 1) and of ∂f/∂x (eq. 5, 7) at the first tokens of a sequence, about
                      ENTRIES numbers. A model that is not causal needs all tokens, and has no spectra beyond MOST_ENTRIES.
    cos, cos_rms      mean and root mean square of cos(f, x) over the tokens of a batch, 0 and 1/√D for random vectors (theorem 2)
    norm, orthogonal  mean ‖x + f‖ of a token, and mean √(‖x⁰‖² + Σ‖f‖²) over this layer and those before it, which eq. 3 says
                      is near to it. `orthogonal` is left out where a layer does something else than to add f, as in Post-LN.
    """
    model = copy.deepcopy(model).double()
    x = batches[0][0]
    first_tokens = x[:1, :max(2, ENTRIES // model.config.n_embd)] if model.config.causal else x[:1]
    few, inputs, states = branch_inputs(model, first_tokens), branch_inputs(model, x), stream(model, x)
    has_spectra = model.config.causal or few[0][0].numel() <= MOST_ENTRIES
    few_v1, v1 = first_values(model, few), first_values(model, inputs)
    squares, rows = model.h[0].attn_residual.read(states[0]).square().sum(-1), []
    for k, at in enumerate(progress(places(model)[1:], 'Jacobians, layers')):
        name, block = at.partition('.')[2], model.h[k // 2]             # attn or ffn
        state, few_state = inputs[k // 2][k % 2], few[k // 2][k % 2]
        with torch.no_grad():
            added = model.config.branch_scale * branch(block, name, v1)(state)
            cos = torch.cosine_similarity(added, getattr(block, f'{name}_residual').read(state), dim=-1)
        row = dict(at=at, cos=cos.mean().item(), cos_rms=cos.square().mean().sqrt().item(),
                   norm=states[k + 1].norm(dim=-1).mean().item())
        squares = squares + added.square().sum(-1)
        if states[k].shape == added.shape and torch.allclose(states[k] + added, states[k + 1], rtol=1e-6, atol=1e-9):
            row['orthogonal'] = squares.sqrt().mean().item()
        if has_spectra:
            row['layer'] = spectrum(layer(block, name, few_v1), few_state)
            row['branch'] = spectrum(branch(block, name, few_v1), few_state)
        rows.append(row)
    return rows
