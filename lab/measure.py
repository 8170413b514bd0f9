"""
Measures what the papers measure, on a run or on an untrained model:

    python -m lab.measure --out_dir=out-quick                               # all, into out-quick/measure.json and pictures
    python -m lab.measure --out_dir=out-quick --what=sharpness,gradients
    python -m lab.measure config/train_quick.py config/arch/peri.py --init_only=True        # a check before training

Each measurement is a function of the model in eval mode, of batches [(inputs, targets), …], and of its own random generator.
Inputs and targets are token ids (B, T), or images and their classes (B,). It returns numbers for JSON, and does not change the
model or the random state. For images, a sequence is the tokens of an image, and the loss is the mean over images.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.measure')

from configurator import TRAIN, at_least, configure, defaults_of, flags, refuse

import copy
import functools
import json
import math
import os
import re
from contextlib import ExitStack, contextmanager
from dataclasses import fields

import torch
from scipy.optimize import linear_sum_assignment
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from data.tokens import Tokens
from engine.checkpoint import load_run, load_state, write_whole
from engine.device import pick_device
from engine.errors import read_json
from engine.keys import gpt_config, group_settings
from engine.runlog import finite, progress, write_row
from engine.step import training_step
from model import GPT, GPTConfig, LayerNorm, RMSNorm, StableNorm, at_least_fp32, block_type, run_blocks
from optim import OPTIMIZERS, param_groups

KINDS = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2', 'w3')      # the matrices of a block; w3 is SwiGLU's


def matrix_kind(name):
    """'h.3.attn.wq.weight' → 'wq'; None if it is not a matrix of a block."""
    found = re.fullmatch(r'h\.\d+\.(?:attn|ffn)\.(w\w)\.weight', name)
    return found[1] if found else None


# ----------------------------------------------------------------------------- tools for measuring

@contextmanager
def outputs(*modules):
    """Yields one list per module, which collects the module's outputs of all forward passes inside the context."""
    seen = [[] for _ in modules]
    with ExitStack() as stack:
        for module, outs in zip(modules, seen):
            hook = module.register_forward_hook(lambda module, args, out, outs=outs: outs.append(out.detach()))
            stack.callback(hook.remove)
        yield seen


@contextmanager
def attention_inputs(*blocks):
    """Collects (q, k, scale, causal) of the attention in these blocks, as the kernel gets them: (B, H, T, E), (B, K, T, E).
    There is nothing of an attention that was edited to have no kernel, or to give it a mask of its own."""
    blocks = [block for block in blocks if hasattr(block.attn, 'kernel')]
    seen, kernels = [], [block.attn.kernel for block in blocks]

    def keep(kernel, q, k, v, **more):
        if more.get('attn_mask') is None:
            seen.append((q.detach(), k.detach(), more.get('scale') or q.size(-1) ** -0.5, more.get('is_causal', False)))
        return kernel(q, k, v, **more)

    try:
        for block, kernel in zip(blocks, kernels):
            block.attn.kernel = functools.partial(keep, kernel)
        yield seen
    finally:
        for block, kernel in zip(blocks, kernels):
            block.attn.kernel = kernel


def attention_logits(q, k, scale):
    """The attention logits (B, H, T, T) of what attention_inputs collects"""
    return scale * q @ k.repeat_interleave(q.size(1) // k.size(1), dim=1).mT


@contextmanager
def scaled(tensors, factor):
    """A context in which these parameters are multiplied by the factor."""
    kept = [p.detach().clone() for p in tensors]
    try:
        with torch.no_grad():
            for p in tensors:
                p.mul_(factor)
        yield
    finally:
        with torch.no_grad():
            for p, was in zip(tensors, kept):
                p.copy_(was)


@contextmanager
def output_scaled(modules, factor):
    """A context in which the outputs of these modules are multiplied by the factor."""
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(lambda module, args, out: factor * out).remove)
        yield


def mean_gradient(model, batches, labels=None):
    """{name: gradient} of the mean loss over the batches; labels(logits), if given, replaces their targets."""
    names, params = zip(*model.named_parameters())
    total = [torch.zeros_like(p) for p in params]
    for x, y in progress(batches, 'gradient, batches'):
        logits = at_least_fp32(model(x)[0])
        y = y if labels is None else labels(logits.detach())
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=-1)
        for t, g in zip(total, torch.autograd.grad(loss / len(batches), params, materialize_grads=True)):
            t += g
    return dict(zip(names, total))


def top_singular_value(multiply, transpose, v, steps=200, tolerance=1e-4):
    """The largest singular value of a linear map, by power iteration from v."""
    sigma = 0.0
    for _ in range(steps):
        u = multiply(v / v.norm())
        was, sigma = sigma, u.norm().item()
        if sigma == 0.0 or abs(sigma - was) <= tolerance * sigma:
            break
        v = transpose(u)
    return sigma


