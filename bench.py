"""
Time training iterations on this machine, without data and evaluation; or optimizer steps, the data loader, or sampling:

    python bench.py config/train_quick.py
    python bench.py config/train_ldnt_sgd.py --archs=pre,s1,s5 --dtypes=float32,bfloat16 --compiles=True,False      # side by side
    python bench.py config/train_ldnt_sgd.py --optimizers=adamw,sgdw,lion,adam_mini,muon        # steps only, and their state
    python bench.py config/train_quick.py --loader=10000            # reading batches, compared with an iteration
    python bench.py config/train_quick.py --block_size=512 --sampling=500       # tokens per second, with and without the cache

Every config of train.py works. One iteration here is one micro-batch and one optimizer step. If gradient_accumulation_steps > 1,
an iteration of three micro-batches is timed too, and the last column extrapolates the speed of train.py.
"""
from configurator import ROOT, TRAIN, at_least, configure, parse_args

import functools
import itertools
import os
import re
import time
from contextlib import suppress
from statistics import median

import torch

from data.tokens import Tokens
from engine.device import autocast, pick_device, pick_dtype, state_bytes, tune_for_training, vendors_peak, why_not_compile
from engine.keys import check_keys, gpt_config, group_settings
from engine.step import training_step
from model import GPT, GPTConfig
from optim import make_optimizer, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
bench_iters = 20                    # timed iterations per variant; the variants take turns
bench_warmup = 5                    # untimed iterations first
archs = ''                          # files of config/arch, separated by commas; empty: the config's own architecture
dtypes = ''                         # values of dtype, separated by commas; empty: the config's own
compiles = ''                       # values of compile, separated by commas; empty: the config's own
optimizers = ''                     # optimizers, separated by commas: compare their steps instead of iterations
profile = ''                        # write a trace of three iterations to this file, for chrome://tracing or ui.perfetto.dev
loader = 0                          # time reading this many batches of data
sampling = 0                        # time sampling this many tokens, with and without the cache
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, TRAIN)
at_least(config, bench_iters=1, bench_warmup=0, loader=0, sampling=0)
device = pick_device(config['device'])
obstacle = why_not_compile(device)
if config['compile'] and obstacle and not sampling:
    print(f'not compiled, and therefore slower: {obstacle}')
    config['compile'] = False


def variants():
    """Return {label: config} for each combination of archs, dtypes, compiles and optimizers; the label says what differs."""
    axes, configs = dict(arch=archs, dtype=dtypes, compile=compiles, optimizer=optimizers), {}
    for values in itertools.product(*(text.split(',') for text in axes.values())):
        chosen = {axis: value for axis, value in zip(axes, values) if value}
        arguments = [os.path.join(ROOT, 'config', 'arch', f'{value}.py') if axis == 'arch' else f'--{axis}={value}'
                     for axis, value in chosen.items()]
        variant = parse_args(arguments, config)
        check_keys(variant)
        if variant['compile'] and obstacle and not sampling:
            raise ValueError(f'compiles={compiles}: {obstacle}')
        configs[' '.join(f'{axis}={value}' for axis, value in chosen.items()) or config['optimizer']] = variant
    return configs


class Variant:
    """A config's model, optimizer and batch, and the iteration to time"""

    def __init__(self, config):
        torch.manual_seed(config['seed'])
        self.raw_model = GPT(gpt_config(config)).to(device)
        self.raw_model.recompute = config['recompute']
        tune_for_training(device, config['tf32'], config['deterministic'])
        self.model = torch.compile(self.raw_model) if config['compile'] else self.raw_model
        self.dtype, self.grad_clip, c = pick_dtype(config['dtype'], device), config['grad_clip'], self.raw_model.config
        self.optimizer = make_optimizer(param_groups(self.raw_model, **group_settings(config)), {**config, 'dtype': self.dtype})
        tokens = torch.randint(c.vocab_size, (config['batch_size'], c.block_size + 1), device=device)
        self.x, self.y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.about = (f'{self.raw_model.num_params():,} parameters, {config["optimizer"]}, {str(self.dtype)[6:]}, '
                      f'compile={config["compile"]}')

    def iteration(self, micro_batches=1):
        training_step(self.model, self.raw_model, self.optimizer, [(self.x, self.y)] * micro_batches, self.grad_clip, self.dtype)


# ----------------------------------------------------------------------------- measuring

