"""
What an iteration of training costs on this machine, without data or evaluation, in time and in memory; what data and samples do:

    python bench.py config/train_quick.py
    python bench.py config/train_ldnt_sgd.py --archs=pre,s1,s5 --dtypes=float32,bfloat16 --compiles=True,False      # side by side
    python bench.py config/train_ldnt_sgd.py --optimizers=adamw,sgdw,lion,adam_mini     # their steps alone, and their state
    python bench.py config/train_quick.py --loader=10000            # batches of the data, beside an iteration
    python bench.py config/train_quick.py --block_size=512 --sampling=500       # tokens, with and without the cache
    python bench.py config/train_ldnt_xl_sgd.py --memory=True --parallel=fsdp --gpus=8  # of each GPU, computed and not run
    python bench.py config/train_ldnt_xl_sgd.py --scale=1,8,16,32                       # speed and traffic of so many, computed

It takes every key of train.py; one iteration here is one micro-batch and one optimizer step.
"""
import itertools
import os
import resource
import statistics
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from configurator import at_least, configure, settle
from dataset import Images, Tokens
from device import autocast, choose_kernels, keep_freed_memory, pick_device, pick_dtype, vendors_peak
from model import MODELS, GPTConfig, ViTConfig, config_of
from optim import OPTIMIZERS, param_groups

# ----------------------------------------------------------------------------- keys, beside those of train.py
bench_iters = 20                    # iterations timed, of each variant in turn
bench_warmup = 5                    # iterations before them, not timed
archs = ''                          # some files of config/arch, with commas between them, instead of the config's own
dtypes = ''                         # some values of dtype
compiles = ''                       # some values of compile
optimizers = ''                     # some optimizers: their steps, side by side, instead of an iteration
profile = ''                        # a file for the trace of three iterations, for chrome://tracing or ui.perfetto.dev
loader = 0                          # read so many batches of the data, and time them
sampling = 0                        # draw so many tokens, with the cache and without it
memory = False                      # say what a GPU needs, and run nothing
gpus = 1                            # for memory: over which parallel=fsdp spreads it
scale = ''                          # some numbers of GPUs: say how fast they would be, and run nothing
gpu_peak = 989.0                    # for scale: dense bf16 TFLOP/s of a GPU, an H100's or H200's
gpu_mfu = 0.4                       # for scale: the share of it that computing reaches
link = 450.0                        # for scale: GB/s that a GPU sends to others of its node
network = 50.0                      # for scale: GB/s that a GPU sends to other nodes
node = 8                            # for scale: GPUs in a node
# -----------------------------------------------------------------------------
HERE = os.path.dirname(os.path.abspath(__file__))
config = configure(globals(), GPTConfig, ViTConfig, os.path.join(HERE, 'train.py'))
at_least(config, bench_iters=1, bench_warmup=0, loader=0, sampling=0,
         batch_size=1, learning_rate=0, weight_decay=0, grad_clip=0, gpus=1, node=1)
for key in ('gpu_peak', 'gpu_mfu', 'link', 'network'):
    if not config[key] > 0:
        raise ValueError(f'{key}={config[key]}: wants a positive number')
names = optimizers.split(',') if optimizers else [config['optimizer']]
for name in names:
    if name not in OPTIMIZERS:
        raise ValueError(f'{"optimizers" if optimizers else "optimizer"}={name!r}: choose among {", ".join(OPTIMIZERS)}')
numbers = [int(text) if text.isdecimal() else 0 for text in scale.split(',')] if scale else []
if 0 in numbers:
    raise ValueError(f'scale={scale}: wants numbers of GPUs with commas between them, as in --scale=1,8,32')
config_of(config)                       # or it raises
modes = [key for key in ('optimizers', 'loader', 'sampling', 'memory', 'scale') if config[key]]
if len(modes) > 1:
    raise ValueError(f'{" and ".join(modes)} are different things to do: choose one')
if sampling and config['model'] == 'vit':
    raise ValueError('sampling: a model=vit draws no text, choose model=gpt')
device = pick_device(config['device'])
if device.type == 'cpu':
    keep_freed_memory()
unit = 'images' if config['model'] == 'vit' else 'tokens'


def make(config):
    """The untrained model of a config."""
    return MODELS[config['model']][0](config_of(config))


