"""A model on the machine: with its weights, tuned, compiled, and with several ranks spread over them by DDP or FSDP."""
from importlib.util import find_spec

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from engine.checkpoint import load_weights
from engine.device import attention_backend_of, lacks_to_compile, tune_for_training
from engine.health import health
from engine.ranks import share_steps
from engine.runlog import working_time


def check_parallel(config, machine):
    """ValueError, before the ranks connect, for keys that go neither with each other nor with this machine"""
    if config['ddp_bf16'] and machine.device.type != 'cuda':
        raise ValueError(f'ddp_bf16=True: NCCL sends bfloat16, and the device is {machine.device.type}; leave it out')
    if machine.distributed and config['parallel'] == 'fsdp' and machine.dtype == torch.float16:
        raise ValueError('dtype=float16: parallel=fsdp has no loss scaling, choose bfloat16 or float32')
    if machine.distributed and config['parallel'] == 'fsdp' and config['save_shards'] and not find_spec('safetensors'):
        raise ValueError('save_shards=True: it needs the package safetensors: pip install safetensors')


class Models:
    """raw          the model with its parameters and their names
    compiled     the same, compiled if it can be, to evaluate it
    train        what a training step calls: it exchanges gradients between ranks
    attention    the name of its kernel
    lacking      why it could not be compiled, '' if it was or was not asked for

    `build`: a function that returns an untrained model; with fill=False, what init_weight fills has no memory. `pretrained`: a
    model to train instead. `checkpoint`: what find_checkpoint returned, None for an untrained model. `config` has the keys of
    train.py."""

    def __init__(self, build, config, machine, checkpoint=None, pretrained=None):
        self.config, self.machine, self.build = config, machine, build
        self.ddp, self.fsdp = (machine.distributed and config['parallel'] == kind for kind in ('ddp', 'fsdp'))
        self.lacking = lacks_to_compile(machine.device) if config['compile'] else ''
        compiled = config['compile'] and not self.lacking
        if self.fsdp:
            from engine.fsdp import init_sharded, load_sharded, shard_model
        self.raw = pretrained or (build(fill=False) if self.fsdp else build())
        self.raw.recompute = config['recompute']
        tune_for_training(machine.device, self.raw, config['attention_backend'], config['tf32'], config['deterministic'])
        self.attention = attention_backend_of(self.raw, machine.device, machine.dtype)
        if self.fsdp:
            shard_model(self.raw, machine.device, machine.dtype, config['reshard'], compiled, config['shard_ranks'])
        if checkpoint:
            (load_sharded if self.fsdp else load_weights)(self.raw, checkpoint)
        elif self.fsdp and not pretrained:
            init_sharded(self.raw)
        self.raw.to(machine.device)
        self.is_compiled = compiled
        if compiled:
            working_time.skip_compiling()
        self.compiled = torch.compile(self.raw) if compiled and not self.fsdp else self.raw
        self.train = self.compiled
        if self.ddp:
            torch._dynamo.config.optimize_ddp = config['ddp_overlap']
            self.train = DistributedDataParallel(self.compiled, gradient_as_bucket_view=True)
            self.train.broadcast_buffers = False        # they are the same on all ranks
            if config['ddp_bf16']:
                self.train.register_comm_hook(None, bf16_compress_hook)

    def share_steps(self, optimizer):
        """Lets the ranks share the work of the optimizer's steps."""
        if self.machine.distributed:
            share_steps(optimizer, sharded=self.fsdp)

    def sync_gradients(self, last):
        """Before a micro-batch: the ranks exchange gradients in its backward pass if it is the `last` of the iteration."""
        if self.ddp:
            self.train.require_backward_grad_sync = last
        elif self.fsdp:
            self.raw.set_requires_gradient_sync(last or self.config['reduce_each'])
            self.raw.set_requires_all_reduce(last)      # between copies of the model (shard_ranks)

    def health(self, x):
        """What engine/health.py computes of inputs x. {} on ranks other than the first, and with FSDP, whose blocks are compiled
        one by one and have their weights only while all ranks compute."""
        if self.fsdp or not self.machine.master:
            return {}
        with self.machine.autocast():
            return health(self.raw, x)

    def notes(self):
        """Lines to print before training"""
        notes = ['with parallel=fsdp the log has no residual_rms and no max_logits'] if self.fsdp else []
        if self.lacking:
            notes.append(f'this run is not compiled, and slower: {self.lacking}')
        elif self.is_compiled:
            notes.append('compiling: the first evaluation and the first iteration take longer')
        return notes

    def whole_model(self):
        """The model with all of its weights on rank 0, None on others. Every rank must call it."""
        if self.fsdp:
            from engine.fsdp import whole_copy
            return whole_copy(self.raw, lambda: self.build().to(self.machine.device), self.machine.master)
        return self.raw if self.machine.master else None
