"""
Share the parameters and the work of a step among ranks: under DDP each rank has all parameters, under FSDP some rows of each.

optim.py imports this file, which imports none of ours.
"""
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional as F


class Shard(NamedTuple):
    """The rows of a parameter that this rank holds: all, or under FSDP an equal chunk; the last may be shorter or empty."""
    start: int
    rows: int                           # of the whole parameter
    width: int                          # numbers in a row
    group: dist.ProcessGroup | None     # the ranks that have the other rows


def shard_of(p, rows=1):
    """Return a parameter's shard. View a parameter that is not sharded as `rows` rows."""
    if not hasattr(p, 'device_mesh'):
        return Shard(0, rows, p.numel() // rows, None)
    mesh, dim = p.device_mesh, p.device_mesh.ndim - 1   # with two dimensions the first one counts whole copies of the model
    start = min(len(p), mesh.get_local_rank(dim) * -(-len(p) // mesh.size(dim)))
    return Shard(start, len(p), p.numel() // len(p), mesh.get_group(dim))


def local(t):
    """Return this rank's part of a sharded tensor, or the whole of any other tensor, without copying."""
    return t.to_local() if hasattr(t, 'to_local') else t


def check_on_shards(optimizer):
    """Raise ValueError if parameters are sharded and the optimizer's class does not declare on_shards."""
    sharded = any(hasattr(p, 'to_local') for group in optimizer.param_groups for p in group['params'])
    if sharded and not vars(type(optimizer)).get('on_shards', False):       # a promise is not inherited
        name = type(optimizer).__name__
        raise ValueError(f'parallel=fsdp: {name} may need whole matrices, and each rank has only some rows of them; use '
                         f'parallel=ddp, or set on_shards = True in the class {name} to promise that its step is right on rows')


def all_rows(own, shards):
    """Collect one number for each row of each parameter, in one message. `own` holds the numbers of this rank's rows."""
    if shards[0].group is None:
        return own
    numbers = own[0].new_zeros(sum(s.rows for s in shards))
    parts = numbers.split([s.rows for s in shards])
    for part, of_rank, s in zip(parts, own, shards):
        part[s.start:s.start + len(of_rank)] = of_rank
    dist.all_reduce(numbers, group=shards[0].group)
    return parts


def sharing(p):
    """Return (share, *arguments) for a stack of matrices such as p: share(function, stack, *arguments) equals function(stack),
    but each rank computes only some of the matrices."""
    shard = shard_of(p)
    if shard.group:
        return on_shards, shard.group, shard.rows
    return (on_copies, dist.group.WORLD) if dist.is_initialized() else (alone,)


def alone(function, x):
    return function(x)


def on_copies(function, x, group):
    """Apply function to a stack x, (N, n, m), that every rank of the group holds. Each rank computes a share of the matrices."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    share = -(-len(x) // ranks)
    padded = F.pad(x, (0, 0, 0, 0, 0, ranks * share - len(x)))
    gathered = torch.empty_like(padded)
    dist.all_gather_into_tensor(gathered, function(padded[rank * share:(rank + 1) * share]).contiguous(), group=group)
    return gathered[:len(x)]


def on_shards(function, x, group, n):
    """Apply function to N matrices of n rows, of which each rank holds some rows, x: (N, own, m), and return the same rows of the
    result. Each rank receives a share of the matrices whole, and sends their rows back."""
    ranks = dist.get_world_size(group)
    share, rows = -(-len(x) // ranks), -(-n // ranks)
    sent = F.pad(x, (0, 0, 0, rows - x.size(1), 0, ranks * share - len(x)))         # (ranks · share, rows, m)
    gathered = torch.empty_like(sent)
    dist.all_to_all_single(gathered, sent, group=group)
    gathered = function(gathered.unflatten(0, (ranks, share)).transpose(0, 1).flatten(1, 2)[:, :n])       # (share, n, m)
    gathered = F.pad(gathered, (0, 0, 0, ranks * rows - n)).unflatten(1, (ranks, rows)).transpose(0, 1).flatten(0, 1)
    dist.all_to_all_single(sent, gathered.contiguous(), group=group)
    return sent[:len(x), :x.size(1)]