def batch(model, device):
    """Inputs and targets of a micro-batch, at random."""
    c, count = model.config, config['batch_size']
    if unit == 'images':
        return (255 * torch.rand(count, c.channels, c.image_size, c.image_size, device=device),
                torch.randint(c.classes, (count,), device=device))
    tokens = torch.randint(c.vocab_size, (count, c.block_size + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def flops_of(model, count):
    """Of an iteration on so many tokens, or images."""
    return count * (model.flops_per_image() if unit == 'images' else model.flops_per_token())


def build(config, name):
    """The model of a config, and the optimizer of this name for it."""
    torch.manual_seed(config['seed'])
    model = make(config).to(device)
    choose_kernels(device, model)
    model.recompute = config['recompute']
    return model, OPTIMIZERS[name](param_groups(model, config['weight_decay']), config)


def timed(call):
    """Seconds of a call, the device's work included."""
    began = time.perf_counter()
    call()
    if device.type != 'cpu':
        getattr(torch, device.type).synchronize()
    return time.perf_counter() - began


def in_turns(calls, repeats):
    """{name: times} of calls that each wait their turn, so that what else the machine does hits all of them alike."""
    times = {name: [] for name in calls}
    for i in range(config['bench_warmup'] + repeats):
        for name, call in calls.items():
            t = timed(call)
            if i >= config['bench_warmup']:
                times[name].append(t)
    return times


def spread(times):
    return f'{1000 * min(times):.2f} … {1000 * max(times):.2f}'


def bytes_of(tensors):
    """Of their storages, each counted once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


# ----------------------------------------------------------------------------- the optimizers' steps

def bench_optimizers():
    """The median step of each, with the same gradients. Bytes are of the state, per parameter."""
    calls, state = {}, {}
    for name in names:
        model, optimizer = build(config, name)
        for p in model.parameters():
            p.grad = 1e-3 * torch.randn_like(p)
        print(f'{name}: first step {timed(optimizer.step):.1f} s')
        state[name] = bytes_of(state_of(optimizer)) / model.num_params()
        calls[name] = optimizer.step
    times = in_turns(calls, config['bench_iters'])
    base = statistics.median(times[names[0]])
    print(f'{model.num_params():,} parameters on {device}, compile={config["compile"]}\n'
          f'{"optimizer":12}{"ms a step":>11}{"of " + names[0]:>14}{"min … max":>18}{"bytes a parameter":>20}')
    for name in names:
        median = statistics.median(times[name])
        print(f'{name:12}{1000 * median:11.2f}{median / base:14.2f}{spread(times[name]):>18}{state[name]:20.3f}')


def state_of(optimizer):
    return [value for of_one in optimizer.state.values() for value in of_one.values() if torch.is_tensor(value)]


# ----------------------------------------------------------------------------- whole iterations

def matmul_peak(dtype):
    """FLOP/s of the fastest of some square products."""
    best = 0
    for size in (1024, 2048) if device.type == 'cpu' else (4096, 8192, 16384):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        times = [timed(lambda: a @ b) for _ in range(12)][2:]
        best = max(best, 2 * size ** 3 / statistics.median(times))
    return best


def variants():
    """{label: config} of every combination of archs, dtypes and compiles; the label says what differs."""
    axes = [('arch', archs), ('dtype', dtypes), ('compile', compiles)]
    found = {}
    for values in itertools.product(*(text.split(',') for _, text in axes)):
        arguments = [os.path.join(HERE, 'config', 'arch', f'{value}.py') if axis == 'arch' else f'--{axis}={value}'
                     for (axis, _), value in zip(axes, values) if value]
        label = ' '.join(f'{axis}={value}' for (axis, _), value in zip(axes, values) if value)
        found[label or config['optimizer']] = settle(arguments, config)
    return found


def iteration(config):
    """The iteration of a variant as a function, its tokens, its FLOPs and its parameters."""
    dtype = pick_dtype(config['dtype'], device)
    raw_model, optimizer = build(config, config['optimizer'])
    model = torch.compile(raw_model) if config['compile'] else raw_model
    x, y = batch(raw_model, device)

    def call():
        with autocast(device, dtype, cache=not config['recompute']):
            loss = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(raw_model.parameters(), config['grad_clip'] or float('inf'))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call, y.numel(), flops_of(raw_model, y.numel()), raw_model.num_params()


def peak_memory():
    """Bytes: of the GPU's tensors since the last reset, or of this process."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bench_iterations():
    if profile:
        open(profile, 'w').close()                      # the profiler itself goes on where it cannot write
    peaks = {str(dtype)[6:]: matmul_peak(dtype) for dtype in (torch.bfloat16, torch.float32)}
    vendor = vendors_peak(device)
    print(f'{device}: ' + ', '.join(f'{peak / 1e12:.2f} TFLOP/s in {dtype}' for dtype, peak in peaks.items()) +
          ' by square products' + (f', {vendor / 1e12:.0f} in bfloat16 by its vendor' if vendor else ''))
    before = 0 if device.type == 'cuda' else peak_memory()
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats()            # of what the products took
    calls, tokens, flops = {}, {}, {}
    for label, of_variant in variants().items():
        calls[label], tokens[label], flops[label], count = iteration(of_variant)
        print(f'{label}: {count:,} parameters, {of_variant["optimizer"]}, {str(pick_dtype(of_variant["dtype"], device))[6:]}, '
              f'compile={of_variant["compile"]}; first iteration {timed(calls[label]):.1f} s')
    if profile:
        trace(next(iter(calls.values())))
    times = in_turns(calls, config['bench_iters'])
    width = max(map(len, calls)) + 2
    base = statistics.median(next(iter(times.values())))
    print(f'{"":{width}}{"ms":>9}{"min … max":>20}{"of the first":>14}{unit + "/s":>11}{"TFLOP/s":>9}{"of products":>13}' +
          (f'{"MFU":>7}' if vendor else ''))
    for label in calls:
        median = statistics.median(times[label])
        speed = flops[label] / median
        print(f'{label:{width}}{1000 * median:9.1f}{spread(times[label]):>20}{median / base:14.3f}{tokens[label] / median:11,.0f}'
              f'{speed / 1e12:9.2f}{speed / peaks["bfloat16"]:13.1%}' + (f'{speed / vendor:7.1%}' if vendor else ''))
    print(f'peak memory {(peak_memory() - before) / 2 ** 30:.2f} GiB' + (' of all variants' if len(calls) > 1 else ''))


def trace(call):
    call()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == 'cuda':
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(3):
            timed(call)
    found.export_chrome_trace(profile)
    print(found.key_averages().table(sort_by=f'self_{device.type}_time_total', row_limit=15, max_name_column_width=60))
    print(f'wrote {profile}')


# ----------------------------------------------------------------------------- data and samples

def bench_loader():
    """The median batch, of as many tokens or images as an iteration's and not augmented, and what this process has come to hold
    since the 100th."""
    c = config_of(config)
    if unit == 'images':
        data = Images(config['dataset'], 'train', c.image_size, c.channels, c.classes)
    else:
        data = Tokens(config['dataset'], 'train', c.block_size, c.vocab_size)
    call, count, _, _ = iteration(config)
    step = statistics.median(in_turns({'': call}, config['bench_iters'])[''])
    times, size = [], config['batch_size']
    for i in range(100 + config['loader']):
        if i == 100:
            times, held = [], own_memory()
        times.append(timed(lambda i=i: data.shuffled(i * size, size, config['data_seed'])))
    median = statistics.median(times)
    print(f'{data.path}, {os.path.getsize(data.path) / 2 ** 30:.2f} GiB: {1000 * median:.3f} ms a batch of {count:,} {unit} '
          f'({spread(times)}), {median / step:.2%} of an iteration of {1000 * step:.1f} ms; '
          f'memory {(own_memory() - held) / 2 ** 20:+.1f} MiB over {len(times):,} batches')


def own_memory():
    """Bytes that this process holds, without the files that it maps; elsewhere than on Linux the most it ever held."""
    if not os.path.exists('/proc/self/status'):
        return peak_memory()
    with open('/proc/self/status', encoding='ascii') as f:
        return 1024 * next(int(line.split()[1]) for line in f if line.startswith('RssAnon'))


@torch.no_grad()
def bench_sampling():
    """Greedy tokens that continue one token, for 1 sample and for 8: with keys and values kept, and by a pass over all so far.
    Eager, as sample.py draws."""
    torch.manual_seed(config['seed'])
    model, dtype = make(config).to(device).eval(), pick_dtype(config['dtype'], device)
    new, size = config['sampling'], model.config.block_size

    def anew(idx):
        for _ in range(new):
            x = model.hidden(idx[:, -size:])[:, -1:]
            idx = torch.cat((idx, model.lm_head(x).argmax(-1)), dim=1)
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
            model.generate(idx, 5)                      # so that neither way comes first
            took[way] = timed(call)
        same = (drawn['with the cache'] == drawn['without']).double().mean()
        speeds = ', '.join(f'{way} {samples * new / t:,.0f} tokens/s' for way, t in took.items())
        faster = took['without'] / took['with the cache']
        print(f'{samples} at once: {speeds}, {faster:.1f} times as fast, {same:.1%} of the tokens are the same')


# ----------------------------------------------------------------------------- memory

def tell_memory():
    """What a GPU holds for one micro-batch, by an iteration on tensors that have shapes and no data. Eager: a compiled model
    keeps fewer activations. Under fsdp its part of everything, and two whole blocks: one computes, one is on its way."""
    dtype = pick_dtype(config['dtype'], device)
    cpu = torch.device('cpu')
    with FakeTensorMode():
        model = make(config)
        model.recompute = config['recompute']
        optimizer = OPTIMIZERS[config['optimizer']](param_groups(model, config['weight_decay']), {**config, 'compile': False})
        weights, kept, inputs = [*model.parameters()], [], []
        model.h[0].register_forward_pre_hook(lambda block, given: inputs.append(given[0]))
        x, y = batch(model, cpu)
        with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t), autocast(cpu, dtype, cache=not model.recompute):
            logits, loss = model(x, y)
            if model.recompute:                         # kept are the inputs of blocks alone; one block at a time is made anew
                model.h[0](inputs[0])
        activations = bytes_of(kept + weights) - bytes_of(weights)
        loss.backward()
        optimizer.step()
        ranks = config['gpus'] if config['parallel'] == 'fsdp' else 1
        block = sum(p.numel() for p in model.h[0].parameters()) * (dtype.itemsize + 4)      # and its gradient
        parts = {'parameters': bytes_of(weights) / ranks, 'gradients': bytes_of([p.grad for p in weights]) / ranks,
                 f'state of {config["optimizer"]}': bytes_of(state_of(optimizer)) / ranks,
                 'gathered blocks': 2 * block if ranks > 1 else 0, 'activations': activations,
                 "the logits' gradient": 4 * logits.numel()}
    print(f'{model.num_params():,} parameters, micro-batches of {y.numel():,} {unit}, {str(dtype)[6:]}, eager, '
          f'{config["parallel"]} on {config["gpus"]} GPUs')
    for name, size in {**parts, 'in all': sum(parts.values())}.items():
        print(f'{name:24}{size / 2 ** 30:9.3f} GiB')


def tell_scale():
    """Tokens or images a second, and traffic, of the same iteration on more and more GPUs, should communication hide behind
    computing as far as it can. In a ring a GPU sends (n − 1)/n of what is gathered or reduced, over the slowest of its links.
    DDP all-reduces fp32 gradients once an iteration, which sends them twice; FSDP gathers the blocks in bf16, before the forward
    and before the backward pass, and reduces fp32 gradients, for each micro-batch."""
    with torch.device('meta'):
        model = make(config)
    count, micro_batches = model.num_params(), config['gradient_accumulation_steps']
    tokens = micro_batches * config['batch_size'] * (1 if unit == 'images' else config['block_size'])
    flops = flops_of(model, tokens)
    print(f'{count:,} parameters, {tokens:,} {unit} an iteration in {micro_batches} micro-batches; {gpu_peak:g} TFLOP/s at an '
          f'MFU of {gpu_mfu:.0%}, {link:g} GB/s within nodes of {node}, {network:g} between them')
    print(f'{"GPUs":>6}{"computing, s":>14}' + ''.join(f'{f"{way}: GB sent":>16}{"s":>8}{unit + "/s":>12}{"of linear":>11}'
                                                    for way in ('DDP', 'FSDP')))
    for n in numbers:
        computing = flops / (n * gpu_peak * 1e12 * gpu_mfu)
        row = f'{n:6}{computing:14.3f}'
        for sent in (8 * count, 8 * count * micro_batches / n):
            sent *= (n - 1) / n
            seconds = sent / 1e9 / (link if n <= node else network)
            took = max(computing, seconds)
            row += f'{sent / 1e9:16.1f}{seconds:8.3f}{tokens / took:12,.0f}{computing / took:11.0%}'
        print(row)


if sampling:
    bench_sampling()
elif loader:
    bench_loader()
elif memory:
    tell_memory()
elif scale:
    tell_scale()
elif optimizers:
    bench_optimizers()
else:
    bench_iterations()