def jacobian_norm(f, x, start, steps=50):
    """The spectral norm of J = ∂f(x)/∂x, over all entries of x; power iteration from `start`, which has x's shape. Jᵀu is a
    backward pass; it is linear in u, so that the backward pass through it is Jv. Both are recorded once."""
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():         # the kernel that has second derivatives
        x = x.detach().requires_grad_()
        y = f(x)
        u = torch.zeros_like(y, requires_grad=True)
        back, = torch.autograd.grad(y, x, u, create_graph=True)
        return top_singular_value(lambda v: torch.autograd.grad(back, u, v, retain_graph=True)[0],
                                  lambda u: torch.autograd.grad(y, x, u, retain_graph=True)[0], start, steps)


LOG_BINS = dict(bins=400, min=-30.0, max=10.0)          # of log10: the same in all histograms, so that runs can be compared


def log_histogram(x):
    """The histogram of log10 |x| in LOG_BINS, without empty bins at its ends: the start of the first bin, the width of a bin, and
    the counts. Zeros are left out."""
    counts = torch.histc(x.abs().log10(), **LOG_BINS).long().tolist()
    width = (LOG_BINS['max'] - LOG_BINS['min']) / LOG_BINS['bins']
    held = [i for i, n in enumerate(counts) if n] or [0]
    return dict(start=LOG_BINS['min'] + held[0] * width, width=width, counts=counts[held[0]:held[-1] + 1])


# ----------------------------------------------------------------------------- gradients

def distribution(x):
    """The tails of x: quantiles of |x|, kurtosis (3 for a Gaussian), Hill's tail index over the largest 1% (smaller means
    heavier), and p99.9 / p50."""
    magnitude = x.abs().flatten().float().sort().values
    n = len(magnitude)
    quantile = {q: magnitude[min(n - 1, math.ceil(q * n) - 1)].item() for q in (0.5, 0.9, 0.99, 0.999)}
    centred = x.flatten().double() - x.double().mean()
    top = magnitude[-max(2, n // 100):].double()
    excess = (top[1:] / top[0]).log().mean().item() if top[0] > 0 else math.nan
    return dict(p50=quantile[0.5], p90=quantile[0.9], p99=quantile[0.99], p999=quantile[0.999], max=magnitude[-1].item(),
                kurtosis=(centred.pow(4).mean() / centred.square().mean().square()).item(),
                hill=1 / excess if excess else math.inf, tail=quantile[0.999] / quantile[0.5] if quantile[0.5] else math.inf)


def gradients(model, batches, rng):
    """DNT's figure 1: the distribution of |gradient| of each kind of matrix, over all layers and per layer."""
    by_kind = {}
    for name, g in mean_gradient(model, batches).items():
        if matrix_kind(name):
            by_kind.setdefault(matrix_kind(name), []).append(g.flatten())
    return {kind: dict(distribution(torch.cat(grads)), histogram=log_histogram(torch.cat(grads)),
                       layers=[distribution(g) for g in grads]) for kind, grads in by_kind.items()}


# ----------------------------------------------------------------------------- sharpness

def sampled_labels(rng):
    """A function: logits → labels drawn from their softmax. NaN logits give arbitrary labels, because nothing can be measured."""
    def draw(logits):
        return torch.multinomial(logits.softmax(-1).nan_to_num(1.0).flatten(0, -2), 1, generator=rng).view(logits.shape[:-1])
    return draw


def diagonal_estimate(model, batches, rng):
    """{name: h}, h = N g ⊙ g: an unbiased estimate of the diagonal Gauss–Newton matrix of the mean loss over these N tokens or
    images. g is the gradient with labels drawn from the model's own softmax (sharpness disparity, eq. 3, for samples)."""
    targets = sum(y.numel() for _, y in batches)
    return {name: targets * g.square() for name, g in mean_gradient(model, batches, sampled_labels(rng)).items()}


def summary(h):
    """log10 of the mean, the mean of log10 over nonzero entries, and the share of zeros, such as embeddings of absent tokens."""
    positive = h[h > 0]
    return dict(log10_mean=h.mean().log10().item() if len(positive) else -math.inf,
                mean_log10=positive.log10().mean().item() if len(positive) else -math.inf, zeros=1 - len(positive) / h.numel())


def sharpness(model, batches, rng):
    """Blockwise sharpness (sharpness disparity, eq. 4): of each block type, over all its parameters and per layer."""
    h = diagonal_estimate(model, batches, rng)
    result = {}
    types = model.config.block_types
    for kind in types:
        of_type = {name: value for name, value in h.items() if block_type(name, types) == kind}
        if not of_type:
            continue
        values = torch.cat([value.flatten() for value in of_type.values()])
        layers = [[value.flatten() for name, value in of_type.items() if layer_of(name) == i + 1] for i in range(len(model.h))]
        result[kind] = dict(summary(values), histogram=log_histogram(values),
                            layers=[summary(torch.cat(parts)) for parts in layers if parts])
    return result


def layer_of(name):
    """The layer of a parameter as sharpness disparity counts them (figure 9): 0 for embeddings and InputNorm, from 1 on for
    blocks and what skips to them, None for what comes after the blocks."""
    block = re.match(r'(?:h|embedding_skips)\.(\d+)\.', name)
    return int(block[1]) + 1 if block else None if re.match(r'(lm_)?head\.|final_norm\.', name) else 0


def smallest_row(w):
    """The norm of an embedding's shortest row, after each row's mean is subtracted: ‖w̃‖ in sharpness disparity's theorem 4.3."""
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


def layers(model, batches, rng):
    """Sharpness of each layer, over all its parameters (sharpness disparity, figure 9a), and `factors` (theorems 4.1 to 4.3)."""
    h = diagonal_estimate(model, batches, rng)
    by_layer = {}
    for name, value in h.items():
        by_layer.setdefault(layer_of(name), []).append(value.flatten())
    return dict(sharpness=[summary(torch.cat(by_layer[i])) for i in range(len(model.h) + 1)], factors=factors(model, h))


# ----------------------------------------------------------------------------- hidden states

def places(model):
    """Names of the points of the residual stream that `stream` collects."""
    return ['input', *(f'{i}.{branch}' for i in range(len(model.h)) for branch in ('attn', 'ffn'))]


@torch.no_grad()
def stream(model, x):
    """The residual stream at each of `places`, (B, T, D) each, for the inputs x."""
    with outputs(model.dropout, *(norm for b in model.h for norm in (b.attn_post_norm, b.ffn_post_norm))) as seen:
        model.hidden(x)
    return [tensor for tensor, in seen]


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
    n, result = s.size(1), []
    for at, total in zip(places(model), sums):
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
    return all(torch.allclose(before + step, after, rtol=1e-4, atol=1e-4 * after.abs().max().item())
               for before, step, after in zip(states, steps, states[1:]))


def largest_gain(model):
    """γ_max over the MidNorms"""
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm)]
    return max(norm.weight.abs().max().item() * getattr(norm, 'scale', 1.0) for norm in norms)