def timed(call):
    """Return the seconds that a call takes, including the device's work."""
    began = time.perf_counter()
    call()
    if device.type != 'cpu':
        getattr(torch, device.type).synchronize()
    return time.perf_counter() - began


def in_turns(calls):
    """Return {name: times} of the calls. They take turns, so that other work on the machine slows all of them equally."""
    times = {name: [] for name in calls}
    for i in range(bench_warmup + bench_iters):
        for name, call in calls.items():
            t = timed(call)
            if i >= bench_warmup:
                times[name].append(t)
    return times


def memory(field):
    """Return this process's memory in bytes: VmHWM, the peak, or RssAnon, excluding mapped files. NaN except on Linux."""
    with suppress(OSError), open('/proc/self/status', encoding='ascii') as f:
        return 1024 * next(int(line.split()[1]) for line in f if line.startswith(field))
    return float('nan')


def peak_memory():
    return torch.cuda.max_memory_allocated() if device.type == 'cuda' else memory('VmHWM')


def spread(times):
    return f'{1000 * min(times):.2f} … {1000 * max(times):.2f}'


def print_table(rows):
    """Print rows {header: text}, the first column aligned left and the others right."""
    rows = [dict(zip(rows[0], rows[0])), *rows]
    widths = [max(map(len, column)) for column in zip(*(row.values() for row in rows))]
    for first, *others in (row.values() for row in rows):
        print('  '.join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]))


# ----------------------------------------------------------------------------- iterations, or optimizer steps

def bench_variants(configs):
    """Print a table of the variants. Compare the FLOP/s of iterations with those of square matrix products on this machine."""
    torch._dynamo.config.recompile_limit = 8 * len(configs)       # the variants share their code
    size, micro_batches = 1024 if device.type == 'cpu' else 8192, config['gradient_accumulation_steps']
    calls, more_calls, built = {}, {}, {}
    for dtype in {} if optimizers else {pick_dtype(variant['dtype'], device) for variant in configs.values()}:
        a, b = torch.randn(2, size, size, device=device, dtype=dtype)
        more_calls['products', str(dtype)[6:]] = lambda a=a, b=b: a @ b
    before = peak_memory()
    for label, of_variant in configs.items():
        variant = built[label] = Variant(of_variant)
        calls[label] = variant.optimizer.step if optimizers else variant.iteration
        if optimizers:
            for p in variant.raw_model.parameters():
                p.grad = 1e-3 * torch.randn_like(p)
        elif micro_batches > 1:
            more_calls['three', label] = functools.partial(variant.iteration, 3)
        print(f'{label}: {variant.about}; first {"step" if optimizers else "iteration"} {timed(calls[label]):.1f} s')
    if profile:
        trace(next(iter(calls.values())))
    times = in_turns(calls | more_calls)
    peaks = {name[1]: 2 * size ** 3 / min(t) for name, t in times.items() if name[0] == 'products'}
    base, vendor, rows = median(next(iter(times.values()))), vendors_peak(device), []
    for label, variant in built.items():
        t, parameters, tokens = median(times[label]), variant.raw_model.num_params(), variant.y.numel()
        row = {'': label, 'ms': f'{1000 * t:.2f}', 'min … max': spread(times[label]), 'of the first': f'{t / base:.3f}'}
        rows.append(row)
        if optimizers:
            row['bytes a parameter'] = f'{state_bytes(variant.optimizer) / parameters:.3f}'
            continue
        speed = tokens * variant.raw_model.flops_per_token() / t
        of_products = speed / max(peaks.values())
        row |= {'tokens/s': f'{tokens / t:,.0f}', 'TFLOP/s': f'{speed / 1e12:.2f}',
                'of products': f'{of_products:.1%}' if of_products <= 1 else '–'}      # something disturbed the products
        row |= {'MFU': f'{speed / vendor:.1%}'} if vendor else {}
        if micro_batches > 1:
            whole = t + (micro_batches - 1) * (median(times['three', label]) - t) / 2
            row[f'train.py with {micro_batches}: tokens/s'] = f'{micro_batches * tokens / whole:,.0f}'
    if peaks:
        print(f'{device}: ' + ', '.join(f'{peak / 1e12:.2f} TFLOP/s in {dtype}' for dtype, peak in peaks.items())
              + ' by square products' + (f', {vendor / 1e12:.0f} in bfloat16 by its vendor' if vendor else ''))
    print_table(rows)
    print(f'peak memory {(peak_memory() - before) / 2 ** 30:.2f} GiB' + (' of all variants' if len(built) > 1 else ''))


