"""
Time per iteration and tokens/s, or images/s, of training, without data or evaluation:

    python bench.py config/train_quick.py --compile=False
    python bench.py config/train_ldnt_sgd.py config/arch/pre.py --batch_size=12
    python bench.py config/train_ldnt_sgd.py --optimizers=adamw,sgdw,lion,adam_mini     # their steps alone, and their state

It takes every key of train.py; one iteration here is one micro-batch and one optimizer step.
"""
import os
import statistics
import time

import torch

from configurator import at_least, configure
from device import autocast, choose_kernels, pick_device, pick_dtype
from model import MODELS, GPTConfig, ViTConfig, config_of
from optim import OPTIMIZERS, param_groups

# ----------------------------------------------------------------------------- keys, beside those of train.py
bench_iters = 20                    # iterations timed
bench_warmup = 5                    # iterations before them, not timed
optimizers = ''                     # some optimizers with commas between them: their steps, side by side, instead of an iteration
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, ViTConfig, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'train.py'))
at_least(config, bench_iters=1, bench_warmup=0, batch_size=1, learning_rate=0, weight_decay=0, grad_clip=0)
names = optimizers.split(',') if optimizers else [config['optimizer']]
for name in names:
    if name not in OPTIMIZERS:
        raise ValueError(f'{"optimizers" if optimizers else "optimizer"}={name!r}: choose among {", ".join(OPTIMIZERS)}')
model_config, vision = config_of(config), config['model'] == 'vit'
device = pick_device(config['device'])
dtype = pick_dtype(config['dtype'], device)
choose_kernels(device, model_config.block_size)


def build(name):
    torch.manual_seed(config['seed'])
    model = MODELS[config['model']][0](model_config).to(device)
    return model, OPTIMIZERS[name](param_groups(model, config['weight_decay']), config)


def timed(call):
    """Seconds of a call, the device's work included."""
    began = time.perf_counter()
    call()
    if device.type != 'cpu':
        getattr(torch, device.type).synchronize()
    return time.perf_counter() - began


def bench_optimizers():
    """The median step of each, taken in turns, with the same gradients. Bytes are of the state, per parameter."""
    steps, state = {}, {}
    for name in names:
        model, optimizer = build(name)
        for p in model.parameters():
            p.grad = 1e-3 * torch.randn_like(p)
        first = timed(optimizer.step)
        tensors = [value for p in optimizer.state.values() for value in p.values() if torch.is_tensor(value)]
        state[name] = sum(t.numel() * t.element_size() for t in tensors) / model.num_params()
        steps[name] = optimizer.step
        print(f'{name}: first step {first:.1f} s')
    times = {name: [] for name in names}
    for i in range(config['bench_warmup'] + config['bench_iters']):
        for name in names:
            t = timed(steps[name])
            if i >= config['bench_warmup']:
                times[name].append(t)
    base = statistics.median(times[names[0]])
    print(f'{model.num_params():,} parameters on {device}, compile={config["compile"]}\n'
          f'{"optimizer":12}{"ms a step":>11}{"of " + names[0]:>14}{"min … max":>18}{"bytes a parameter":>20}')
    for name in names:
        median = statistics.median(times[name])
        spread = f'{1000 * min(times[name]):.2f} … {1000 * max(times[name]):.2f}'
        print(f'{name:12}{1000 * median:11.2f}{median / base:14.2f}{spread:>18}{state[name]:20.3f}')


def bench_iterations():
    raw_model, optimizer = build(names[0])
    model = torch.compile(raw_model) if config['compile'] else raw_model
    if vision:
        x = 255 * torch.rand(config['batch_size'], model_config.channels, *2 * [model_config.image_size], device=device)
        y = torch.randint(model_config.classes, (config['batch_size'],), device=device)
        unit, flops = 'images', raw_model.flops_per_image()
    else:
        tokens = torch.randint(model_config.vocab_size, (config['batch_size'], model_config.block_size + 1), device=device)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        unit, flops = 'tokens', raw_model.flops_per_token()

    def iteration():
        with autocast(device, dtype):
            loss = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(raw_model.parameters(), config['grad_clip'] or float('inf'))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    print(f'{raw_model.num_params():,} parameters on {device}, {str(dtype)[6:]}, {names[0]}, compile={config["compile"]}; '
          f'first iteration {timed(iteration):.1f} s')
    for _ in range(config['bench_warmup']):
        iteration()
    times = [timed(iteration) for _ in range(config['bench_iters'])]
    median = statistics.median(times)
    speed = y.numel() / median
    print(f'{1000 * median:.1f} ms an iteration (median of {len(times)}; {1000 * min(times):.1f} to {1000 * max(times):.1f}), '
          f'{speed:,.0f} {unit}/s, {speed * flops / 1e12:.2f} TFLOP/s')


bench_optimizers() if optimizers else bench_iterations()
