"""Stop a run whose loss or gradient is not finite, before it saves a checkpoint."""
from engine.process import say

import math
import os
import sys

import torch
import torch.distributed as dist

NEVER = 2 ** 62


class Watch:
    """End the process after a step that was not finite. Call `see` after each step, and `check` before saving anything.
    rate(it) is the learning rate, for the message."""

    def __init__(self, machine, run, log, rate, scaler):
        self.machine, self.run, self.log, self.rate, self.scaler = machine, run, log, rate, scaler
        self.first_bad = torch.full((), NEVER, device=machine.device)       # the first iteration that was not finite

    def see(self, it, loss, grad_norm):
        """Record on the device whether an iteration was finite, without waiting for the device."""
        seen = loss if self.scaler.is_enabled() else loss + grad_norm       # the scaler handles gradients that overflow
        self.first_bad = torch.where(torch.isfinite(seen), self.first_bad, self.first_bad.clamp(max=it))

    def check(self, it, *losses):
        """Report and exit with code 3 if a loss or gradient was not finite. Every rank must call this."""
        bad = int(self.machine.sum(self.first_bad.clone(), dist.ReduceOp.MIN).item())
        overflows = self.scaler.is_enabled() and self.scaler.get_scale() < 1        # halving the scale has not helped
        if bad == NEVER and not overflows and all(math.isfinite(loss) for loss in losses):
            return
        at = bad if bad < NEVER else max(0, it - 1)     # the previous step is the cause
        if self.machine.master:
            reason, path = 'the loss or its gradient was not finite', self.run.path['ckpt.pt']
            self.log.row(iter=at, diverged=reason, lr=self.rate(at))
            saved = f'{path} holds the last good state' if os.path.exists(path) else 'no checkpoint was saved yet'
            say(f'diverged: {reason} at iteration {at}, learning rate {self.rate(at):.3e}; {saved}', to=sys.stderr)
        self.log.close(3)
        self.machine.leave(3)


@torch.no_grad()
def tell_unused(model, ddp, log):
    """Name the parameters that got no gradient in the first step: nothing trains them. Raise ValueError with DDP, which would
    not reduce the other gradients in their buckets."""
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if not unused:
        return
    more = f' and {len(unused) - 3} more' if len(unused) > 3 else ''
    line = (f'no gradient reaches {", ".join(unused[:3])}{more}, and nothing trains them: leave such parameters out, set their '
            f'requires_grad to False, or refuse these keys together in GPTConfig.__post_init__')
    if ddp:
        raise ValueError(line)
    log.say(line)