KERNELS = {     # kind → pattern for names of kernels, or of operations on a CPU; the first match counts
    'attention': 'flash|fmha|attention|sdp', 'products': 'gemm|nvjet|cutlass|xmma|mm$|mm_|matmul',
    'compiled code (norms, activations, loss, optimizer)': 'triton|cpp_fused', 'other': '',
}


def trace(call):
    """Write a trace of three calls, and print each kind's share of the device's time."""
    open(profile, 'w').close()                          # fail if it cannot be written; the profiler would not
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            timed(call)
    profiler.export_chrome_trace(profile)
    print_shares(profiler, 3)
    print(profiler.key_averages().table(sort_by=f'self_{device.type}_time_total', row_limit=15, max_name_column_width=60))
    print(f'wrote {profile}')


def print_shares(profiler, calls):
    times = dict.fromkeys(KERNELS, 0.0)
    for event in profiler.key_averages():
        # on a GPU, rows of the CPU and of PyTorch's annotated regions count their kernels' time a second time
        if event.device_type.name.lower() == device.type and not event.is_user_annotation:
            kind = next(kind for kind, pattern in KERNELS.items() if re.search(pattern, event.key, re.IGNORECASE))
            times[kind] += event.self_cpu_time_total if device.type == 'cpu' else event.self_device_time_total
    for kind, t in times.items():
        print(f'share of {kind}: {t / sum(times.values()):.1%}, {t / 1000 / calls:.1f} ms')


# ----------------------------------------------------------------------------- data and samples

def bench_loader(config):
    """Time reading batches of an iteration's size. Print also how much this process's memory has grown since the 100th batch."""
    variant, size = Variant(config), config['batch_size']
    c = variant.raw_model.config
    data = Tokens(config['dataset'], 'train', c.block_size, c.vocab_size)
    step = median(in_turns({'': variant.iteration})[''])
    times = []
    for i in range(100 + loader):
        if i == 100:
            held = memory('RssAnon')
        times.append(timed(lambda i=i: data.shuffled(i * size, size, config['data_seed'])))
    t = median(times[100:])
    print(f'{data.path}, {os.path.getsize(data.path) / 2 ** 30:.2f} GiB: {1000 * t:.3f} ms a batch of {size * c.block_size:,} '
          f'tokens ({spread(times[100:])}), {t / step:.2%} of an iteration of {1000 * step:.1f} ms; '
          f'memory {(memory("RssAnon") - held) / 2 ** 20:+.1f} MiB over {loader:,} batches')


@torch.no_grad()
def bench_sampling(config):
    """Continue one token greedily, for 1 sample and for 8: with the KV cache, as sample.py does, and with a full pass over all
    tokens so far for each new token."""
    variant = Variant({**config, 'compile': False})
    model, size, rows = variant.raw_model.eval(), variant.raw_model.config.block_size, []

    def without_cache(idx):
        for _ in range(sampling):
            x = model.hidden(idx[:, -size:])[:, -1:]
            idx = torch.cat((idx, model.output(x)[0].argmax(-1)), dim=1)
        return idx

    for samples in (1, 8):
        idx, drawn, speeds = torch.randint(model.config.vocab_size, (samples, 1), device=device), [], []
        for draw in (lambda idx: model.generate(idx, sampling, temperature=0), without_cache):
            model.generate(idx, 5)                      # a warm-up
            with autocast(device, variant.dtype):
                speeds.append(samples * sampling / timed(lambda draw=draw: drawn.append(draw(idx))))
        rows.append({'tokens/s': f'{samples} at once', 'with the cache': f'{speeds[0]:,.0f}', 'without': f'{speeds[1]:,.0f}',
                     'times as fast': f'{speeds[0] / speeds[1]:.1f}',
                     'the same tokens': f'{(drawn[0] == drawn[1]).double().mean():.1%}'})
    print(f'{variant.about}; {sampling} tokens at block_size {size}')
    print_table(rows)


configs = variants()
if (len(configs) > 1) + bool(loader) + bool(sampling) > 1:
    raise ValueError('loader, sampling and variants (archs, dtypes, compiles, optimizers) cannot be combined: choose one')
if loader or sampling:
    (bench_loader if loader else bench_sampling)(*configs.values())
else:
    bench_variants(configs)