def largest_output(model):
    """γ_max + β_max over the MidNorms. It bounds the root mean square of their outputs."""
    norms = [norm for b in model.h for norm in (b.attn_mid_norm, b.ffn_mid_norm)]
    biases = [norm.bias for norm in norms if getattr(norm, 'bias', None) is not None]
    return largest_gain(model) + max((bias.abs().max().item() for bias in biases), default=0.0)


# ----------------------------------------------------------------------------- parameters

def parameters(model, batches, rng):
    """Frobenius and spectral norm of each matrix of the blocks, per layer; mean and largest |gain| and Frobenius norm of each
    norm's gain; the token embedding's Frobenius norm and smallest_row; and the Frobenius norm of all parameters of each block
    type (sharpness disparity, figure 8)."""
    result, squares, types = {**{kind: [] for kind in KINDS}, 'gains': {}}, {}, model.config.block_types
    for name, parameter in model.named_parameters():
        p = parameter.detach()
        kind = block_type(name, types)
        squares[kind] = squares.get(kind, 0.0) + p.square().sum().item()
        if name == 'wte.weight':
            result['embedding'] = dict(frobenius=p.norm().item(), smallest_row=smallest_row(p))
        if matrix_kind(name):
            start = torch.randn(p.size(1), generator=rng, device=p.device, dtype=p.dtype)
            spectral = top_singular_value(lambda v: p @ v, lambda u: p.T @ u, start, tolerance=1e-6)
            result.setdefault(matrix_kind(name), []).append(dict(frobenius=p.norm().item(), spectral=spectral))
        elif kind == 'norm' and name.endswith('weight'):
            result['gains'][name.removesuffix('.weight')] = dict(mean=p.abs().mean().item(), max=p.abs().max().item(),
                                                                   frobenius=p.norm().item())
    result['types'] = {kind: math.sqrt(square) for kind, square in squares.items()}
    return {key: value for key, value in result.items() if value or key == 'gains'}


def update_sizes(before, model):
    """‖w − before‖ / ‖before‖ per block type; before = {name: tensor} is from before an optimizer's step."""
    moved, size = {}, {}
    for name, p in model.named_parameters():
        kind = block_type(name, model.config.block_types)
        moved[kind] = moved.get(kind, 0.0) + (p.detach() - before[name]).square().sum().item()
        size[kind] = size.get(kind, 0.0) + before[name].square().sum().item()
    return {kind: math.sqrt(moved[kind] / size[kind]) for kind in moved if size[kind]}


# ----------------------------------------------------------------------------- attention

@torch.no_grad()
def attention(model, batches, rng):
    """For each head of each layer, the largest logit, and the mean entropy of its rows in nats (at most the log of the row's
    length). L2 attention's logits are without −‖q‖², which cancels in the softmax. Empty if a layer's queries are not known."""
    largest, entropy = None, None
    for x, _ in batches:
        with attention_inputs(*model.h) as seen:
            model.hidden(x)
        if len(seen) < len(model.h):
            return {}
        tops, entropies = [], []
        for q, k, scale, causal in seen:
            future = torch.full((q.size(2), k.size(2)), causal, device=q.device).triu(1)
            logits = attention_logits(at_least_fp32(q), at_least_fp32(k), scale).masked_fill(future, -math.inf)
            tops.append(logits.amax((0, 2, 3)))
            entropies.append(torch.special.entr(logits.softmax(-1)).sum(-1).mean((0, 2)))
        tops, entropies = torch.stack(tops), torch.stack(entropies)             # (layers, H)
        largest = tops if largest is None else torch.maximum(largest, tops)
        entropy = entropies if entropy is None else entropy + entropies
    return dict(max_logit=largest.tolist(), entropy=(entropy / len(batches)).tolist())


