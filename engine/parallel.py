"""What the loops need for several ranks that train one model, by DDP or FSDP, and for a compiled model"""
from importlib.util import find_spec

import torch


def check_parallel(config, machine):
    """Raise ValueError, before the ranks connect, for keys that contradict each other or this machine."""
    if config['ddp_bf16'] and machine.device.type != 'cuda':
        raise ValueError(f'ddp_bf16=True: NCCL sends bfloat16, and the device is {machine.device.type}; leave it out')
    if machine.distributed and config['parallel'] == 'fsdp' and machine.dtype == torch.float16:
        raise ValueError('dtype=float16: parallel=fsdp has no loss scaling, choose bfloat16 or float32')
    if machine.distributed and config['parallel'] == 'fsdp' and config['save_shards'] and not find_spec('safetensors'):
        raise ValueError('save_shards=True: it needs the package safetensors: pip install safetensors')


def model_notes(fsdp, is_compiled, obstacle):
    """Lines to print before training"""
    notes = ['with parallel=fsdp the log has no residual_rms and no max_logits'] if fsdp else []
    if obstacle:
        notes.append(f'this run is not compiled, and slower: {obstacle}')
    elif is_compiled:
        notes.append('compiling: the first evaluation and the first iteration take longer')
    return notes


def whole_model(model, build, machine):
    """Return the model with all of its weights on rank 0, None on others. `build` makes an untrained one. Every rank must call
    this."""
    if hasattr(model, 'unshard'):                       # fully_shard has spread it over the ranks
        from engine.fsdp import whole_copy
        return whole_copy(model, lambda: build().to(machine.device), machine.master)
    return model if machine.master else None
