"""The machine: a script's device and dtype, and its communication with other ranks."""
from engine.process import NotConnected, one_line

import ctypes
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import nullcontext, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


def pick_device(name, index=0):
    """Return the torch.device for auto | cpu | cuda | cuda:1 | mps …; 'cuda' gets this index. Raise ValueError if not there."""
    if name == 'auto':
        name = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
    try:
        device = torch.device(name, index) if name == 'cuda' else torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].partition('. ')[0][:200]
        raise ValueError(f'device={name!r} is not available ({reason}): choose auto, cpu, cuda or mps') from None
    return device


def device_name(device):
    """Return the GPU's name, or the CPU's with its cores and vector instructions, which affect a loss's last bits."""
    if device.type == 'cuda':
        return torch.cuda.get_device_name(device)
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration), open('/proc/cpuinfo', encoding='utf-8') as f:    # Linux says more there
        cpu = next(line.partition(':')[2].strip() for line in f if line.startswith('model name'))
    return f'{cpu} ({os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()})'


def pick_dtype(name, device):
    """Return the torch.dtype for auto | float32 | bfloat16 | float16; auto picks bfloat16 if the hardware computes in it."""
    if name != 'auto':
        if name not in DTYPES:
            raise ValueError(f'dtype={name!r}: choose one of auto, {", ".join(DTYPES)}')
        return DTYPES[name]
    if device.type == 'cuda':
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    capabilities = torch.cpu.get_capabilities() if device.type == 'cpu' and hasattr(torch.cpu, 'get_capabilities') else {}
    return torch.bfloat16 if capabilities.get('amx_bf16') or capabilities.get('avx512_bf16') else torch.float32


def tune_for_training(device, tf32=True, deterministic=False, compile=False):
    """Apply tf32 and deterministic, in the whole process, also where torch.compile is used. On a CPU, keep freed memory."""
    torch.set_float32_matmul_precision('high' if tf32 else 'highest')
    if deterministic:
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')     # cuBLAS reads it before the first product
    if deterministic != torch.are_deterministic_algorithms_enabled():           # changing it imports the compiler
        torch.use_deterministic_algorithms(deterministic)       # an operation without a deterministic kernel raises
    torch.utils.deterministic.fill_uninitialized_memory = False         # costs time, helps only debugging
    if compile:                                         # these take a second to import
        torch._inductor.config.deterministic = deterministic        # no autotuning, whose timings differ from run to run
        torch._dynamo.config.fail_on_recompile_limit_hit = True     # by default it silently stops compiling
        torch._dynamo.config.optimize_ddp = False       # its smaller graphs cost more than they hide
    if device.type == 'cpu':
        keep_freed_memory()


def why_not_compile(device):
    """Return why torch.compile cannot work on this device, or ''. It needs Python's headers, and a C++ compiler on a CPU, or a C
    compiler, for Triton, on a GPU."""
    if device.type not in ('cpu', 'cuda'):
        return ''
    language, key, name = ('C', 'CC', 'gcc') if device.type == 'cuda' else (
        'C++', 'CXX', 'clang++' if sys.platform == 'darwin' else 'g++')
    compiler, headers = os.environ.get(key, name), sysconfig.get_path('include')
    if not shutil.which(compiler):
        return f'there is no {language} compiler ({compiler}): install one, or name it by {key}'
    if not os.path.exists(os.path.join(headers, 'Python.h')):
        return f'there is no {headers}/Python.h: install python3-dev'
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([compiler, '-x', language.lower(), '-', '-shared', '-fPIC', '-I', headers, '-o', f'{folder}/a.so'],
                               input=f'#include <Python.h>\n#include <{"cmath" if language == "C++" else "math.h"}>\n', text=True,
                               capture_output=True)
        works = tried.returncode == 0 and os.path.exists(f'{folder}/a.so')
    said = tried.stderr.splitlines() or ['it writes nothing']
    first = next((line for line in said if 'error' in line), said[0])[:150]
    return '' if works else f'the {language} compiler {compiler} fails ({first}): name another by {key}'


def keep_freed_memory():
    """Let the activations of an iteration reuse the memory of the last one, in the whole process. By default, large freed blocks
    go back to the system, which zeroes each page when it is used again."""
    if sys.platform == 'linux':
        mallopt = getattr(ctypes.CDLL(None), 'mallopt', lambda *_: None)        # musl has none
        mallopt(-3, 2 ** 25)            # M_MMAP_THRESHOLD, 32 MB, the largest allowed
        mallopt(-1, 2 ** 31 - 1)        # M_TRIM_THRESHOLD


def autocast(device, dtype, cache=True):
    """Return a context whose forward passes compute in dtype; the weights keep theirs. `cache` keeps their casts."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype, cache_enabled=cache)


def differences(given):
    """Describe the differences between all ranks' dicts {name: value}."""
    lines = []
    for name in dict.fromkeys(name for values in given for name in values):
        first, *others = (values.get(name, 'none') for values in given)
        other = next((rank for rank, value in enumerate(others, 1) if value != first), None)
        if other:
            lines.append(f'{name} {first} on rank 0, {others[other - 1]} on rank {other}')
    return '; '.join(lines)