# ----------------------------------------------------------------------------- sensitivity

class Found(Exception):
    """Ends a forward pass of which the rest is not needed."""


def branch(block, name):
    """The branch 'attn' or 'ffn' of a block as a function of x, (B, T, D) → (B, T, D): what the block adds to α x, divided by Δt.
    The block's own forward computes it, so that an edited block is measured as it is."""
    before, after = (None, block.attn_post_norm) if name == 'attn' else (block.attn_post_norm, block.ffn_post_norm)
    join = block.attn_join if name == 'attn' else block.ffn_join

    def found(module, args):
        raise Found(args[0])

    def f(x):
        with ExitStack() as stack:
            if before:
                stack.callback(before.register_forward_hook(lambda module, args, out: x).remove)
            stack.callback(after.register_forward_pre_hook(found).remove)
            try:
                block(x.detach() if before else x)
            except Found as sums:
                return (sums.args[0] - join(x, torch.zeros_like(x))) / (join.dt or 1.0)
    return f


SCALING = 10.0          # the factor on W_o and W_2, to see how the sensitivity of a branch changes


def sensitivity(model, batches, rng):
    """Per layer, at one sequence: the spectral norm of ∂block(X)/∂X and of each branch's Jacobian; the factor by which a branch's
    norm changes if W_o or W_2 is multiplied by SCALING (LN stability: SCALING with Pre-LN, P7; 1 with Peri-LN, P8); and the norm
    of the Jacobian of this block and all that follow, J_{i:D} (eq. 16, 18)."""
    states = stream(model, batches[0][0][:1])
    start = torch.randn(states[0].shape, generator=rng, device=rng.device, dtype=states[0].dtype)
    rows = []

    for i, block in enumerate(progress(model.h, 'sensitivity, layers')):
        at_attn, at_ffn = block_input(model, i, states[2 * i], states[0]).detach(), states[2 * i + 1]
        row = dict(block=jacobian_norm(block, at_attn, start),
                   to_end=jacobian_norm(lambda x: run_blocks(model, x, states[0], first=i), states[2 * i], start))
        for name, x, w in (('attn', at_attn, block.attn.wo), ('ffn', at_ffn, block.ffn.w2)):
            row[name] = jacobian_norm(branch(block, name), x, start)
            with scaled([w.weight], SCALING):
                row[f'{name}_answer'] = jacobian_norm(branch(block, name), x, start) / row[name] if row[name] else math.nan
        rows.append(row)
    return rows


def block_input(model, i, x, x0):
    """What block i, from 0, reads of the stream x in front of it and of the stream x₀ in front of the first block"""
    return model.embedding_skips[i](x, x0) if model.embedding_skips else x


def embedding(model):
    """The module that turns the inputs into token vectors, the first of the model."""
    return next(model.children())


PERTURBATION = 1e-3     # of the token embedding, relative to its norm


def drift(model, batches, rng):
    """How far two inputs drift apart whose embeddings differ by a small perturbation. At each of `places`: their distance
    relative to the first distance, and relative to the norm of the state (LN stability, appendix B)."""
    x = batches[0][0]
    states = stream(model, x)
    nudge = torch.randn(states[0].shape, generator=rng, device=x.device, dtype=states[0].dtype)

    def nudged(module, args, out):
        return out + PERTURBATION * out.norm() / nudge.norm() * nudge

    hook = embedding(model).register_forward_hook(nudged)
    try:
        others = stream(model, x)
    finally:
        hook.remove()
    distances = [(a - b).norm().item() for a, b in zip(states, others)]
    return [dict(at=at, distance=d / distances[0], relative=d / s.norm().item())
            for at, d, s in zip(places(model), distances, states)]


# ----------------------------------------------------------------------------- what the papers predict

@torch.no_grad()
def attention_growth(model, batches, rng):
    """LN stability's bound for Pre-LN (T3, eq. 82), for attention without FFNs, one head and RMSNorm: X ← X + Δt attn(X), block
    after block, on one sequence X (n tokens × d). Per block: MA(X), and its bound

        ‖X_0‖_F / √(nd) · Π (1 + Δt √n √d ‖γ‖_∞ max_j 1/‖x_j‖ ‖W_o W_v‖)        (√d is for our RMSNorm; theirs is x / ‖x‖)

    For other models, and for a block that was edited to add something else than Δt attn(norm(X)), the result is empty.
    """
    c = model.config
    if (c.norm != 'rmsnorm' or c.n_head != 1 or not c.attn_pre_norm or c.attn_mid_norm or c.attn_post_norm or c.bias
            or c.v_norm or c.linear_norm or c.skip_scale != 'one' or c.embedding_skip or c.mix_ln):
        return []
    x = stream(model, batches[0][0][:1])[0]
    bound, rows = x.norm().item() / math.sqrt(x[0].numel()), []
    for block in model.h:
        f, normed = branch(block, 'attn')(x), block.attn_pre_norm(x)
        if not (bounds(block.attn_pre_norm.weight.abs().max(), normed)
                and torch.allclose(f, block.attn(normed), rtol=1e-3, atol=1e-3 * f.abs().max().item())):
            return []
        w = block.attn.wo.weight @ block.attn.wv.weight
        step = math.sqrt(x[0].numel()) * block.attn_pre_norm.weight.abs().max() * (1 / x.norm(dim=-1)).max()
        bound *= 1 + abs(c.branch_scale) * (step * torch.linalg.matrix_norm(w, 2)).item()
        x = x + c.branch_scale * f
        rows.append(dict(ma=x.abs().mean().item(), ma_bound=bound))
    return rows


