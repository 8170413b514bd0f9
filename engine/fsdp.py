"""
--parallel=fsdp: PyTorch's fully_shard spreads parameters, gradients and the optimizer's state over the ranks, as DTensors.

A checkpoint is one file of whole tensors. With --save_shards=True each rank writes its own rows in the background, as
safetensors in a folder, and no rank ever holds a whole tensor. ckpt.pt then names that folder and holds everything else;
tensors on device 'meta', which have a shape but no numbers, stand for the sharded ones. Any number of ranks can load either
kind, with or without fsdp. torch.distributed.checkpoint (DCP) reads and writes the shards.
"""
import logging
import os
import shutil
import warnings
from datetime import timedelta
from importlib import import_module
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, async_save, load
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.errors import check_weights, map_leaves
from engine.ranks import local
from model import init_weight


def device_mesh(device, shard_ranks):
    """Return the mesh of ranks for fully_shard. `shard_ranks` ranks share one copy of the model; 0: all ranks. With fewer, such
    as the GPUs of a node, there are several copies, whose gradients are averaged (HSDP)."""
    ranks = dist.get_world_size()
    shards = shard_ranks or ranks
    if ranks % shards:
        raise ValueError(f'shard_ranks={shard_ranks} does not divide the {ranks} ranks')
    shape, names = ((ranks,), ('shard',)) if shards == ranks else ((ranks // shards, shards), ('copy', 'shard'))
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


# ----------------------------------------------------------------------------- in memory

def local_shard(full, p):
    """Return this rank's rows of a whole tensor, as a DTensor like the parameter p; uninitialized if `full` is on 'meta'."""
    shard = distribute_tensor(full, p.device_mesh, p.placements, src_data_rank=None)        # None: without communication
    return torch.empty_like(shard, device=p.device_mesh.device_type) if full.is_meta else shard.clone()     # it may be a view


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

    checkpoint.update(read_tensors(checkpoint, own))
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


# ----------------------------------------------------------------------------- on the disk

def file_sizes(folder):
    """Return {file's name: bytes}"""
    return {name: os.path.getsize(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


class Writer(HuggingFaceStorageWriter):
    """DCP's safetensors writer. When all ranks have written their files, rank 0 calls commit({file's name: bytes})."""

    def __init__(self, folder, commit):
        super().__init__(folder, save_distributed=True)
        self.folder, self.commit = folder, commit

    def finish(self, metadata, results):                # DCP calls it on rank 0 alone, and raises its error on all
        sizes = file_sizes(self.folder)
        if sizes.keys() != {result.storage_data.relative_path for of_rank in results for result in of_rank}:
            raise OSError('the ranks see different files there: put out_dir on a disk that all of them share')
        self.commit(sizes)


class ShardSaver:
    """Save states in folders of shards, one at a time. Every rank has a ShardSaver, and all must call the same methods."""

    def __init__(self, run_folder, machine):
        import_module('safetensors')                    # if it is missing, fail now and not at the first checkpoint
        self.run_folder, self.machine, self.pending = run_folder, machine, None
        self.group = dist.new_group(backend='gloo', timeout=timedelta(days=1))          # for the background's messages

    def start(self, state, commit):
        """Copy the state, and return while it is being written. When all ranks have written their shards, rank 0 calls
        commit(contents of ckpt.pt). Raise OSError if the previous state could not be written."""
        self.wait()
        names = (f'shards-{state["iter"]}' + f'-{i}' * (i > 0) for i in count())
        unused = next(name for name in names if not os.path.exists(os.path.join(self.run_folder, name)))
        name, tensors, addresses = self.machine.gather(unused)[0], {}, set()

        def take(path, t):
            if not isinstance(t, DTensor):
                return t.clone() if torch.is_tensor(t) else t
            address = t.to_local().data_ptr()
            tensors[path] = t.clone() if address in addresses else t        # a file cannot hold a tied weight twice
            addresses.add(address)
            return torch.empty(t.shape, dtype=t.dtype, device='meta')

        rest = map_leaves(state, take)
        writer = Writer(os.path.join(self.run_folder, name),
                        lambda sizes: commit({**rest, 'shards': dict(folder=name, files=sizes)}))
        self.pending = writer.folder, async_save(tensors, storage_writer=writer, process_group=self.group)

    def wait(self):
        """Wait until the state passed to `start` is written."""
        if not self.pending:
            return
        (folder, written), self.pending = self.pending, None
        try:
            written.result()
        except CheckpointException as error:
            reason = str(next(iter(error.failures.values()))[0]).splitlines()[0]
            raise OSError(f'{folder} could not be written, an older checkpoint was kept if there is one: {reason}') from error


def remove_unused(run_folder, *in_use):
    """Remove shard folders that these checkpoints do not use."""
    keep = {state['shards']['folder'] for state in in_use if 'shards' in state}
    for name in os.listdir(run_folder):
        if name.startswith('shards-') and name not in keep:
            shutil.rmtree(os.path.join(run_folder, name), ignore_errors=True)


def read_tensors(checkpoint, place):
    """Copy a checkpoint, replacing each tensor by place(name, tensor). Fill sharded tensors from the shards, DTensors with this
    rank's rows. Raise ValueError for damaged shards."""
    shards, path, tensors = checkpoint.get('shards'), checkpoint['path'], {}

    def take(name, t):
        if not torch.is_tensor(t):
            return t
        placed = place(name, t)
        if t.is_meta:
            tensors[name] = placed
        return placed

    state = map_leaves(checkpoint, take)
    if not shards:
        return state
    folder = os.path.join(os.path.dirname(path), os.path.basename(shards['folder']))
    if not os.path.isdir(folder) or file_sizes(folder) != shards['files']:
        raise ValueError(f'{path} needs the folder {folder} as it was written, but files are missing there or have other sizes')
    logging.disable(logging.WARNING)                    # load logs the traceback of an error before it raises it
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings('ignore', '.*assuming the intent is to load in a single process')
            saved = {shards['saved_as'].get(name, name): t for name, t in tensors.items()}
            load(saved, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    except (Exception, CheckpointException) as error:
        raise ValueError(f'{folder} is damaged, or not of {path}') from error
    finally:
        logging.disable(logging.NOTSET)
    for name, t in tensors.items():
        if not local(t).isfinite().all():
            raise ValueError(f'{folder} is damaged: {name} is not finite')
    del state['shards']
    return state
