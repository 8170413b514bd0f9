"""
Time training iterations on this machine, without data and evaluation; or optimizer steps:

    python bench.py config/train_quick.py
    python bench.py config/train_ldnt_sgd.py --archs=pre,s1,s5 --dtypes=float32,bfloat16 --compiles=True,False      # side by side
    python bench.py config/train_ldnt_sgd.py --optimizers=adamw,sgdw,lion,adam_mini,muon        # steps only, and their state
    python bench.py --sweep=config/sweep/placements.py --compiles=False,True --out=FILE.csv        # the rows of a sweep

Every config of train.py works. One iteration here is one micro-batch and one optimizer step.
"""
from configurator import ROOT, TRAIN, at_least, configure, parse_args

import csv
import itertools
import time
from statistics import median

import torch

from engine.device import device_name, pick_device, pick_dtype, state_bytes, tune_for_training, vendors_peak, why_not_compile
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
sweep = ''                          # a file of config/sweep/: compare the models of its rows instead of archs
out = ''                            # a csv file for the times
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, TRAIN)
at_least(config, bench_iters=1, bench_warmup=0)
device = pick_device(config['device'])
obstacle = why_not_compile(device)
if config['compile'] and obstacle:
    print(f'not compiled, and therefore slower: {obstacle}')
    config['compile'] = False
if sweep:
    from lab.sweep.plan import read_sweep, rows_of_file


def variants():
    """Return {label: config} for each combination of archs, dtypes, compiles and optimizers; the label says what differs."""
    models, configs = {name: [f'{ROOT}/config/arch/{name}.py'] if name else [] for name in archs.split(',')}, {}
    if sweep:
        models = {str(row): row.arguments for row in rows_of_file(read_sweep(sweep))}
    axes = dict(dtype=dtypes, compile=compiles, optimizer=optimizers)
    for model, *values in itertools.product(models, *(text.split(',') for text in axes.values())):
        chosen = {axis: value for axis, value in zip(axes, values) if value}
        variant = parse_args([*models[model], *(f'--{axis}={value}' for axis, value in chosen.items())], config)
        chosen = dict(arch=model, **chosen) if model else chosen
        check_keys(variant)
        if variant['compile'] and obstacle:
            raise ValueError(f'compiles={compiles}: {obstacle}')
        configs[' '.join(f'{axis}={value}' for axis, value in chosen.items()) or config['optimizer']] = variant
    return configs


class Variant:
    """A config's model, optimizer and batch, and what to time: an iteration, or with `optimizers` a step."""

    def __init__(self, config):
        torch.manual_seed(config['seed'])
        self.raw_model = GPT(gpt_config(config)).to(device)
        self.raw_model.recompute = config['recompute']
        tune_for_training(device, config['tf32'], config['deterministic'], config['compile'])
        self.model = torch.compile(self.raw_model) if config['compile'] else self.raw_model
        self.dtype, self.grad_clip, c = pick_dtype(config['dtype'], device), config['grad_clip'], self.raw_model.config
        self.optimizer = make_optimizer(param_groups(self.raw_model, **group_settings(config)), {**config, 'dtype': self.dtype})
        tokens = torch.randint(c.vocab_size, (config['batch_size'], c.block_size + 1), device=device)
        self.x, self.y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        for p in self.raw_model.parameters() if optimizers else ():
            p.grad = 1e-3 * torch.randn_like(p)
        self.about = (f'{self.raw_model.num_params():,} parameters, {config["optimizer"]}, {str(self.dtype)[6:]}, '
                      f'compile={config["compile"]}')

    def __call__(self):
        if optimizers:
            self.optimizer.step()
        else:
            training_step(self.model, self.raw_model, self.optimizer, [(self.x, self.y)], self.grad_clip, self.dtype)

    def row(self, t, base, peak):
        """Return {header: text} for the median time t in s; `base` is that of the first, `peak` the FLOP/s of products."""
        row = {'ms': f'{1000 * t:.2f}', 'of the first': f'{t / base:.3f}'}
        if optimizers:
            return row | {'bytes a parameter': f'{state_bytes(self.optimizer) / self.raw_model.num_params():.3f}'}
        speed, vendor = self.y.numel() * self.raw_model.flops_per_token() / t, vendors_peak(device)
        row |= {'tokens/s': f'{self.y.numel() / t:,.0f}', 'TFLOP/s': f'{speed / 1e12:.2f}', 'of products': f'{speed / peak:.1%}'}
        return row | ({'MFU': f'{speed / vendor:.1%}'} if vendor else {})


def timed(call):
    """Return the seconds that a call takes, including the device's work."""
    began = time.perf_counter()
    call()
    if device.type != 'cpu':
        getattr(torch, device.type).synchronize()
    return time.perf_counter() - began


def products(dtype):
    """Return a function that multiplies two square matrices, and its FLOPs."""
    size = 1024 if device.type == 'cpu' else 8192
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    return lambda: a @ b, 2 * size ** 3


configs, calls, flops = variants(), {}, {}
if any(variant['compile'] for variant in configs.values()):
    torch._dynamo.config.recompile_limit = 8 * len(configs)       # the variants share their code
for label, of_variant in configs.items():
    calls[label] = Variant(of_variant)
    print(f'{label}: {calls[label].about}; first {"step" if optimizers else "iteration"} {timed(calls[label]):.1f} s')
built = dict(calls)
for dtype in {} if optimizers else {variant.dtype for variant in built.values()}:
    calls[dtype], flops[dtype] = products(dtype)
times = {name: [] for name in calls}
for i in range(bench_warmup + bench_iters):             # in turns, so that other work on the machine slows all of them equally
    for name, call in calls.items():
        times[name].append(timed(call))
times = {name: of_call[bench_warmup:] for name, of_call in times.items()}
peaks = {dtype: count / min(times[dtype]) for dtype, count in flops.items()}
if peaks:
    print(f'{device}: ' + ', '.join(f'{peak / 1e12:.2f} TFLOP/s in {str(dtype)[6:]}' for dtype, peak in peaks.items())
          + ' by square products')
base = median(next(iter(times.values())))
rows = [{'': label, **variant.row(median(times[label]), base, max(peaks.values(), default=0)),
         'min … max': f'{1000 * min(times[label]):.2f} … {1000 * max(times[label]):.2f}'} for label, variant in built.items()]
for row in [dict(zip(rows[0], rows[0])), *rows]:
    widths = [max(len(head), *(len(other[head]) for other in rows)) for head in row]
    first, *others = row.values()
    print('  '.join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]))
if device.type == 'cuda':
    print(f'peak memory {torch.cuda.max_memory_allocated() / 2 ** 30:.2f} GiB' + ' of all variants' * (len(built) > 1))
if out:
    with open(out, 'w', newline='') as f:
        writer = csv.DictWriter(f, ['arch', 'dtype', 'compile', 'optimizer', 'ms', 'flops_per_token', 'machine', 'torch'])
        writer.writeheader()
        for label, variant in built.items():
            writer.writerow(dict(part.split('=', 1) for part in label.split(' ') if '=' in part) | dict(
                ms=f'{1000 * median(times[label]):.2f}', flops_per_token=variant.raw_model.flops_per_token(),
                machine=device_name(device), torch=torch.__version__))