TRANSPORTED = 64        # sequences, at most
HELD = 2 ** 28          # numbers, at most, that `transport` holds of their hidden states


@torch.no_grad()
def transport(model, batches, rng):
    """How far apart two halves of the sequences are as distributions, at each of `places`: W_1 and W_2, the optimal transport
    distances with the 1-norm and 2-norm of the entries (LN stability, T6).

    If MidNorms bound the branches, the bounds with Δt (eq. 17) are added. The paper leaves its constant Ĉ(p) open. For p = 2 it
    is 1. For p = 1 the equivalence of norms gives √(nd), which then multiplies both terms.
    """
    c, sequences = model.config, torch.cat([x for x, _ in batches])
    most = HELD // (len(places(model)) * c.block_size * c.n_embd)
    sequences = sequences[:max(4, min(TRANSPORTED, most))]
    half = len(sequences) // 2
    if half == 0:
        return []
    bounded = bounded_by_mid_norms(model, sequences[:1])
    states = [torch.cat(parts) for parts in zip(*([s.flatten(1).cpu() for s in stream(model, x[None])] for x in sequences))]
    rows = []
    for k, (at, s) in enumerate(zip(places(model), states)):
        row, s = dict(at=at), s.double()                # (sequences, T·D)
        for p in (1, 2):
            cost = torch.cdist(s[:half], s[half:2 * half], p=p) ** p
            row[f'w{p}'] = cost[linear_sum_assignment(cost)].mean().item() ** (1 / p)
        rows.append(row)
        if bounded:
            n = s.size(-1)
            reach = 2 * k * abs(c.branch_scale) * math.sqrt(n) * largest_gain(model)
            row.update(w1_bound=math.sqrt(n) * (rows[0]['w1'] + reach), w2_bound=math.sqrt(2) * (rows[0]['w2'] + reach))
    return rows


@torch.no_grad()
def output_spectrum(model, batches, rng):
    """The largest singular value of W / ‖W x‖ for each matrix (m × n) of the blocks, as a mean over tokens x; and what DNT
    predicts of random weights from their shape and the root mean square σ_x of x's entries: (√m + √n) / (√(mn) σ_x) (eq. 16).
    {kind: [per layer]}"""
    linear = {name: module for name, module in model.named_modules() if matrix_kind(f'{name}.weight')}
    result = {}
    with ExitStack() as stack:
        inputs = {name: [] for name in linear}
        for name, module in linear.items():
            hook = module.register_forward_pre_hook(lambda module, args, name=name: inputs[name].append(args[0].detach()))
            stack.callback(hook.remove)
        model.hidden(batches[0][0])
    for name, module in linear.items():
        w, x = module.weight.double(), inputs[name][0].double().flatten(0, -2)
        m, n = w.shape
        rms = x.square().mean(1).sqrt()
        measured = torch.linalg.matrix_norm(w, 2) / (x @ w.T).norm(dim=1)
        predicted = (math.sqrt(m) + math.sqrt(n)) / (math.sqrt(m * n) * rms)
        result.setdefault(matrix_kind(f'{name}.weight'), []).append(dict(measured=measured.mean().item(),
                                                                         predicted=predicted.mean().item()))
    return result


# ----------------------------------------------------------------------------- before training

FACTORS = (1.0, 3.0, 10.0, 30.0, 100.0)
CAUSES = {'embeddings': (), 'input of block 0': (), 'W_q W_k': ('wq', 'wk'), 'W_v W_o': ('wv', 'wo'), 'W_1': ('w1',),
          'W_2': ('w2',)}


def amplified(model, cause, factor):
    """A context in which one of CAUSES is multiplied by the factor, in all layers."""
    if cause == 'embeddings':
        return output_scaled([embedding(model), *([model.wpe] if model.wpe is not None else [])], factor)
    if cause == 'input of block 0':
        return output_scaled([model.dropout], factor)
    return scaled([p for name, p in model.named_parameters() if matrix_kind(name) in CAUSES[cause]], factor)


