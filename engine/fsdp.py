"""
--parallel=fsdp: PyTorch's fully_shard spreads parameters, gradients and the optimizer's state over the ranks. Checkpoints hold
whole tensors or, with save_shards, shards. A run continues from both on any number of ranks, with or without fsdp.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from engine.errors import check_weights, map_leaves
from engine.ranks import shard_of
from engine.shards import read_shards
from model import init_weight


def device_mesh(device, shard_ranks):
    """The ranks as fully_shard takes them. shard_ranks: how many share a copy of the model, 0 for all. With fewer, such as the
    GPUs of a node, there are several copies, whose gradients are averaged (HSDP)."""
    ranks = dist.get_world_size()
    shards = shard_ranks or ranks
    if ranks % shards:
        raise ValueError(f'shard_ranks={shard_ranks} does not divide the {ranks} ranks')
    shape, names = ((ranks,), ('shard',)) if shards == ranks else ((ranks // shards, shards), ('copy', 'shard'))
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def init_sharded(model):
    """Fills the weights of a sharded model that was built with fill=False. Each rank draws one whole parameter at a time, as a
    single process does, and keeps its rows."""
    own = {}
    for name, p in model.named_parameters():
        if p.to_local().is_meta:
            own[id(p)] = nn.Parameter(local_shard(init_weight(name, p.shape, model.config, model.init_seed), p))
    state = model.state_dict(keep_vars=True)
    model.load_state_dict({name: own.get(id(value), value) for name, value in state.items()}, assign=True)


def whole(state, keep):
    """Copies nested dicts, lists and tensors, with each sharded tensor whole and on the CPU if `keep`, else None. Every rank must
    call it. Only one tensor at a time is whole on all ranks."""
    def gather(name, t):
        if not isinstance(t, DTensor):
            return t
        full = t.full_tensor()
        return full.cpu() if keep else None

    return map_leaves(state, gather)


def local_shard(full, p):
    """This rank's rows of a whole tensor, sharded as the parameter p is. Of a tensor on device 'meta' they have no values yet."""
    start, device = shard_of(p).start, p.device_mesh.device_type
    rows = full[start:start + len(p.to_local())]
    rows = torch.empty_like(rows, device=device) if full.is_meta else rows.to(device, copy=True)
    return DTensor.from_local(rows, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def load_sharded(model, checkpoint):
    """Loads the weights of a checkpoint into a sharded model, which may be on device 'meta'. From a mapped file it reads only
    this rank's rows. ValueError if the weights belong to another model."""
    params, weights, path = model.state_dict(keep_vars=True), checkpoint['model'], checkpoint['path']
    check_weights(params, weights, path)
    own = {id(p): nn.Parameter(local_shard(weights[name], p)) for name, p in params.items() if isinstance(p, DTensor)}
    if 'shards' in checkpoint:
        read_shards(path, checkpoint['shards'], {f'model.{name}': own[id(p)] for name, p in params.items() if id(p) in own})
    model.load_state_dict({name: own.get(id(value), weights[name]) for name, value in params.items()}, assign=True)


def own_optimizer_state(checkpoint, optimizer):
    """The optimizer's state_dict from a checkpoint, with this rank's rows of tensors that have their parameter's shape"""
    state = checkpoint['optimizer']
    params = {name: p for group in optimizer.param_groups for name, p in zip(group['param_names'], group['params'])}
    names = {i: name for group in state['param_groups'] for i, name in zip(group['params'], group['param_names'])}

    def own(value, p):
        return local_shard(value, p) if torch.is_tensor(value) and value.shape == p.shape else value

    states = {i: {key: own(value, params[names[i]]) for key, value in state['state'][i].items()} for i in names
              if i in state['state']}
    if 'shards' in checkpoint:
        tensors = {f'optimizer.state.{i}.{key}': t for i, s in states.items() for key, t in s.items() if isinstance(t, DTensor)}
        read_shards(checkpoint['path'], checkpoint['shards'], tensors)
    return {**state, 'state': state['state'] | states}


def whole_copy(model, empty, master):
    """On rank 0, a new model from `empty()` with the weights of a sharded model; elsewhere None. Every rank must call it."""
    weights = whole(model.state_dict(), keep=master)
    if master:
        copy = empty()
        copy.load_state_dict(weights)
        return copy
