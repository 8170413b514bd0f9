"""The Jacobians of blocks, branches and layers (LN stability, P7, P8, eq. 16, 18; DNT, eq. 1), and the angles between branches
and stream (DNT, eq. 3, theorem 2)."""
import copy
import math
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.run import progress
from lab.measure.hidden import branch_inputs, places, stream
from lab.measure.tools import measurement, scaled, table, top_singular_value
from lab.plot import HALVES, along_depth
from model import State, VariantBlock, run_blocks

SCALING = 10.0          # the factor on W_o and W_2, to see how the sensitivity of a branch changes
COLUMNS = f'to_end: from a block to the last, response: how many times as large a branch\'s is with W_o or W_2 × {SCALING:g}'
ENTRIES = 1024          # of a causal model's sequence that a spectrum takes: its first tokens, two at least
MOST_ENTRIES = 4096     # of another model's sequence, which cannot be cut


def branch(block, name, v1=None):
    """Return the branch 'attn' or 'ffn' of a block: a function from its residual state to what is added, (B, T, D), before Δt."""
    if isinstance(block, VariantBlock):
        return block.ffn_branch if name == 'ffn' else lambda x: block.attn_branch(x, v1)[0]
    pre, f, mid = (getattr(block, f'{name}{part}') for part in ('_pre_norm', '', '_mid_norm'))
    return lambda x: mid(f(pre(x)))


def read(block, name, x):
    """Return what a branch reads of the residual state, (B, T, D)."""
    return getattr(block, f'{name}_residual').read(x) if isinstance(block, VariantBlock) else x


def through(blocks, x, x0, v1):
    """Return the residual state behind these blocks, given the one in front of them, x₀ and v₁."""
    state = run_blocks(blocks, State(x, x0, v1) if isinstance(blocks[0], VariantBlock) else x)
    return state.x if isinstance(state, State) else state


