"""
--save_shards=True: under fsdp each rank writes its own rows, in the background, and no rank ever holds a whole tensor.

ckpt.pt then names a folder of safetensors files, written by torch.distributed.checkpoint, and holds all except the sharded
tensors. Tensors on device 'meta', which have a shape but no numbers, stand in their place. Any number of ranks can read it.
"""
import logging
import os
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, async_save, load
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from engine.errors import map_leaves

FILE_BYTES = 2 ** 30                # a rank writes about this much at a time, because each file is built in memory first


def sizes(folder):
    """{file's name: bytes}"""
    return {name: os.path.getsize(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


class ShardWriter:
    """Writes folders of shards beside ckpt.pt, one at a time. Every rank has one, and all must call the same methods."""

    def __init__(self, run_folder, machine):
        self.run_folder, self.machine = run_folder, machine
        self.group = dist.new_group(backend='gloo', timeout=timedelta(days=1))          # for the background's messages
        self.background, self.pending = ThreadPoolExecutor(1), None

    def unused(self, it):
        name, tries = f'shards-{it}', 1
        while os.path.exists(os.path.join(self.run_folder, name)):
            name, tries = f'shards-{it}-{tries}', tries + 1
        return name

    def start(self, state, commit):
        """Copies the state, and returns while it is being written. When all ranks have written their shards,
        rank 0 calls commit(what ckpt.pt holds). OSError if the state before this one could not be written."""
        self.wait()
        folder, tensors, seen = os.path.join(self.run_folder, self.machine.gather(self.unused(state['iter']))[0]), {}, set()

        def take(name, t):
            if not isinstance(t, DTensor):
                return t.clone() if torch.is_tensor(t) else t
            rows = t.to_local().data_ptr()
            tensors[name] = t.clone() if rows in seen else t        # a file cannot hold a tied weight twice
            seen.add(rows)
            return torch.empty(t.shape, dtype=t.dtype, device='meta')

        rest = map_leaves(state, take)
        ends = accumulate(t.numel() * t.element_size() // self.machine.world_size for t in tensors.values())
        numbers = {name: 1 + end // FILE_BYTES for name, end in zip(tensors, ends)}
        writer = HuggingFaceStorageWriter(folder, fqn_to_index_mapping=numbers, save_distributed=True)
        saved = async_save(tensors, storage_writer=writer, process_group=self.group)

        def finish():
            saved.result()
            seen = [None] * self.machine.world_size
            dist.all_gather_object(seen, sizes(folder), group=self.group)
            if any(listing != seen[0] for listing in seen):
                raise OSError(f'{folder} is not the same on all ranks: put out_dir on a disk that all of them share')
            if self.machine.master:
                commit({**rest, 'shards': dict(folder=os.path.basename(folder), files=sizes(folder))})

        self.pending = folder, self.background.submit(finish)

    def wait(self):
        """Waits until what was started is written."""
        if not self.pending:
            return
        (folder, written), self.pending = self.pending, None
        try:
            written.result()
        except CheckpointException as error:
            reason = str(next(iter(error.failures.values()))[0]).splitlines()[0]
            raise OSError(f'{folder} could not be written, an older checkpoint was kept if there is one: {reason}') from error


def remove_unused(run_folder, *in_use):
    """Removes the folders of shards that these checkpoints do not name."""
    keep = {state['shards']['folder'] for state in in_use if 'shards' in state}
    for name in os.listdir(run_folder):
        if name.startswith('shards-') and name not in keep:
            shutil.rmtree(os.path.join(run_folder, name), ignore_errors=True)


def read_shards(path, shards, tensors):
    """Fills tensors or DTensors, {name: tensor}, from the shards that the checkpoint in `path` names. Of a DTensor it reads only
    this rank's rows. ValueError if the shards are damaged."""
    folder = os.path.join(os.path.dirname(path), os.path.basename(shards['folder']))
    if not os.path.isdir(folder) or sizes(folder) != shards['files']:
        raise ValueError(f'{path} needs the folder {folder} as it was written, but files are missing there, or have another size')
    logging.disable(logging.WARNING)                    # load logs the traceback of what it then raises
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
        if not (t.to_local() if isinstance(t, DTensor) else t).isfinite().all():
            raise ValueError(f'{folder} is damaged: {name} is not finite')


def whole_state(path, state, device):
    """A checkpoint with all of its tensors, which it reads from its shards."""
    tensors = {}

    def empty(name, t):
        return tensors.setdefault(name, torch.empty_like(t, device=device)) if torch.is_tensor(t) and t.is_meta else t

    state = map_leaves(state, empty)
    read_shards(path, state.pop('shards'), tensors)
    return state
