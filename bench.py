"""
Times an iteration of training on this machine, without data and evaluation; or optimizer steps, the data loader or sampling:

    python bench.py config/train_quick.py
    python bench.py config/train_ldnt_sgd.py --archs=pre,s1,s5 --dtypes=float32,bfloat16 --compiles=True,False      # side by side
    python bench.py config/train_ldnt_sgd.py --optimizers=adamw,sgdw,lion,adam_mini,muon        # steps only, and their state
    python bench.py config/train_quick.py --loader=10000            # reading batches, compared with an iteration
    python bench.py config/train_quick.py --block_size=512 --sampling=500       # tokens per second, with and without the cache

It takes every config of train.py. One iteration here is one micro-batch and one optimizer step. Where an iteration of train.py
has several micro-batches, they are timed without a step too, and the last column has the speed that follows for train.py.
"""
from configurator import ROOT, TRAIN, at_least, configure, parse_args

import itertools
import os
import re
import resource
import statistics
import time

import torch

from data.tokens import Tokens
from engine.device import autocast, lacks_to_compile, pick_device, pick_dtype, state_bytes, tune_for_training, vendors_peak
from engine.keys import gpt_config
from engine.step import training_step
from model import GPT, GPTConfig
from optim import OPTIMIZERS, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
bench_iters = 20                    # timed iterations of each variant; the variants take turns
bench_warmup = 5                    # iterations before them, not timed
archs = ''                          # files of config/arch, separated by commas; empty: the config's own architecture
dtypes = ''                         # values of dtype, separated by commas; empty: the config's own
compiles = ''                       # values of compile, separated by commas; empty: the config's own
optimizers = ''                     # optimizers, separated by commas: compare their steps instead of iterations
profile = ''                        # a file for the trace of three iterations, for chrome://tracing or ui.perfetto.dev
loader = 0                          # time the reading of this many batches of the data
sampling = 0                        # time the drawing of this many tokens, with the cache and without it
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, TRAIN)
at_least(config, bench_iters=1, bench_warmup=0, loader=0, sampling=0, batch_size=1, gradient_accumulation_steps=1,
         learning_rate=0, weight_decay=0, grad_clip=0)
names = optimizers.split(',') if optimizers else [config['optimizer']]
for name in names:
    if name not in OPTIMIZERS:
        raise ValueError(f'{"optimizers" if optimizers else "optimizer"}={name!r}: choose among {", ".join(OPTIMIZERS)}')
model_config = gpt_config(config)
modes = [key for key in ('optimizers', 'loader', 'sampling') if config[key]]
if len(modes) > 1:
    raise ValueError(f'{" and ".join(modes)} cannot be combined: choose one')
device = pick_device(config['device'])
lacking = lacks_to_compile(device)
if config['compile'] and lacking and not sampling:
    print(f'this is not compiled, and slower: {lacking}')
    config['compile'] = False


def build(config, name):
    """The model of a config, and the optimizer of this name for it. ValueError for one of `compiles` that cannot be."""
    if config['compile'] and lacking:
        raise ValueError(f'compiles={compiles}: {lacking}')
    torch.manual_seed(config['seed'])
    model = GPT(gpt_config(config)).to(device)
    tune_for_training(device, model, *(config[key] for key in ('attention_backend', 'tf32', 'deterministic')))
    model.recompute = config['recompute']
    return model, OPTIMIZERS[name](param_groups(model, config['weight_decay'], keys={**config, 'optimizer': name}),
                                   {**config, 'dtype': pick_dtype(config['dtype'], device)})


def timed(call):
    """Seconds that a call takes, including the device's work."""
    began = time.perf_counter()
    call()
    if device.type != 'cpu':
        getattr(torch, device.type).synchronize()
    return time.perf_counter() - began


def in_turns(calls, repeats):
    """{name: times} of the calls, which take turns, so that other work on the machine slows all of them alike."""
    times = {name: [] for name in calls}
    for i in range(config['bench_warmup'] + repeats):
        for name, call in calls.items():
            t = timed(call)
            if i >= config['bench_warmup']:
                times[name].append(t)
    return times


def spread(times):
    return f'{1000 * min(times):.2f} … {1000 * max(times):.2f}'


# ----------------------------------------------------------------------------- the optimizers' steps

def bench_optimizers():
    """The median step of each optimizer, on the same gradients, and the bytes of its state per parameter."""
    calls, state = {}, {}
    for name in names:
        model, optimizer = build(config, name)
        for p in model.parameters():
            p.grad = 1e-3 * torch.randn_like(p)
        print(f'{name}: first step {timed(optimizer.step):.1f} s')
        state[name] = state_bytes(optimizer) / model.num_params()
        calls[name] = optimizer.step
    times = in_turns(calls, config['bench_iters'])
    base = statistics.median(times[names[0]])
    print(f'{model.num_params():,} parameters on {device}, compile={config["compile"]}\n'
          f'{"optimizer":12}{"ms a step":>11}{"of " + names[0]:>14}{"min … max":>22}{"bytes a parameter":>20}')
    for name in names:
        median = statistics.median(times[name])
        print(f'{name:12}{1000 * median:11.2f}{median / base:14.2f}{spread(times[name]):>22}{state[name]:20.3f}')