def effects(model, batch, seed):
    """{quantity: size} for the invariance matrix. Logits, branches and their Jacobians are those of block 0."""
    x, block = batch[0], model.h[0]
    with torch.no_grad(), attention_inputs(block) as seen:
        states = stream(model, x)
        at_attn = block_input(model, 0, states[0], states[0])
        branches = [branch(block, 'attn')(at_attn), branch(block, 'ffn')(states[1])]
    logits = {'attention logits': attention_logits(q, k, scale).std() for q, k, scale, _ in seen[:1]}
    rng = torch.Generator(x.device).manual_seed(seed)
    start = torch.randn(states[0][:1].shape, generator=rng, device=x.device, dtype=states[0].dtype)
    result = {**logits, 'attention branch': branches[0].norm(), 'FFN branch': branches[1].norm(),
              'attention Jacobian': jacobian_norm(branch(block, 'attn'), at_attn[:1], start, steps=10),
              'FFN Jacobian': jacobian_norm(branch(block, 'ffn'), states[1][:1], start, steps=10),
              'last hidden state': states[-1].norm()}
    gradient = mean_gradient(model, [batch])
    for kind in KINDS:
        grads = [g for name, g in gradient.items() if matrix_kind(name) == kind]
        if grads:
            result[f'gradient of {kind}'] = torch.stack([g.norm() for g in grads]).norm()
    return {name: float(value) for name, value in result.items()}


def slope(xs, sizes):
    """The slope of the least-squares line through (x, log size), and the root mean square of the residual; NaN if a size is 0."""
    if min(sizes) <= 0:
        return math.nan, math.nan
    xs, ys = torch.tensor(xs, dtype=torch.float64), torch.tensor(sizes, dtype=torch.float64).log()
    centred = xs - xs.mean()
    b = (centred @ (ys - ys.mean()) / (centred @ centred)).item()
    return b, (ys - ys.mean() - b * centred).square().mean().sqrt().item()


def growth(sizes):
    """How a positive quantity grows with the layer: as a power of the layer, by a factor per layer, and which shape fits."""
    layers = range(1, len(sizes) + 1)
    power, miss_of_power = slope([math.log(layer) for layer in layers], sizes)
    rate, miss_of_rate = slope(list(layers), sizes)
    shape = ('unknown' if math.isnan(power) else 'shrinking' if power < -0.15 else
             'exponential' if len(sizes) > 2 and rate > 0.05 and miss_of_rate < miss_of_power / 2 else
             'flat' if power < 0.15 else '√depth' if power < 0.75 else 'linear' if power < 1.3 else 'faster than linear')
    return dict(power=power, factor_per_layer=math.exp(rate), shape=shape)


def preflight(model, batches, rng):
    """The checks of LN stability's appendix B before training, in float64 on one batch.

    `invariance`: the exponent with which each of `effects` responds if one of CAUSES grows by FACTORS: 0 is immune, 1 is
    proportional, more is explosive. `growth`: how MA and Var grow with depth, with the weights as they are or the blocks' × 10.
    """
    model = copy.deepcopy(model).double()
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
    return dict(invariance=invariance, growth=grown, drift=drift(model, [batch], rng)[-1])


MEASUREMENTS = {f.__name__: f for f in (gradients, sharpness, hidden, parameters, attention, sensitivity, drift,
                                        layers, attention_growth, transport, output_spectrum, preflight)}


def measure(model, batches, what, seed):
    """{name: result} of these MEASUREMENTS. The model's mode and its parameters' gradients stay as they are."""
    training = model.training
    model.eval()
    try:
        return {name: MEASUREMENTS[name](model, batches, torch.Generator(batches[0][0].device).manual_seed(seed))
                for name in progress(what, 'measurements')}
    finally:
        model.train(training)


NEEDS = dict(attention_growth='it is for --n_head=1, --norm=rmsnorm, no biases, and blocks with PreNorm and QKNorm alone',
             transport='it needs two sequences at least',
             attention='it needs attention that calls self.kernel, without a mask of its own')
IN_TRAINING = ('gradients', 'sharpness', 'hidden', 'parameters', 'attention')


class Probe:
    """What train.py measures every measure_interval iterations and writes to measure.jsonl: IN_TRAINING before a step, on the
    same batches each time, and how far the step moved the weights. Ranks other than the first pass None as the model."""

    def __init__(self, run, config, machine, windows):
        self.seed, self.machine = config['seed'], machine
        if machine.master and not config['eval_only']:
            self.file = run.continue_rows('measure.jsonl')
            self.batches = [machine.to_device(*windows.read(starts))
                            for starts in windows.spread(config['measure_batches'], config['batch_size'])]

    def before_step(self, model):
        if model:
            self.measured = measure(model, self.batches, IN_TRAINING, self.seed)
            self.before = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.machine.wait()                             # longer than the time-out of the ranks' next sum, perhaps

    def after_step(self, it, model):
        if model:
            write_row(self.file, dict(iter=it, **self.measured, updates=update_sizes(self.before, model)))
            del self.measured, self.before


# ----------------------------------------------------------------------------- tables

