"""
Time per iteration and tokens/s of training, without data or evaluation:

    python bench.py config/train_quick.py --compile=False
    python bench.py config/train_ldnt_sgd.py config/arch/pre.py --batch_size=12

It takes every key of train.py; one iteration here is one micro-batch and one optimizer step.
"""
import os
import statistics
import time
from dataclasses import fields

import torch

from configurator import configure
from device import autocast, pick_device, pick_dtype
from model import GPT, GPTConfig
from optim import SGDW, param_groups

# ----------------------------------------------------------------------------- keys, beside those of train.py
bench_iters = 20                    # iterations timed
bench_warmup = 5                    # iterations before them, not timed
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'train.py'))
for key, low in dict(bench_iters=1, bench_warmup=0, batch_size=1).items():
    if config[key] < low:
        raise ValueError(f'{key}={config[key]}: wants at least {low}')
if config['optimizer'] not in ('adamw', 'sgdw'):
    raise ValueError(f'optimizer={config["optimizer"]!r}: choose one of adamw, sgdw')
model_config = GPTConfig(**{f.name: config[f.name] for f in fields(GPTConfig)})
device = pick_device(config['device'])
dtype = pick_dtype(config['dtype'], device)
torch.set_float32_matmul_precision('high')
torch.manual_seed(config['seed'])

raw_model = GPT(model_config).to(device)
groups = param_groups(raw_model, config['weight_decay'])
if config['optimizer'] == 'adamw':
    optimizer = torch.optim.AdamW(groups, lr=config['learning_rate'], betas=(config['beta1'], config['beta2']), fused=True)
elif config['optimizer'] == 'sgdw':
    optimizer = SGDW(groups, lr=config['learning_rate'], momentum=config['momentum'])
model = torch.compile(raw_model) if config['compile'] else raw_model
tokens = torch.randint(model_config.vocab_size, (config['batch_size'], model_config.block_size + 1), device=device)
x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def iteration():
    with autocast(device, dtype):
        loss = model(x, y)[1]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(raw_model.parameters(), config['grad_clip'] or float('inf'))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if device.type != 'cpu':
        getattr(torch, device.type).synchronize()


began = time.perf_counter()
iteration()
print(f'{raw_model.num_params():,} parameters on {device}, {str(dtype)[6:]}, {config["optimizer"]}, compile={config["compile"]}; '
      f'first iteration {time.perf_counter() - began:.1f} s')
for _ in range(config['bench_warmup']):
    iteration()
times = []
for _ in range(config['bench_iters']):
    began = time.perf_counter()
    iteration()
    times.append(time.perf_counter() - began)
median = statistics.median(times)
speed = x.numel() / median
print(f'{1000 * median:.1f} ms an iteration (median of {len(times)}; {1000 * min(times):.1f} to {1000 * max(times):.1f}), '
      f'{speed:,.0f} tokens/s, {speed * raw_model.flops_per_token() / 1e12:.2f} TFLOP/s')