class Machine:
    """This process's rank, device and dtype. `distributed`: whether torchrun has started the process. `master`: whether this rank
    writes files and prints."""

    def __init__(self, device='auto', dtype='auto'):
        self.distributed = 'RANK' in os.environ
        names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')
        self.rank, local_rank, self.world_size = (int(os.environ[name]) for name in names) if self.distributed else (0, 0, 1)
        self.master = self.rank == 0
        self.device = pick_device(device, local_rank)
        if self.device.type == 'cuda':
            torch.cuda.set_device(self.device)          # compiled kernels run on the current one
        self.dtype = pick_dtype(dtype, self.device)

    def connect(self, backend='auto', given={}):
        """Connect the ranks. Raise NotConnected if that fails, and ValueError on every rank if their values in `given`,
        {name: value}, differ."""
        if not self.distributed:
            return
        backend = {'auto': 'nccl' if self.device.type == 'cuda' else 'gloo'}.get(backend, backend)
        try:
            store, *_ = next(dist.rendezvous('env://'))     # after a restart, torchrun's store holds outdated addresses
            store = dist.PrefixStore(os.environ.get('TORCHELASTIC_RESTART_COUNT', '0'), store)
            # compare first: ranks that differ, for example in their backend, would wait for each other forever
            store.set(f'given {self.rank}', json.dumps({what: repr(value) for what, value in given.items()}))
            if self.master:
                ranks = [json.loads(store.get(f'given {rank}')) for rank in range(self.world_size)]
                store.set('differ', differences(ranks))
            if differ := store.get('differ').decode():
                raise ValueError(f'not all ranks were given the same: {differ}')
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size,
                                    device_id=self.device if backend == 'nccl' else None)
            # for messages that must not wait for the GPU, and for long waits while rank 0 measures or saves
            self.control = dist.new_group(backend='gloo', timeout=timedelta(days=1))
        except RuntimeError as error:                   # dist.DistError is one too
            raise NotConnected(f'rank {self.rank} could not connect to the others, has one died? {one_line(error)}') from error

    def my_range(self, key, count):
        """Return this rank's range of `count` items. Raise ValueError, naming `key`, unless the ranks divide `count`."""
        if count % self.world_size:
            raise ValueError(f'{key}={count} is not divisible by the {self.world_size} ranks: make it a multiple of '
                             f'{self.world_size}')
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def autocast(self, cache=True):
        return autocast(self.device, self.dtype, cache)

    def to_device(self, *tensors):
        if self.device.type != 'cuda':
            return [t.to(self.device) for t in tensors]
        return [t.pin_memory().to(self.device, non_blocking=True) for t in tensors]

    def padded_shard(self, items):
        """Yield (item, True) for this rank's share of the items. Under fsdp ranks compute together, so all yield the same number:
        shorter shares are padded with (some item, False)."""
        for i in range(self.rank, math.ceil(len(items) / self.world_size) * self.world_size, self.world_size):
            yield items[i % len(items)], i < len(items)

    def sum(self, t, op=dist.ReduceOp.SUM):
        """Sum a tensor on the device over the ranks, or reduce it by `op`, in place."""
        if self.distributed:
            dist.all_reduce(t, op)
        return t

    def after_step(self, model):
        """Call model.after_step, after buffers that a module lists in max_over_ranks have got the largest values of all ranks."""
        if not self.distributed:
            return model.after_step()
        for module in model.modules():
            for name in getattr(module, 'max_over_ranks', ()):
                self.sum(getattr(module, name), dist.ReduceOp.MAX)
        from torch.distributed.tensor.experimental import implicit_replication  # here, for it takes a second
        with implicit_replication():                    # with fsdp, each rank holds some rows of a weight and all of a factor
            model.after_step()

    def largest(self, number):
        """Return the largest of the ranks' integers, without waiting for the GPU."""
        number = torch.tensor(number)
        if self.distributed:
            dist.all_reduce(number, dist.ReduceOp.MAX, group=self.control)
        return int(number)

    def gather(self, value):
        """Return a list of the ranks' values."""
        if not self.distributed:
            return [value]
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def end_together(self, error):
        """End all ranks if any rank has an error, not None: the first such rank raises its own."""
        failed = [rank for rank, has_failed in enumerate(self.gather(error is not None)) if has_failed]
        if failed and failed[0] == self.rank:
            raise error
        if failed:
            time.sleep(1)                               # torchrun ends all ranks when one has ended
            self.shutdown(1)

    def wait(self):
        """Wait until every rank gets here."""
        if self.distributed:
            dist.barrier(group=self.control)

    def shutdown(self, code):
        """End the process. With several ranks, skip the interpreter's shutdown: a gloo thread that
        frees its last tensor during the shutdown would abort the process."""
        if self.distributed:
            dist.destroy_process_group()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


class StopRequest:
    """Catch Ctrl-C, SIGTERM, and SIGHUP, which a closing terminal sends, unless nohup ignores it. `number` is the signal's
    number, 0 before any, and SIGTERM's when the `minutes` are over; 0: no limit. A second Ctrl-C ends the process at once; a
    second SIGTERM does not, because schedulers and torchrun may send it more than once."""

    def __init__(self, minutes=0.0):
        self.caught, self.deadline = 0, time.monotonic() + 60 * (minutes or math.inf)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.note)

    @property
    def number(self):
        return self.caught or (signal.SIGTERM if time.monotonic() > self.deadline else 0)

    def note(self, number, frame):
        self.caught = number
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)


PEAKS = {       # dense bf16, TFLOP/s, from the vendors' data sheets; a longer name comes before one that it contains
    'B200': 2250, 'H200': 989, 'H100 PCIe': 756, 'H100 NVL': 835, 'H100': 989, 'A100': 312, 'A10G': 70, 'A10': 125,
    'L40S': 362, 'L40': 181, 'L4': 121, 'RTX 4090': 165, 'RTX 3090': 71, 'MI300X': 1307,
}


def vendors_peak(device):
    """Return the vendor's peak FLOP/s for dense bf16 products on this GPU, or None for an unknown device."""
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else ''
    return next((1e12 * peak for key, peak in PEAKS.items() if key in name), None)


def state_bytes(optimizer):
    """Return the bytes of an optimizer's state."""
    return sum(value.nbytes for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