def table(title, head, rows):
    """Prints rows under their heads: the first column aligned left, numbers with four digits."""
    cells = [[v if isinstance(v, str) else '–' if v is None else f'{v:.4g}' for v in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
    print(f'\n{title}')
    for row in [head, *cells]:
        print('  ' + '  '.join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))


def show(results):
    """Prints one or more tables for each measurement."""
    if 'gradients' in results:
        keys = ('p50', 'p99', 'p999', 'max', 'tail', 'kurtosis', 'hill')
        table('|gradient| of each kind of matrix; tail is p99.9 / p50, hill the tail index of the largest 1%', ['', *keys],
              [[kind, *(stats[key] for key in keys)] for kind, stats in results['gradients'].items()])
    if 'sharpness' in results:
        keys = ('log10_mean', 'mean_log10', 'zeros')
        table('sharpness of each block type', ['', *keys],
              [[kind, *(stats[key] for key in keys)] for kind, stats in results['sharpness'].items()])
    if 'hidden' in results:
        keys = list(results['hidden'][0])[1:]
        table('hidden states', ['behind', *keys], [[row['at'], *(row[key] for key in keys)] for row in results['hidden']])
    if 'layers' in results:
        keys = ('log10_mean', 'mean_log10', 'zeros')
        table('sharpness of each layer; 0 is the embeddings', ['layer', *keys],
              [[str(i), *(row[key] for key in keys)] for i, row in enumerate(results['layers']['sharpness'])])
        found = results['layers']['factors']
        blocks = range(max(map(len, found.values())))
        table('n S ‖θ‖², which theorems 4.1 to 4.3 bound from above', ['', *(f'block {i}' for i in blocks)],
              [[name, *values, *[None] * (len(blocks) - len(values))] for name, values in found.items()])
    if 'attention_growth' in results and results['attention_growth']:
        table('hidden states by attention alone, and their bound (T3)', ['block', 'ma', 'ma_bound'],
              [[str(i), row['ma'], row['ma_bound']] for i, row in enumerate(results['attention_growth'])])
    if 'transport' in results and results['transport']:
        keys = list(results['transport'][0])[1:]
        table('distance between two halves of the sequences, as distributions (T6)', ['behind', *keys],
              [[row['at'], *(row[key] for key in keys)] for row in results['transport']])
    if 'output_spectrum' in results:
        table('σ_1 of W / ‖W x‖, and what DNT predicts of random weights', ['', 'block', 'measured', 'predicted'],
              [[kind, str(i), row['measured'], row['predicted']] for kind, rows in results['output_spectrum'].items()
               for i, row in enumerate(rows)])
    if 'parameters' in results:
        kinds = [kind for kind, of_layers in results['parameters'].items() if isinstance(of_layers, list)]
        table('spectral norm (Frobenius norm) of the matrices', ['layer', *kinds],
              [[str(i), *(f'{m["spectral"]:.3g} ({m["frobenius"]:.3g})' for m in layer)]
               for i, layer in enumerate(zip(*(results['parameters'][kind] for kind in kinds)))])
        table('gains of the norms', ['', 'mean', 'max', 'Frobenius norm'],
              [[name, g['mean'], g['max'], g['frobenius']] for name, g in results['parameters']['gains'].items()])
        types = results['parameters']['types']
        table('Frobenius norm of all parameters of a block type', ['', *types], [['', *types.values()]])
    if 'updates' in results:
        table('one step of the optimizer, relative to the parameters', ['', *results['updates']],
              [['', *results['updates'].values()]])
    if 'attention' in results:
        for key, title in (('max_logit', 'largest attention logit'), ('entropy', 'mean entropy of attention, nats')):
            heads = results['attention'][key]
            table(title, ['layer', *(f'head {h}' for h in range(len(heads[0])))],
                  [[str(i), *layer] for i, layer in enumerate(heads)])
    if 'sensitivity' in results:
        table(f'spectral norm of the Jacobians; answer: of the branch\'s where W_o or W_2 is {SCALING:g} times as large',
              ['layer', 'block', 'to the end', 'attn', 'answer', 'ffn', 'answer'],
              [[str(i), *(row[key] for key in ('block', 'to_end', 'attn', 'attn_answer', 'ffn', 'ffn_answer'))]
               for i, row in enumerate(results['sensitivity'])])
    if 'drift' in results:
        table('drift after a nudge of the embedding', ['behind', 'distance', 'relative'],
              [[row['at'], row['distance'], row['relative']] for row in results['drift']])
    if 'preflight' in results:
        invariance = results['preflight']['invariance']
        table('invariance: exponent with which a row answers to a column (0 immune, 1 proportional, more explosive)',
              ['', *invariance], [[effect, *(f'{invariance[cause][effect]:.2f}' for cause in invariance)]
                                  for effect in next(iter(invariance.values()))])
        table('growth with depth', ['', 'of', 'power of the layer', 'factor a layer', ''],
              [[name, quantity.upper(), g['power'], g['factor_per_layer'], g['shape']]
               for name, both in results['preflight']['growth'].items() for quantity, g in both.items()])


# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out'                     # a run's folder, which also gets the results; with init_only they go into <out_dir>-init
checkpoint = 'ckpt.pt'              # ckpt.pt: the latest | best.pt: the lowest validation loss
init_only = False                   # measure the untrained model of the config instead
what = ''                           # measurements, separated by commas; empty: all except preflight, or preflight with init_only
batches = 8                         # batches of batch_size windows or images, evenly spread over the run's training data
# -----------------------------------------------------------------------------
USED = {'out_dir', 'dataset', 'vocab_size', 'batch_size', 'seed', 'device', 'aug_repeats', 'debug'}     # with init_only


def one_update(model, state, config, data):
    """update_sizes of one step from a checkpoint, with its optimizer's state, on the mean gradient over the data."""
    optimizer = OPTIMIZERS[config['optimizer']](param_groups(model, **group_settings(config)), {**config, 'compile': False})
    load_state(optimizer, state['optimizer'])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    training_step(model, model, optimizer, data, config['grad_clip'])
    return update_sizes(before, model)


def refuse_other_keys(config, run, folder, defaults):
    """ValueError for a key of the command that differs from the run's, because a run is measured with its own."""
    for key in [key for key in defaults if key in run and key not in ('out_dir', 'device', 'debug', 'init_from', 'overwrite')]:
        if config[key] != run[key] and (config[key] != defaults[key] or key in flags()):
            raise ValueError(f'{key}={config[key]}: {folder} has {run[key]}, and a run is measured with its own keys; leave it '
                             f'out, or measure an untrained model by --init_only=True')


def own(config):
    """The keys of an untrained model, without those that say what is measured"""
    return {key: value for key, value in config.items() if key not in ('what', 'batches', 'debug')}


MEASURED = {'iter?': int, 'tokens?': int, 'images?': int, 'earlier?': {str: dict}, str: object}         # of a measure.json


def read_earlier(folder, name, shape=dict):
    """The content of a file that this script has written, {} if there is none. ValueError if it is damaged."""
    return read_json(os.path.join(folder, name), shape, 'remove it and measure again') or {}


def merged(earlier, new):
    """The content of a measure.json: the results of `new`, and those of the measure.json before it, `earlier`, that `new` lacks.
    Its key 'earlier' says where a result comes from if not from this iteration and these batches: {name: {'iter': …, …}}."""
    about = {key: earlier[key] for key in ('iter', 'tokens', 'images') if key in earlier}
    kept = {key: value for key, value in earlier.items() if key not in {*new, *about, 'earlier'}}
    of = {name: earlier.get('earlier', {}).get(name, about) for name in kept}
    others = {name: of[name] for name in kept if not of[name].items() <= new.items()}
    return {**new, **kept, **(dict(earlier=others) if others else {})}


def untrained(config):
    """A function that builds the GPT of a run's keys, and its training data"""
    model_config = gpt_config(config)
    return lambda: GPT(model_config), Tokens(config['dataset'], 'train', model_config.block_size, model_config.vocab_size)


def main(Model=GPT, sources=(TRAIN, GPTConfig), untrained=untrained, unit='tokens'):
    """Measures a run or an untrained model. `sources` of its keys as configure takes them; `untrained` as above; targets are
    counted as `unit`."""
    config = configure(globals(), *sources)
    at_least(config, batches=1, batch_size=1, seed=0)
    default = ['preflight'] if init_only else [name for name in MEASUREMENTS if name != 'preflight']
    names = what.split(',') if what else default
    for name in names:
        if name not in MEASUREMENTS:
            raise ValueError(f'what={name!r}: choose among {", ".join(MEASUREMENTS)}')
    device = pick_device(config['device'])
    if init_only:
        refuse(defaults_of(*sources).keys() - USED - {f.name for f in fields(Model.Config)},
               'an untrained model is measured without this key')
        refuse(['checkpoint'], 'init_only=True measures no checkpoint')
        folder, state = out_dir + '-init', None
        of_another_model = read_earlier(folder, 'config.json') != own(config)
    else:
        path = os.path.join(out_dir, checkpoint)
        if not os.path.exists(path):
            raise ValueError(f'there is no {path} to measure: train first, check out_dir, or set --init_only=True')
        model, state = load_run(path, device, Model)
        refuse_other_keys(config, state['config'], out_dir, defaults_of(*sources))
        folder, config, of_another_model = out_dir, {**config, **state['config']}, False
    read_earlier(folder, 'measure.json', MEASURED)      # raises now if it is damaged
    build, windows = untrained(config)
    if init_only:
        torch.manual_seed(config['seed'])
        model = build().to(device)
    data = [tuple(t.to(device) for t in windows.read(starts)) for starts in windows.spread(batches, config['batch_size'])]
    results = measure(model, data, names, config['seed'])
    if state and 'parameters' in names:
        results['updates'] = one_update(model.eval(), state, config, data)
    show(results)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, 'measure.json')
    earlier = {} if of_another_model else read_earlier(folder, 'measure.json', MEASURED)
    if init_only:                                       # lab/plot.py names the model by it
        write_whole(os.path.join(folder, 'config.json'), lambda f: f.write(json.dumps(own(config), indent=1).encode()))
    new = dict(iter=state['iter'] if state else 0, **{unit: sum(y.numel() for _, y in data)}, **results)
    content = finite(merged(earlier, new))
    write_whole(path, lambda f: f.write(json.dumps(content).encode() + b'\n'))
    print(f'\nwrote {path}')
    if 'earlier' in content:
        print(f'it keeps results of another iteration or of other batches: {", ".join(content["earlier"])}')
    from lab.plot import draw
    for name in names:
        if not results[name]:
            print(f'{name} has no result: {NEEDS[name]}')
        else:
            draw(name, [folder], os.path.join(folder, f'{name}.png'))


if __name__ == '__main__':
    main()
