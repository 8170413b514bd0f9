"""Which values the keys of train.py may have."""
from model import BLOCK_TYPES, check
from optim import OPTIMIZERS, SCHEDULES

CHOICES = dict(optimizer=OPTIMIZERS, schedule=SCHEDULES, blockwise=('ramp', 'jump'), parallel=('ddp', 'fsdp'),
               backend=('auto', 'nccl', 'gloo'))
RULES = (
    'eval_interval >= 1', 'eval_iters >= 1', 'log_interval >= 1', 'max_iters >= 0', 'measure_interval >= 0',
    'measure_batches >= 1', 'gradient_accumulation_steps >= 1', 'batch_size >= 1', 'seed >= 0', 'data_seed >= 0',
    'learning_rate >= 0', 'min_lr >= 0', "min_lr <= learning_rate or schedule == 'constant'", 'warmup_iters >= 0',
    'lr_decay_iters >= 0', '0 <= decay_frac <= 1', *(f'r_{kind} >= 0' for kind in BLOCK_TYPES),
    'weight_decay >= 0', '0 <= beta1 < 1', '0 <= beta2 < 1', '0 <= momentum < 1', 'grad_clip >= 0', 'diverge_factor >= 0',
    '0.01 <= crop_scale <= 1', '0 <= flip <= 1', '0 <= randaugment <= 10', 'mixup >= 0', 'cutmix >= 0',
    '0 <= label_smoothing <= 1',
)


def check_keys(config):
    """ValueError for a value that train.py cannot work with; `config` may hold some of its keys alone."""
    check(config, CHOICES, RULES)


def learning_rate_ratios(config):
    """Blockwise LR: {block type: its r_ key}, for the types that have one. ValueError for a tied head's."""
    if config['model'] == 'gpt' and config['tie_weights'] and config['r_head'] != 1:
        raise ValueError(f'r_head={config["r_head"]}: with tie_weights=True the head is the embedding, set r_emb instead')
    return {kind: config[f'r_{kind}'] for kind in BLOCK_TYPES if f'r_{kind}' in config}
