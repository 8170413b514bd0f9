"""
--parallel=fsdp: PyTorch's fully_shard spreads parameters, gradients and the optimizer's state over the ranks, as DTensors.

A checkpoint is one file of whole tensors. Any number of ranks can load it, with or without fsdp.
"""
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.errors import check_weights, map_leaves
from model import init_weight


def local_shard(full, p):
    """Return this rank's rows of a whole tensor, as a DTensor like the parameter p."""
    return distribute_tensor(full, p.device_mesh, p.placements, src_data_rank=None).clone()     # None: without communication


def assign(model, new):
    """Replace parameters and buffers by {id(old): new}. Tied parameters stay tied (torch's set_model_state_dict would untie them
    on 'meta'), and frozen ones stay frozen."""
    model.load_state_dict({name: new.get(id(old), old) for name, old in model.state_dict(keep_vars=True).items()}, assign=True)


def init_sharded(model):
    """Initialize a sharded model that was built with fill=False. Each rank draws one whole parameter at a time, as a single
    process does, and keeps its rows."""
    assign(model, {id(p): nn.Parameter(local_shard(init_weight(name, p.shape, model.config, model.init_seed), p))
                   for name, p in model.named_parameters() if p.is_meta})


def load_sharded(model, checkpoint):
    """Load a checkpoint's weights into a sharded model, which may be on 'meta'. Afterwards the checkpoint holds only this rank's
    rows of the weights, and of optimizer tensors with their parameter's shape. Raise ValueError for another model's weights."""
    wanted = model.state_dict(keep_vars=True)
    check_weights(wanted, checkpoint['model'], checkpoint['path'])
    param_of = {f'model.{name}': t for name, t in wanted.items() if isinstance(t, DTensor)}
    for group in checkpoint['optimizer']['param_groups']:
        param_of |= {f'optimizer.state.{i}': wanted.get(name) for i, name in zip(group['params'], group['param_names'])}

    def own(name, t):
        p = param_of.get(name, param_of.get('.'.join(name.split('.')[:3])))         # of optimizer.state.<number>.<key>
        return t if p is None or t.shape != p.shape else local_shard(t, p)

    checkpoint.update(map_leaves(checkpoint, lambda name, t: own(name, t) if torch.is_tensor(t) else t))
    assign(model, {id(t): nn.Parameter(checkpoint['model'][name]) if isinstance(t, DTensor) else checkpoint['model'][name]
                   for name, t in wanted.items()})


def whole(state, keep):
    """Copy nested dicts and lists, gathering each sharded tensor on the CPU if `keep`; else None replaces it. Every rank must
    call this. Ranks hold one whole tensor at a time. torch's get_optimizer_state_dict handles only state of parameters."""
    def gather(name, t):
        if not isinstance(t, DTensor):
            return t
        full = t.full_tensor()
        return full.cpu() if keep else None

    return map_leaves(state, gather)


def whole_copy(model, build, machine):
    """On rank 0, return a model from `build()` with a sharded model's weights; None elsewhere. Every rank must call this."""
    weights = whole(model.state_dict(), keep=machine.master)
    if machine.master:
        copy = build().to(machine.device)
        copy.load_state_dict(weights)
        return copy
