"""Tell what happens in each logged iteration: the norms of gradient, weights and update, and what the batches were. This draws no
global random numbers and changes no loss. engine/health.py does it for evaluations."""
import re

import numpy as np
import torch
import torch.distributed as dist

from engine.ranks import local, shard_of

REMEMBERED = 2 ** 20        # places for hashes of rows, 8 MB; a hash forgets an older one in its place


def params_by_type(optimizer):
    """Return {block type: its parameters} of an optimizer whose groups are from param_groups."""
    params = {}
    for group in optimizer.param_groups:
        params.setdefault(group['block_type'], []).extend(group['params'])
    return params


def params_by_layer(optimizer):
    """Return {(block type, layer from 0): its parameters}, without parameters outside of blocks."""
    params = {}
    for group in optimizer.param_groups:
        for name, p in zip(group['param_names'], group['params']):
            if layer := re.match(r'h\.(\d+)\.', name):
                params.setdefault((group['block_type'], int(layer[1])), []).append(p)
    return params


def block_norms(params_of, tensor_of):
    """Return the norm of tensor_of(p) over the parameters p of each block type, (types,), on the device."""
    # without frozen parameters, which have no gradient
    tensors_of = [[local(t) for t in map(tensor_of, params) if t is not None] for params in params_of.values()]
    p = next(iter(params_of.values()))[0]
    norms = torch.stack([torch.nn.utils.get_total_norm(tensors).to(p.device) for tensors in tensors_of])
    if not hasattr(p, 'to_local'):
        return norms
    squares = norms.square()
    dist.all_reduce(squares, group=shard_of(p).group)
    return squares.sqrt()


class Evidence:
    """The evidence of a run. Call `see` with each micro-batch, and in a logged iteration `before_step` and then `row`, around the
    optimizer's step. Every rank must call them. by_layer: log each norm by layer too. `types`: {block type: its parameters}."""

    def __init__(self, machine, optimizer, by_layer, vocab_size):
        self.machine, self.types = machine, params_by_type(optimizer)
        self.layers = params_by_layer(optimizer) if by_layer else {}
        self.factors, self.hashes, self.before, self.known = None, [], 0, np.zeros(REMEMBERED, np.int64)
        self.counts = torch.zeros(vocab_size, dtype=torch.int64, device=machine.device)     # how often each token was an input
        self.targets = torch.zeros(2, dtype=torch.int64, device=machine.device)     # equal to the next input; all that have one

    @torch.no_grad()
    def see(self, x, y):
        """Record a micro-batch, inputs x and targets y, on its device, without waiting for the device."""
        rows = x.flatten(1).long()
        if self.factors is None:
            generator = torch.Generator().manual_seed(0)        # not the global one, which dropout uses
            self.factors = torch.randint(-2 ** 63, 2 ** 63 - 1, rows[0].shape, generator=generator).to(rows.device)
        self.hashes.append(((rows + 1) * self.factors).sum(1))          # modulo 2^64
        if x.shape == y.shape:                          # tokens; images have one class each
            self.counts.index_add_(0, rows.flatten(), torch.ones_like(rows.flatten()))
            self.targets += torch.stack(((y[:, :-1] == x[:, 1:]).sum(), (y[:, :-1] >= 0).sum()))

    def batches(self):
        """Return what the batches of all ranks were since the last call: `repeated`, the share of rows that equal one of the
        `rows_before`, the earlier rows since the process started, or another of these; and for tokens `agreement`, the share of
        targets that equal the next input, and `entropy`, that of the inputs in nats."""
        own = torch.cat(self.hashes)
        hashes = own.new_zeros(self.machine.world_size, len(own))
        hashes[self.machine.rank] = own
        hashes = self.machine.sum(hashes).flatten().cpu().numpy()
        new = np.unique(hashes)
        places = new >> 44                              # the upper 20 bits, a place in `known` from either end
        unseen = np.count_nonzero(self.known[places] != new)
        self.known[places] = new
        numbers = dict(repeated=1 - unseen / len(hashes))
        counts, (equal, targets) = self.machine.sum(self.counts).cpu().double(), self.machine.sum(self.targets).tolist()
        if targets:
            entropy = torch.special.entr(counts / counts.sum()).sum().item()
            numbers |= dict(agreement=equal / targets, entropy=entropy)
        before, self.before, self.hashes = self.before, self.before + len(hashes), []
        self.counts.zero_()
        self.targets.zero_()
        return dict(batches=numbers, rows_before=before)

    def by_layer(self, tensor_of):
        """Return {block type: [the norm of tensor_of(p) in each layer]}, None in a layer without parameters of this type."""
        depth, norms = 1 + max((layer for _, layer in self.layers), default=0), {}
        for (kind, layer), norm in zip(self.layers, block_norms(self.layers, tensor_of).tolist() if self.layers else ()):
            norms.setdefault(kind, [None] * depth)[layer] = norm
        return norms

    def before_step(self):
        """Copy the weights, and take the norms of the gradient that the step clips."""
        self.copies = {p: local(p).detach().clone() for params in self.types.values() for p in params}
        self.grads_by_layer = self.by_layer(lambda p: p.grad)

    @torch.no_grad()
    def row(self, grad_norms):
        """Return what to log after the step: norms by block type and by layer, and `batches`. grad_norms: block_norms of the
        gradient."""
        updates, self.copies = self.copies, None
        torch._foreach_sub_(list(updates.values()), [local(p) for p in updates])
        norms = dict(grad_norms=grad_norms, weight_norms=block_norms(self.types, lambda p: p),
                     update_norms=block_norms(self.types, updates.get))
        layers = dict(grad_norms=self.grads_by_layer, weight_norms=self.by_layer(lambda p: p),
                      update_norms=self.by_layer(updates.get))
        return {**{name: dict(zip(self.types, values.tolist())) for name, values in norms.items()},
                **(dict(layers=layers) if self.layers else {}), **self.batches()}
