"""Stops a run before it saves a checkpoint if its loss or gradient is not finite, or its loss stays high."""
from engine.process import say

import math
import os
import sys

import torch
import torch.distributed as dist

from engine.ranks import local, shard_of

NEVER = 2 ** 62
PATIENCE = 100                          # iterations for which the loss may be above the limit


class Watch:
    """Ends the process after a step that was not finite. Call `see` after each step, and `check` before saving anything.

    `rate`: iteration → learning rate, for the message. `params_of`: {block type: its parameters}."""

    def __init__(self, config, machine, run, log, rate, scaler, params_of):
        self.factor = config['diverge_factor']
        self.machine, self.run, self.log, self.rate, self.scaler, self.params_of = machine, run, log, rate, scaler, params_of
        self.first_bad = torch.full((), NEVER, device=machine.device)       # the first iteration that was not finite
        self.first_loss = None                          # the first logged loss
        self.high_since = None                          # the logged iteration since which the loss has been above the limit
        self.last_finite, self.last_norms = -1, {}      # the last logged iteration that was finite, and the norms then

    def see(self, it, loss, grad_norm):
        """Note on the device whether an iteration was finite. Do not wait for the device."""
        seen = loss if self.scaler.is_enabled() else loss + grad_norm       # the scaler handles gradients that overflow
        self.first_bad = torch.where(torch.isfinite(seen), self.first_bad, self.first_bad.clamp(max=it))

    def check(self, it, *losses):
        """Exit with code 3 if a loss or gradient was not finite. Every rank must call this."""
        bad = int(self.machine.sum(self.first_bad.clone(), dist.ReduceOp.MIN).item())
        overflows = self.scaler.is_enabled() and self.scaler.get_scale() < 1        # the scaler has halved its scale in vain
        if bad < NEVER or overflows or not all(math.isfinite(loss) for loss in losses):
            at = bad if bad < NEVER else max(0, it - 1)         # the step before is the cause
            self.stop(at, 'the loss or its gradient was not finite')

    def logged(self, it, loss, weight_norms, gradient_norms):
        """Note the loss and the norms per block type, (block types,), of a logged iteration. Exit with code 3 if the loss has
        been high for too long."""
        self.last_finite, self.last_norms = it, (weight_norms, gradient_norms)
        self.first_loss = self.first_loss or loss
        high = self.factor and loss > self.factor * self.first_loss
        self.high_since = (it if self.high_since is None else self.high_since) if high else None
        if high and it - self.high_since >= PATIENCE:
            self.stop(it, f'the loss has been above {self.factor} times its first value, {self.first_loss:.4f}, '
                          f'for {PATIENCE} iterations')

    def end(self, it):
        """Exit with code 3 if the loss is high at the end of a run."""
        if self.high_since is not None:
            self.stop(it, f'at the end of the run the loss is above {self.factor} times its first value, {self.first_loss:.4f}')

    def stop(self, it, reason):
        """Report to the terminal and the log, and exit with code 3."""
        self.machine.before_leaving()                   # a checkpoint may still be on its way to the disk
        if self.machine.master:
            norms = {}
            if self.last_norms:
                weights, gradients = (norm.tolist() for norm in self.last_norms)
                norms = {kind: dict(weights=w, gradient=g) for kind, w, g in zip(self.params_of, weights, gradients)}
            self.log.row(iter=it, diverged=reason, lr=self.rate(it), last_finite_iter=self.last_finite, norms=norms)
            path = self.run.path['ckpt.pt']
            saved = f'{path} holds the last good state' if os.path.exists(path) else 'no checkpoint was saved yet'
            say(f'diverged: {reason} at iteration {it}, learning rate {self.rate(it):.3e}; {saved}', to=sys.stderr)
        self.log.close(3)
        self.machine.leave(3)


def params_by_type(optimizer):
    """{block type: its parameters} of an optimizer's groups. Raise ValueError for groups that are not those of param_groups."""
    params = {}
    for group in optimizer.param_groups:
        if 'block_type' not in group:
            raise ValueError(f'{type(optimizer).__name__} has made groups of its own: it must keep those of param_groups, with '
                             f'their block_type, lr_scale and lr_ratio')
        params.setdefault(group['block_type'], []).extend(group['params'])
    return params


@torch.no_grad()
def tell_unused(model, ddp, log):
    """Name the parameters that got no gradient in the first step: nothing trains them. Raise ValueError with DDP, which would not
    reduce the gradients of others that share a bucket with them."""
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if not unused:
        return
    more = f' and {len(unused) - 3} more' if len(unused) > 3 else ''
    line = (f'no gradient reaches {", ".join(unused[:3])}{more}: the loss does not depend on it; leave it out, set its '
            f'requires_grad to False, or refuse these keys together in GPTConfig.__post_init__')
    if ddp:
        raise ValueError(line)
    log.say(line)


def block_norms(params_of, tensor_of):
    """(block types,): the norm of tensor_of(p) over the parameters p of each type, on the device."""
    # without frozen parameters, which have no gradient
    tensors_of = [[local(t) for t in map(tensor_of, params) if t is not None] for params in params_of.values()]
    p = next(iter(params_of.values()))[0]
    norms = torch.stack([torch.nn.utils.get_total_norm(tensors).to(p.device) for tensors in tensors_of])
    if not hasattr(p, 'to_local'):
        return norms
    squares = norms.square()
    dist.all_reduce(squares, group=shard_of(p).group)
    return squares.sqrt()
