"""Check the values of train.py's keys."""
from configurator import at_least

from dataclasses import fields
from types import SimpleNamespace

import torch

from data.tokens import is_prepared, read_meta
from engine.device import DTYPES
from model import GPTConfig, require
from optim import MUON_SCALES, OPTIMIZERS, SCHEDULES

CHOICES = dict(optimizer=OPTIMIZERS, schedule=SCHEDULES, blockwise=('ramp', 'peak', 'jump', 'merge'), parallel=('ddp', 'fsdp'),
               backend=('auto', 'nccl', 'gloo'), dtype=('auto', *DTYPES), muon_scale=MUON_SCALES)
LOWS = dict(        # the smallest value of each; r_… and wd_… may not be negative either
    eval_interval=1, eval_iters=1, log_interval=1, keep_every=0, max_iters=0, measure_interval=0, measure_batches=1, batch_size=1,
    gradient_accumulation_steps=1, seed=0, data_seed=0, learning_rate=0, min_lr=0, warmup_iters=0, lr_decay_iters=0,
    decay_frac=0, weight_decay=0, beta1=0, beta2=0, momentum=0, grad_clip=0, max_minutes=0)
BELOW_ONE = ('beta1', 'beta2', 'momentum')


def config_from(Config, keys):
    """Build a GPTConfig, or a Config that extends it, from a run's keys. Raise ValueError for a wrong value."""
    return Config(**{f.name: keys[f.name] for f in fields(Config) if f.init and f.name in keys})


def gpt_config(keys, Config=None):
    """Build a run's GPTConfig. vocab_size=0 means the data's vocab_size, or GPTConfig's if the data is not prepared."""
    size = keys.get('vocab_size')
    if size == 0:
        size = read_meta(keys['dataset'])['vocab_size'] if is_prepared(keys['dataset']) else GPTConfig.vocab_size
    return config_from(Config or GPTConfig, {**keys, 'vocab_size': size} if size else keys)


def check_keys(config, choices=CHOICES, lows=LOWS):
    """Raise ValueError for a value that training cannot use. `config` may hold only some of the keys."""
    keys, given = SimpleNamespace(**config), config.get
    for key, names in choices.items():
        if key in config and config[key] not in names:
            raise ValueError(f'{key}={config[key]!r}: choose one of {", ".join(names)}')
    at_least(config, **lows, **{key: 0 for key in config if key.startswith(('r_', 'wd_'))})
    for holds, names, demand in (
        *((given(key, 0) < 1, key, 'must be below 1') for key in BELOW_ONE),
        (given('decay_frac', 0) <= 1, 'decay_frac', 'must be at most 1'),
        (given('min_lr', 0) <= given('learning_rate', 0) or given('schedule', '') == 'constant', 'min_lr learning_rate',
         'min_lr must be at most learning_rate, or schedule=constant'),
        (given('blockwise') != 'merge' or config['schedule'] == 'wsd', 'blockwise schedule', 'merge needs schedule=wsd'),
        (not given('hyperball') or not given('qk_clip', 0), 'hyperball qk_clip', 'QK-Clip shrinks what hyperball keeps'),
        (given('wd_norm', 1) == 1 or config['decay_norms'], 'wd_norm decay_norms', 'norms decay only with decay_norms=True'),
        ('block_size' not in config or config['batch_size'] * config['block_size'] * config['vocab_size'] < 2 ** 31,
         'batch_size block_size vocab_size', 'their product must be below 2**31, or kernels are slow or wrong'),
    ):
        require(keys, holds, names, demand)


def check_parallel(config, machine):
    """Raise ValueError, before the ranks connect, for keys that contradict each other or this machine."""
    if machine.distributed and config['parallel'] == 'fsdp' and machine.dtype == torch.float16:
        raise ValueError('dtype=float16: parallel=fsdp has no loss scaling, choose bfloat16 or float32')


def group_settings(config):
    """Return param_groups' arguments: the weight decay, each block type's ratio of learning rate (r_…) and weight decay (wd_…),
    and the keys themselves. Raise ValueError for a ratio of a tied head."""
    for key in ('r_head', 'wd_head'):
        if config.get('tie_weights') and config[key] != 1:
            raise ValueError(f'{key}={config[key]}: with tie_weights=True the head is the embedding, set {key[:-4]}emb instead')
    ratios, decay_ratios = ({key.removeprefix(way): value for key, value in config.items() if key.startswith(way)}
                            for way in ('r_', 'wd_'))
    return dict(weight_decay=config['weight_decay'], ratios=ratios, decay_ratios=decay_ratios,
                decay_norms=config['decay_norms'], keys=config)
