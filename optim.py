"""Optimizers over groups by block type, and the learning rate's schedules."""
import math

import torch

from model import BLOCK_TYPES, block_type


def param_groups(model, weight_decay, ratios={}):
    """One group per (block type, decayed or not) of a GPT's parameters, for any torch optimizer.

    Matrices decay, vectors (norm gains, biases) do not. `ratios`, {block type: factor}, is Blockwise LR (Wang et al.
    2025): each group carries its `lr_ratio`, 1 by default, its `block_type`, and (name, parameter) pairs in `params`,
    of which torch makes `param_names`. ValueError for a parameter or a ratio that belongs to no block type.
    """
    for kind in ratios:
        if kind not in BLOCK_TYPES:
            raise ValueError(f'ratios: {kind!r} is no block type: choose among {", ".join(BLOCK_TYPES)}')
    groups = {}
    for name, p in model.named_parameters():
        kind, decayed = block_type(name), p.dim() >= 2
        group = groups.setdefault((kind, decayed), dict(params=[], block_type=kind, lr_ratio=ratios.get(kind, 1.0),
                                                        weight_decay=weight_decay if decayed else 0.0))
        group['params'].append((name, p))
    return list(groups.values())


class SGDW(torch.optim.Optimizer):
    """SGD with momentum and decoupled weight decay (Loshchilov and Hutter 2019; DNT), decay first:

        w ← (1 − lr·λ) w,   m ← μ m + g,   w ← w − lr·m        (m starts at 0)

    The decay is not part of g, as it is in torch.optim.SGD, and so never enters the momentum.
    State: one momentum buffer a parameter.
    """

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0):
        if lr < 0 or not 0 <= momentum < 1 or weight_decay < 0:
            raise ValueError(f'lr={lr}, momentum={momentum}, weight_decay={weight_decay}: '
                             f'wants lr >= 0, 0 <= momentum < 1, weight_decay >= 0')
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group['params'] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]['momentum_buffer'] = torch.zeros_like(p)
            buffers = [self.state[p]['momentum_buffer'] for p in params]
            if group['weight_decay']:
                torch._foreach_mul_(params, 1 - group['lr'] * group['weight_decay'])
            torch._foreach_mul_(buffers, group['momentum'])
            torch._foreach_add_(buffers, grads)
            torch._foreach_add_(params, buffers, alpha=-group['lr'])
        return loss


SCHEDULES = {       # share of the way from min_lr up to learning_rate: p runs from 0 at the end of warm-up to 1
    'cosine': lambda p: 0.5 + 0.5 * math.cos(math.pi * p),
    'linear': lambda p: 1 - p,
    'constant': lambda p: 1.0,
}


def lr_at(it, schedule, learning_rate, min_lr, warmup_iters, lr_decay_iters):
    """The learning rate of iteration `it`, the first being 0."""
    # 1) linear warm-up
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    # 2) the schedule, down to min_lr at lr_decay_iters, 3) and min_lr from there on
    progress = min(1.0, (it - warmup_iters) / max(1, lr_decay_iters - warmup_iters))
    return min_lr + SCHEDULES[schedule](progress) * (learning_rate - min_lr)
