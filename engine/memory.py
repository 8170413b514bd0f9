"""What a script would need of memory at least, so that sizes beyond the machine are refused before it is asked for."""
import math
import os
from dataclasses import replace

import torch

LIMITS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')      # of a container


def memory_of(device):
    """Bytes of memory that a device has: of a GPU its own, of others the machine's, or as much as its container may use."""
    if device.type == 'cuda':
        return torch.cuda.get_device_properties(device).total_memory
    sizes = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
    for path in filter(os.path.exists, LIMITS):
        with open(path, encoding='ascii') as f:
            text = f.read().strip()
        sizes += [int(text)] if text.isdecimal() else []        # 'max' is none
    return min(sizes)


def count_parameters(task):
    """The parameters of a task's model, from models of one and of two blocks that have no memory: all blocks but the first are
    taken to be alike. Infinity for sizes beyond all numbers."""
    config, counts = task.config, []
    more = dict(pos='learned') if config.pos == 'rope' else {}          # RoPE's tables need memory even on device meta
    try:
        with torch.device('meta'):
            for n_layer in (1, 2):
                model = task.Model(replace(config, n_layer=n_layer, **more))
                counts.append(sum(p.numel() for name, p in model.named_parameters() if not (more and name == 'wpe.weight')))
    except (RuntimeError, OverflowError):
        return math.inf
    return counts[0] + (config.n_layer - 1) * (counts[1] - counts[0])


def check_memory(task, device, batch=0, training=True, recompute=False, ranks=1, **more):
    """ValueError if a task's model and `batch` windows or images at once need more memory than the device has: at least the
    weights in fp32, with their gradients and one number of the optimizer's state if it is `training`, and what the backward pass
    needs of the blocks. `ranks` share the weights. `more`: bytes of what else is needed, by its name."""
    c = task.config
    tokens, width = batch * c.block_size, c.n_embd
    of_block = 4 * width if recompute else 2 * (6 * width + (c.d_ff or 4 * width))      # x in fp32, or all factors in bf16
    inputs = 16 * tokens if task.unit == 'tokens' else 4 * batch * c.channels * c.image_size ** 2
    weights = (12 if training else 4) * count_parameters(task)
    kept = tokens * c.n_layer * of_block if training else 0
    check_sizes({
        'weights': weights / ranks, f'batches of {batch:,} {task.windows}': inputs + kept,
        'tables of RoPE': 4 * c.block_size * c.head_dim if c.pos == 'rope' else 0, **more}, device)


def of_samples(config, count, given, new, dtype):
    """{what: bytes} that `count` continuations of `given` tokens by `new` ones need: tokens, keys and values in a cache, and the
    logits of one token."""
    c, length = config, given + new
    cached = 2 * c.n_layer * (c.n_kv_head or c.n_head) * c.head_dim * min(c.block_size, length)         # numbers
    return {f'{count:,} samples of {new:,} tokens': count * (8 * length + dtype.itemsize * cached + 4 * c.vocab_size)}


def check_sizes(parts, device):
    """ValueError if these parts, {what: bytes}, together need more memory than the device has."""
    need, has = sum(parts.values()), memory_of(device)
    if need > has:
        largest = max(parts, key=parts.get)
        raise ValueError(f'this needs at least {need / 2 ** 30:,.1f} GiB of memory, of which {parts[largest] / 2 ** 30:,.1f} are '
                         f'for {largest}, and {device} has {has / 2 ** 30:,.1f} GiB: choose smaller sizes')
