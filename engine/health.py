"""Measure the residual stream and the attention logits. Each evaluation logs them, because people look there first when a run
goes wrong."""
import functools
import math
from contextlib import contextmanager

import torch


@contextmanager
def capture_attention_inputs(blocks, see):
    """Within this context, each block's attention calls see(q, k, scale, causal) with its kernel's inputs, q (B, H, T, E) and
    k (B, K, T, E). An edited attention without a kernel, or with a mask of its own, does not call `see`."""
    blocks = [block for block in blocks if hasattr(block.attn, 'kernel')]
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


def largest_logit(q, k, scale, causal):
    """Return the largest attention logit, a scalar, going through one head of one sequence at a time to save memory."""
    k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
    future = torch.full((q.size(2), k.size(2)), causal, device=q.device).triu(1)
    return torch.stack([(scale * queries @ keys.mT).masked_fill(future, -math.inf).amax()
                        for queries, keys in zip(q.flatten(0, 1).float(), k.flatten(0, 1).float())]).amax()


@torch.no_grad()
def health(model, x):
    """Return {'residual_rms': […], 'max_logits': […]} for inputs x, with a number for each block: the root mean square of the
    residual stream after the block, over channels and tokens, and its largest attention logit. L2 attention's logits omit −‖q‖²,
    which cancels in the softmax. Leave out max_logits if an edited attention has no kernel. The model must not be compiled; its
    mode is restored."""
    rms, logits, training = [], [], model.training
    hooks = [block.register_forward_hook(lambda block, args, out: rms.append(out[0].float().square().mean().sqrt()))
             for block in model.h]
    model.eval()
    try:
        with capture_attention_inputs(model.h, lambda *inputs: logits.append(largest_logit(*inputs))):
            model.hidden(x)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    known = dict(max_logits=torch.stack(logits).tolist()) if len(logits) == len(model.h) else {}
    return dict(residual_rms=torch.stack(rms).tolist(), **known)
