"""Measure each block's residual stream, branches, attention and FFN. Each evaluation logs these numbers: look there first when a
run goes wrong. lab/measure/ uses the same hooks."""
import functools
import math
from contextlib import ExitStack, contextmanager

import torch

from model import at_least_fp32

DEAD = 0.01         # a unit of the FFN is dead if it never reaches this share of the RMS of all units


@contextmanager
def collected(modules, pick):
    """Yield one list per module, to which each forward pass inside the context adds pick(arguments, output)."""
    seen = [[] for _ in modules]
    with ExitStack() as stack:
        for module, values in zip(modules, seen):
            hook = module.register_forward_hook(lambda _, args, out, values=values: values.append(pick(args, out).detach()))
            stack.callback(hook.remove)
        yield seen


@contextmanager
def capture_attention_inputs(blocks, see):
    """Within this context, each block's attention calls see(q, k, scale, causal) with its kernel's inputs, q (B, H, T, E) and
    k (B, K, T, E). An edited attention without a kernel, or with a mask of its own, does not call `see`."""
    blocks = [block for block in blocks if hasattr(getattr(block, 'attn', None), 'kernel')]
    kernels = [block.attn.kernel for block in blocks]

    def seen(kernel, q, k, v, **more):
        if more.get('attn_mask') is None:
            see(q.detach(), k.detach(), more.get('scale') or q.size(-1) ** -0.5, more.get('is_causal', False))
        return kernel(q, k, v, **more)

    try:
        for block, kernel in zip(blocks, kernels):
            block.attn.kernel = functools.partial(seen, kernel)
        yield
    finally:
        for block, kernel in zip(blocks, kernels):
            block.attn.kernel = kernel


def logits_and_entropies(q, k, scale, causal):
    """Return the largest attention logit and the mean entropy of the rows of the attention weights, in nats, of each head: (B, H)
    each. Go through one head of one sequence at a time to save memory."""
    k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
    future = torch.full((q.size(2), k.size(2)), causal, device=q.device).triu(1)
    heads = []
    with torch.autocast(q.device.type, enabled=False):
        for queries, keys in zip(at_least_fp32(q).flatten(0, 1), at_least_fp32(k).flatten(0, 1)):
            logits = (scale * queries @ keys.mT).masked_fill(future, -math.inf)
            heads.append(torch.stack((logits.amax(), torch.special.entr(logits.softmax(-1)).sum(-1).mean())))
    return torch.stack(heads).unflatten(0, q.shape[:2]).unbind(-1)


def attention_health(q, k, scale, causal):
    """Return the largest logit, and the mean entropy over that of equal weights."""
    logits, entropies = logits_and_entropies(q, k, scale, causal)
    lengths = torch.arange(1, q.size(2) + 1) if causal else torch.tensor([k.size(2)])
    return logits.amax(), entropies.mean() / lengths.float().log().mean()


def rms(x):
    return x.float().square().mean().sqrt()


def dead_units(h):
    """Return the share of dead units in an FFN's activations h (B, T, d_ff)."""
    return (h.abs().flatten(0, -2).amax(0) <= DEAD * rms(h)).float().mean()


NUMBERS = {         # name → a module of the block ('': the block itself), and what its forward pass says
    'residual_rms': ('', lambda args, out: rms(out[0])),
    'attn_rms': ('attn_residual', lambda args, out: rms(args[1])),
    'ffn_rms': ('ffn_residual', lambda args, out: rms(args[1])),
    'dead_units': ('ffn.inner_norm', lambda args, out: dead_units(args[0])),
}
OF_ATTENTION = ('max_logits', 'attn_entropy')


@torch.no_grad()
def health(model, x):
    """Return {name: [a number for each block]} for inputs x:

    residual_rms    the root mean square of the residual stream after the block, over channels and tokens
    attn_rms        that of attention's branch, before Δt
    ffn_rms         that of the FFN's branch
    dead_units      the share of dead units in the FFN
    max_logits      the largest attention logit; L2 attention's logits omit −‖q‖², which cancels in the softmax
    attn_entropy    the mean entropy of the attention weights, over that of equal weights

    None stands for a block without the number: its attention has no kernel, or it was edited not to call these modules. The model
    must not be compiled; its mode is restored."""
    blocks, training = [], model.training
    model.eval()
    try:
        with ExitStack() as stack:
            for block in model.h:
                modules, seen = dict(block.named_modules()), {}
                for name, (path, pick) in NUMBERS.items():
                    if path in modules:
                        seen[name], = stack.enter_context(collected([modules[path]], pick))
                stack.enter_context(capture_attention_inputs([block], lambda *inputs, seen=seen: seen.update(
                    {name: [number] for name, number in zip(OF_ATTENTION, attention_health(*inputs))})))
                blocks.append(seen)
            model.hidden(x)
    finally:
        model.train(training)
    return {name: [seen[name][0].item() if seen.get(name) else None for seen in blocks] for name in (*NUMBERS, *OF_ATTENTION)
            if any(seen.get(name) for seen in blocks)}