# ----------------------------------------------------------------------------- whole iterations

def products(dtype):
    """A square matrix product as a function, of the size that is fastest per FLOP, and its FLOPs."""
    fastest = {}
    for size in (1024,) if device.type == 'cpu' else (4096, 8192, 16384):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        times = [timed(lambda: a @ b) for _ in range(7)][2:]
        fastest[2 * size ** 3 / statistics.median(times)] = (lambda a=a, b=b: a @ b), 2 * size ** 3
    return fastest[max(fastest)]


def variants():
    """{label: config} of every combination of archs, dtypes and compiles; the label says what differs."""
    axes = [('arch', archs), ('dtype', dtypes), ('compile', compiles)]
    configs = {}
    for values in itertools.product(*(text.split(',') for _, text in axes)):
        arguments = [os.path.join(ROOT, 'config', 'arch', f'{value}.py') if axis == 'arch' else f'--{axis}={value}'
                     for (axis, _), value in zip(axes, values) if value]
        label = ' '.join(f'{axis}={value}' for (axis, _), value in zip(axes, values) if value)
        configs[label or config['optimizer']] = parse_args(arguments, config)
    return configs


def iteration(config):
    """One iteration of a variant and two micro-batches without a step, as functions; the tokens and FLOPs of a micro-batch, and
    the model's number of parameters."""
    dtype = pick_dtype(config['dtype'], device)
    raw_model, optimizer = build(config, config['optimizer'])
    model = torch.compile(raw_model) if config['compile'] else raw_model
    tokens = torch.randint(raw_model.config.vocab_size, (config['batch_size'], raw_model.config.block_size + 1), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def call():
        training_step(model, raw_model, optimizer, [(x, y)], config['grad_clip'], dtype)

    def two_micro_batches():                            # the second one adds its gradients to those of the first
        for _ in range(2):
            with autocast(device, dtype, cache=not raw_model.recompute):
                loss = model(x, y)[1]
            loss.backward()
        optimizer.zero_grad(set_to_none=True)

    return call, two_micro_batches, y.numel(), y.numel() * raw_model.flops_per_token(), raw_model.num_params()


def peak_memory():
    """Peak bytes: of the GPU's tensors since the last reset, or without a GPU of this process."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def share(x):
    """A share of what products reach; above 1 something disturbed them, and it means nothing."""
    return f'{x:.1%}' if x <= 1 else '–'


def bench_iterations():
    if profile:
        open(profile, 'w').close()                      # raises if it cannot be written; the profiler would not
    configs = variants()
    torch._dynamo.config.recompile_limit = 8 * len(configs)       # the variants share their code
    of_products = {str(dtype)[6:]: products(dtype) for dtype in {pick_dtype(c['dtype'], device) for c in configs.values()}}
    before = torch.cuda.memory_allocated() if device.type == 'cuda' else peak_memory()
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats()
    calls, more_calls, tokens, flops = {}, {}, {}, {}
    for label, of_variant in configs.items():
        calls[label], more_calls['two', label], tokens[label], flops[label], size = iteration(of_variant)
        print(f'{label}: {size:,} parameters, {of_variant["optimizer"]}, {str(pick_dtype(of_variant["dtype"], device))[6:]}, '
              f'compile={of_variant["compile"]}; first iteration {timed(calls[label]):.1f} s')
    if profile:
        trace(next(iter(calls.values())))
    count = config['gradient_accumulation_steps']
    more_calls = more_calls if count > 1 else {}
    more_calls |= {('products', dtype): call for dtype, (call, _) in of_products.items()}
    times = in_turns(calls | more_calls, config['bench_iters'])
    peaks = {dtype: flops / min(times['products', dtype]) for dtype, (_, flops) in of_products.items()}
    fastest, vendor = max(peaks.values()), vendors_peak(device)
    print(f'{device}: ' + ', '.join(f'{peak / 1e12:.2f} TFLOP/s in {dtype}' for dtype, peak in peaks.items()) +
          ' by square products' + (f', {vendor / 1e12:.0f} in bfloat16 by its vendor' if vendor else ''))
    width = max(map(len, calls)) + 2
    base = statistics.median(next(iter(times.values())))
    print(f'{"":{width}}{"ms":>9}{"min … max":>20}{"of the first":>14}{"tokens/s":>11}{"TFLOP/s":>9}{"of products":>13}' +
          (f'{"MFU":>7}' if vendor else '') + (f'{f"train.py with {count}: tokens/s":>32}' if count > 1 else ''))
    for label in calls:
        median = statistics.median(times[label])
        speed = flops[label] / median
        per_iter = median + (count - 1) * statistics.median(times['two', label]) / 2 if count > 1 else median
        print(f'{label:{width}}{1000 * median:9.1f}{spread(times[label]):>20}{median / base:14.3f}{tokens[label] / median:11,.0f}'
              f'{speed / 1e12:9.2f}{share(speed / fastest):>13}' + (f'{speed / vendor:7.1%}' if vendor else '') +
              (f'{count * tokens[label] / per_iter:32,.0f}' if count > 1 else ''))
    print(f'peak memory {(peak_memory() - before) / 2 ** 30:.2f} GiB' + (' of all variants' if len(calls) > 1 else ''))


def trace(call):
    call()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == 'cuda':
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(3):
            timed(call)
    profiler.export_chrome_trace(profile)
    shares(profiler, 3)
    print(profiler.key_averages().table(sort_by=f'self_{device.type}_time_total', row_limit=15, max_name_column_width=60))
    print(f'wrote {profile}')


KERNELS = {     # which kernels, or on a CPU which operations, count as what; the first that fits
    'attention': 'flash|fmha|attention|sdp', 'products': 'gemm|nvjet|cutlass|xmma|mm$|mm_|matmul',
    'compiled code (norms, activations, loss, optimizer)': 'triton|cpp_fused', 'other': '',
}


def shares(trace_of_kernels, iterations):
    """Prints how the device's own time is divided, with the milliseconds of an iteration."""
    times = dict.fromkeys(KERNELS, 0.0)
    for event in trace_of_kernels.key_averages():
        # on a GPU, the CPU's rows hold their kernels' time once more, and so do the names that PyTorch gives to regions
        if event.device_type.name.lower() == device.type and not event.is_user_annotation:
            kind = next(kind for kind, pattern in KERNELS.items() if re.search(pattern, event.key, re.IGNORECASE))
            times[kind] += event.self_cpu_time_total if device.type == 'cpu' else event.self_device_time_total
    for kind, t in times.items():
        print(f'share of {kind}: {t / sum(times.values()):.1%}, {t / 1000 / iterations:.1f} ms')


# ----------------------------------------------------------------------------- data and samples

def bench_loader():
    """The median time of reading a batch of an iteration's size, and by how much the memory of this process
    has grown since the 100th batch."""
    data = Tokens(config['dataset'], 'train', model_config.block_size, model_config.vocab_size)
    call, _, count, _, _ = iteration(config)
    step = statistics.median(in_turns({'': call}, config['bench_iters'])[''])
    times, size = [], config['batch_size']
    for i in range(100 + config['loader']):
        if i == 100:
            times, held = [], own_memory()
        times.append(timed(lambda i=i: data.shuffled(i * size, size, config['data_seed'])))
    median = statistics.median(times)
    print(f'{data.path}, {os.path.getsize(data.path) / 2 ** 30:.2f} GiB: {1000 * median:.3f} ms a batch of {count:,} tokens '
          f'({spread(times)}), {median / step:.2%} of an iteration of {1000 * step:.1f} ms; '
          f'memory {(own_memory() - held) / 2 ** 20:+.1f} MiB over {len(times):,} batches')


def own_memory():
    """Bytes of memory of this process, without mapped files. Outside of Linux: its peak."""
    if not os.path.exists('/proc/self/status'):
        return peak_memory()
    with open('/proc/self/status', encoding='ascii') as f:
        return 1024 * next(int(line.split()[1]) for line in f if line.startswith('RssAnon'))


@torch.no_grad()
def bench_sampling():
    """Greedy continuation of one token, for 1 sample and for 8: with the cache of keys and values, and without it, by a pass over
    all tokens so far. Not compiled, as in sample.py."""
    torch.manual_seed(config['seed'])
    model, dtype = GPT(model_config).to(device), pick_dtype(config['dtype'], device)
    tune_for_training(device, model.eval(), config['attention_backend'], config['tf32'])
    new, size = config['sampling'], model.config.block_size

    def anew(idx):
        for _ in range(new):
            x = model.hidden(idx[:, -size:])[:, -1:]
            idx = torch.cat((idx, model.output(x)[0].argmax(-1)), dim=1)
        return idx

    ways = {'with the cache': lambda idx: model.generate(idx, new, temperature=0), 'without': anew}
    print(f'{model.num_params():,} parameters on {device}, {str(dtype)[6:]}, {new} tokens at block_size {size}')
    for samples in (1, 8):
        idx = torch.randint(model.config.vocab_size, (samples, 1), device=device)
        drawn, took = {}, {}
        for way, draw in ways.items():
            def call(way=way, draw=draw):
                with autocast(device, dtype):
                    drawn[way] = draw(idx)
            model.generate(idx, 5)                      # a warm-up before each way
            took[way] = timed(call)
        same = (drawn['with the cache'] == drawn['without']).double().mean()
        speeds = ', '.join(f'{way} {samples * new / t:,.0f} tokens/s' for way, t in took.items())
        faster = took['without'] / took['with the cache']
        print(f'{samples} at once: {speeds}, {faster:.1f} times as fast, {same:.1%} of the tokens are the same')


if sampling:
    bench_sampling()
elif loader:
    bench_loader()
elif optimizers:
    bench_optimizers()
else:
    bench_iterations()
