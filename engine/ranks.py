"""What an optimizer's step needs where ranks share it: under DDP each has all parameters, under FSDP some rows of each."""
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional as F

from optim import AdamMini, Muon, decay, newton_schulz


class Shard(NamedTuple):
    """Which rows of a sharded parameter this rank holds. fully_shard makes equal chunks; the last may be shorter or empty."""
    start: int
    rows: int               # of the whole parameter
    numel: int
    group: dist.ProcessGroup


def shard_of(p):
    mesh, dim = p.device_mesh, p.device_mesh.ndim - 1   # with two dimensions the first one counts whole copies of the model
    return Shard(min(len(p), mesh.get_local_rank(dim) * -(-len(p) // mesh.size(dim))), len(p), p.numel(), mesh.get_group(dim))


def local(t):
    """This rank's part of a tensor that fully_shard has spread over the ranks, or else the whole tensor; in the same memory."""
    return t.to_local() if hasattr(t, 'to_local') else t


# ----------------------------------------------------------------------------- optimizers

def check_on_shards(optimizer):
    """ValueError for an optimizer that does not say that it handles shards, for --parallel=fsdp."""
    if not vars(type(optimizer)).get('on_shards', False):       # a promise is not inherited
        name = type(optimizer).__name__
        raise ValueError(f'parallel=fsdp: {name} may need whole matrices, and each rank has only some rows of them; use '
                         f'parallel=ddp, or set on_shards = True in the class {name} to promise that its step is right on rows')


def share_steps(optimizer, sharded):
    """Lets the ranks share the work of an optimizer's steps: each has some rows of every parameter if the model is `sharded`,
    and else all of them. ValueError as check_on_shards raises it."""
    if sharded:
        check_on_shards(optimizer)
        optimizer.local = local
    if isinstance(optimizer, AdamMini) and sharded:
        optimizer.update, optimizer.shards = adam_mini_update, lambda params: ([shard_of(p) for p in params],)
    if isinstance(optimizer, Muon):
        optimizer.orthogonalizer = ((lambda p: (newton_schulz_on_shards, shard_of(p).group, len(p))) if sharded else
                                    (lambda p: (newton_schulz_in_turns, dist.group.WORLD)))


def adam_mini_update(w, g, m, v, shards, lr, weight_decay, beta1, beta2, eps, bias1, bias2):
    """AdamMini.update if this rank holds only some rows of each parameter, its gradient and m. Each rank holds all of v."""
    decay(w, lr, weight_decay)
    torch._foreach_lerp_(m, g, 1 - beta1)
    squares = torch.zeros(sum(s.rows for s in shards), device=g[0].device)         # the sum of each row, for all parameters
    for gradient, s, rows in zip(g, shards, squares.split([s.rows for s in shards])):
        rows[s.start:s.start + len(gradient)] = gradient.square().flatten(1).sum(1) if gradient.dim() > 1 else gradient.square()
    dist.all_reduce(squares, group=shards[0].group)
    for weights, mean, moments, s, rows in zip(w, m, v, shards, squares.split([s.rows for s in shards])):
        moments.lerp_(rows.view(len(moments), -1).sum(1, keepdim=True) * len(moments) / s.numel, 1 - beta2)
        denominators = ((moments / bias2).sqrt() + eps).expand(-1, s.rows // len(moments)).flatten()
        denominators = denominators[s.start:s.start + len(weights)]
        weights.addcdiv_(mean, denominators.view(-1, *[1] * (weights.dim() - 1)), value=-lr / bias1)


def newton_schulz_in_turns(x, group):
    """newton_schulz of a stack (N, n, m) that every rank of the group holds. Each does its share of the matrices for all."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    share = -(-len(x) // ranks)
    every = F.pad(x, (0, 0, 0, 0, 0, ranks * share - len(x)))
    gathered = torch.empty_like(every)
    dist.all_gather_into_tensor(gathered, newton_schulz(every[rank * share:(rank + 1) * share]).contiguous(), group=group)
    return gathered[:len(x)]


def newton_schulz_on_shards(x, group, n):
    """newton_schulz of a stack (N, n, m) of which each rank of the group holds some rows, (N, own, m) → (N, own, m). Each rank
    gets its share of the matrices whole, and sends their rows back."""
    ranks = dist.get_world_size(group)
    share, rows = -(-len(x) // ranks), -(-n // ranks)
    sent = F.pad(x, (0, 0, 0, rows - x.size(1), 0, ranks * share - len(x)))         # (ranks · share, rows, m)
    gathered = torch.empty_like(sent)
    dist.all_to_all_single(gathered, sent, group=group)
    gathered = newton_schulz(gathered.unflatten(0, (ranks, share)).transpose(0, 1).flatten(1, 2)[:, :n])  # (share, n, m)
    gathered = F.pad(gathered, (0, 0, 0, ranks * rows - n)).unflatten(1, (ranks, rows)).transpose(0, 1).flatten(0, 1)
    dist.all_to_all_single(sent, gathered.contiguous(), group=group)
    return sent[:len(x), :x.size(1)]