@torch.no_grad()
def check_branches(model, inputs, states):
    """Raise ValueError if a Block, whose forward somebody may have edited, adds something else than branch() returns."""
    for k, after in enumerate(states[1:]):
        block, name = model.h[k // 2], ('attn', 'ffn')[k % 2]
        if not isinstance(block, VariantBlock) and not torch.allclose(
                layer(block, name, None)(inputs[k // 2][k % 2]), after, rtol=1e-4, atol=1e-4 * after.abs().max().item()):
            raise ValueError(f'Block.forward adds something else than Δt · Mid(f(Pre(x))) in h.{k // 2}, with f = {name}: change '
                             'branch() in lab/measure/sensitivity.py as it was edited')


@torch.no_grad()
def first_values(model, inputs):
    """Return the first block's values v₁ for the inputs, or None without value_residual."""
    return model.h[0].attn_branch(inputs[0][0])[1] if model.config.value_residual else None


def jacobian_norm(f, x, start, steps=50):
    """Return the spectral norm of J = ∂f(x)/∂x by power iteration from `start`. Jᵀu is a backward pass, which is linear in u, so
    that the backward pass through it is Jv."""
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():         # the kernel that has second derivatives
        x = x.detach().requires_grad_()
        y = f(x)
        u = torch.zeros_like(y, requires_grad=True)
        back, = torch.autograd.grad(y, x, u, create_graph=True)
        return top_singular_value(lambda v: torch.autograd.grad(back, u, v, retain_graph=True)[0],
                                  lambda u: torch.autograd.grad(y, x, u, retain_graph=True)[0], start, steps)


@measurement(partial(table, f'spectral norm of the Jacobians; {COLUMNS}', first='layer'), along_depth,
             y='spectral norm\nof the Jacobian', shown={
                 'block': 'block', 'attention branch': 'attn', 'FFN branch': 'ffn', 'from here to the last block': 'to_end'})
def sensitivity(model, batches, rng):
    """The spectral norms of the Jacobians of blocks and branches, and from each block to the end (LN stability, P7, P8).

    Per layer, at one sequence: ∂block(X)/∂X, that of this block and all that follow, J_{i:D} (eq. 16, 18), and of each branch;
    and the factor on a branch's norm if W_o or W_2 is multiplied by SCALING: SCALING with Pre-LN (P7), 1 with Peri-LN (P8)."""
    states, inputs = stream(model, batches[0][0][:1]), branch_inputs(model, batches[0][0][:1])
    check_branches(model, inputs, states)
    x0, v1, rows = states[0], first_values(model, inputs), []

    def random(x):
        return torch.randn(x.shape, generator=rng, device=x.device, dtype=x.dtype)

    for i, block in enumerate(progress(model.h, 'sensitivity, layers')):
        state, given = states[2 * i], v1 if i else None           # the first block makes v₁
        row = dict(block=jacobian_norm(lambda x: through([block], x, x0, given), state, random(state)),
                   to_end=jacobian_norm(lambda x: through(model.h[i:], x, x0, given), state, random(state)))
        for name, x, w in zip(('attn', 'ffn'), inputs[i], (block.attn.wo, block.ffn.w2)):
            start = random(x)                           # the same for both, so that their ratio is exact sooner
            row[name] = jacobian_norm(branch(block, name, v1), x, start)
            with scaled([w.weight], SCALING):
                row[f'{name}_response'] = jacobian_norm(branch(block, name, v1), x, start) / row[name] if row[name] else math.nan
        rows.append(row)
    return rows


def layer(block, name, v1):
    """Return the layer 'attn' or 'ffn' of a block: a function from the residual state before it to the one behind it."""
    f, post = branch(block, name, v1), getattr(block, f'{name}_post_norm')
    add = getattr(block, f'{name}_residual', lambda x, f, dt: x + dt * f)
    return lambda x: post(add(x, f(x), block.dt))


def spectrum(f, x):
    """Return the largest, median and smallest singular value of ∂f(x)/∂x; the condition number, infinite where the smallest is
    only rounding; and the effective rank, the exponential of the entropy of the singular values over their sum (Roy and Vetterli
    2007)."""
    with sdpa_kernel(SDPBackend.MATH):
        sigma = torch.linalg.svdvals(torch.func.jacrev(f, chunk_size=64)(x.detach()).reshape(-1, x.numel()))
    sigma = sigma.where(sigma > sigma[0] * len(sigma) * torch.finfo(sigma.dtype).eps, 0.0)
    entropy = torch.special.entr(sigma / sigma.sum()).sum()
    return dict(largest=sigma[0].item(), median=sigma.median().item(), smallest=sigma[-1].item(),
                condition=(sigma[0] / sigma[-1]).item(), effective_rank=entropy.exp().item())


def show_jacobian(result):
    if 'layer' in result[0]:
        table('singular values of the Jacobian of each layer x + f(x)', {row['at']: row['layer'] for row in result})
    table('cos: of the angle of a branch with the stream, cos_rms: its root mean square, norm: that of the stream behind it, '
          'orthogonal: that norm if all branches were orthogonal', result, keys=('cos', 'cos_rms', 'norm', 'orthogonal'))


def ratio(rows):
    return [row['norm'] / row.get('orthogonal', math.nan) for row in rows]


@measurement(show_jacobian, along_depth, **HALVES | dict(first=0.5), linear=3, shown={
    'largest singular value': 'layer.largest', 'smallest singular value': 'layer.smallest', 'condition number': 'layer.condition',
    'effective rank': 'layer.effective_rank', 'mean cos(f, x)': 'cos', '‖x + f‖ / √(‖x⁰‖² + Σ‖f‖²)': ratio})
def jacobian(model, batches, rng):
    """The spectrum of each layer's Jacobian, and the angles between branches and stream (DNT, eq. 1, 3, theorem 2).

    Per layer x ← x + f(x), in float64:

    layer             the spectrum of ∂(x + f)/∂x (DNT, eq. 1) at the first tokens of a sequence, about ENTRIES numbers. A model
                      that is not causal needs all tokens, and has no spectra beyond MOST_ENTRIES.
    cos, cos_rms      mean and root mean square of cos(f, x) over the tokens of a batch, 0 and 1/√D for random vectors (theorem 2)
    norm, orthogonal  mean ‖x + f‖ of a token, and mean √(‖x⁰‖² + Σ‖f‖²) over this layer and those before it, which eq. 3 says
                      is near to it. `orthogonal` is left out where a layer does more than add f, as in Post-LN."""
    model = copy.deepcopy(model).double()
    x = batches[0][0]
    few_tokens = x[:1, :max(2, ENTRIES // model.config.n_embd)] if model.config.causal else x[:1]
    few, inputs, states = branch_inputs(model, few_tokens), branch_inputs(model, x), stream(model, x)
    check_branches(model, inputs, states)
    has_spectra = model.config.causal or few[0][0].numel() <= MOST_ENTRIES
    few_v1, v1 = first_values(model, few), first_values(model, inputs)
    squares, rows = read(model.h[0], 'attn', states[0]).square().sum(-1), []
    for k, at in enumerate(progress(places(model)[1:], 'Jacobians, layers')):
        name, block = at.partition('.')[2], model.h[k // 2]             # attn or ffn
        state, few_state = inputs[k // 2][k % 2], few[k // 2][k % 2]
        with torch.no_grad():
            added = model.config.branch_scale * branch(block, name, v1)(state)
            cos = torch.cosine_similarity(added, read(block, name, state), dim=-1)
        row = dict(at=at, cos=cos.mean().item(), cos_rms=cos.square().mean().sqrt().item(),
                   norm=states[k + 1].norm(dim=-1).mean().item())
        squares = squares + added.square().sum(-1)
        if states[k].shape == added.shape and torch.allclose(states[k] + added, states[k + 1], rtol=1e-6, atol=1e-9):
            row['orthogonal'] = squares.sqrt().mean().item()
        if has_spectra:
            row['layer'] = spectrum(layer(block, name, few_v1), few_state)
        rows.append(row)
    return rows
