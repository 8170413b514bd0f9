"""Which values the keys of train.py may have."""
from data.augment import CUBIC
from engine.device import ATTENTION_BACKENDS, DTYPES
from model import BLOCK_TYPES, check
from optim import MUON_SCALES, OPTIMIZERS, SCHEDULES

CHOICES = dict(optimizer=OPTIMIZERS, schedule=SCHEDULES, blockwise=('ramp', 'jump', 'merge'), parallel=('ddp', 'fsdp'),
               backend=('auto', 'nccl', 'gloo'), interpolation=CUBIC, attention_backend=('auto', *ATTENTION_BACKENDS),
               dtype=('auto', *DTYPES), muon_scale=MUON_SCALES)
RULES = (
    'eval_interval >= 1', 'eval_iters >= 1', 'log_interval >= 1', 'max_iters >= 0', 'measure_interval >= 0',
    'measure_batches >= 1', 'gradient_accumulation_steps >= 1', 'batch_size >= 1', 'seed >= 0', 'data_seed >= 0',
    "model == 'vit' or batch_size * block_size * vocab_size < 2 ** 31  # larger logits take slow kernels, or wrong ones",
    'learning_rate >= 0', 'min_lr >= 0', "min_lr <= learning_rate or schedule == 'constant'", 'warmup_iters >= 0',
    'lr_decay_iters >= 0', '0 <= decay_frac <= 1', "blockwise != 'merge' or schedule == 'wsd'",
    *(f'{way}_{kind} >= 0' for way in ('r', 'wd') for kind in BLOCK_TYPES),
    'wd_norm == 1 or decay_norms', 'weight_decay >= 0', '0 <= beta1 < 1', '0 <= beta2 < 1', '0 <= momentum < 1',
    'grad_clip >= 0', 'diverge_factor >= 0', 'shard_ranks >= 0', 'not (ddp_overlap and compile and recompute)',
    '0.01 <= crop_scale <= 1', 'aug_repeats >= 1', '0 <= flip <= 1', '0 <= randaugment <= 10', 'mixup >= 0', 'cutmix >= 0',
    '0 <= label_smoothing <= 1',
)


OF_OPTIMIZERS = dict(beta1=('adamw', 'lion', 'adam_mini', 'muon'), beta2=('adamw', 'lion', 'adam_mini', 'muon'),
                     momentum=('sgdw', 'muon'), muon_scale=('muon',))       # of those of optim.py
OF_FSDP, OF_DDP = ('reshard', 'reduce_each', 'save_shards', 'shard_ranks'), ('ddp_overlap', 'ddp_bf16')
OF_IMAGES = ('crop_scale', 'interpolation', 'aug_repeats', 'flip', 'randaugment', 'mixup', 'cutmix', 'label_smoothing')


def unused_keys(config):
    """{key: why a run with this config ignores it}"""
    known = {name for names in OF_OPTIMIZERS.values() for name in names}
    unused = {key: f'optimizer={config["optimizer"]} does not use it' for key, names in OF_OPTIMIZERS.items()
              if config['optimizer'] in known - {*names}}
    for keys, used, why in ((OF_FSDP, config['parallel'] == 'fsdp', 'it needs --parallel=fsdp'),
                            (OF_DDP, config['parallel'] == 'ddp', 'it needs --parallel=ddp'),
                            (OF_IMAGES, config['model'] == 'vit', 'it is of images')):
        unused.update(dict.fromkeys(keys, why) if not used else {})
    return unused


def check_keys(config):
    """ValueError for a value that train.py cannot work with. `config` may hold only some of its keys."""
    check(config, CHOICES, RULES)


def group_settings(config):
    """The arguments of param_groups from the keys: the weight decay, per block type the ratios of Blockwise LR (r_…) and of the
    weight decay (wd_…), and the keys themselves. ValueError for a ratio of a tied head."""
    for key in ('r_head', 'wd_head'):
        if config['model'] == 'gpt' and config['tie_weights'] and config[key] != 1:
            raise ValueError(f'{key}={config[key]}: with tie_weights=True the head is the embedding, set {key[:-4]}emb instead')
    ratios, decay_ratios = ({kind: config[f'{way}_{kind}'] for kind in BLOCK_TYPES if f'{way}_{kind}' in config}
                            for way in ('r', 'wd'))
    return dict(weight_decay=config['weight_decay'], ratios=ratios, decay_ratios=decay_ratios,
                decay_norms=config['decay_norms'], keys=config)
