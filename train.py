"""
Trains a GPT, or with --model=vit a ViT, on one process or many:

    python train.py config/train_quick.py config/arch/s1.py --learning_rate=0.1
    torchrun --nproc_per_node=8 train.py config/train_ldnt_sgd.py
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=HOST train.py config/train_ldnt_sgd.py

Config files and --key=value set the keys below, in order, later wins.
"""
import functools
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from augment import Augment
from configurator import at_least, configure
from dataset import SPLITS, Images, Tokens
from device import autocast, choose_kernels, keep_freed_memory, pick_device, pick_dtype, vendors_peak
from model import BLOCK_TYPES, GPT, OPENAI_MODELS, GPTConfig, ViT, ViTConfig, config_of, load_checkpoint, load_weights
from optim import OPTIMIZERS, SCHEDULES, local, lr_at, param_groups

# ----------------------------------------------------------------------------- keys, beside those of GPTConfig and ViTConfig
out_dir = 'out'                     # the run's folder: config.json, run.json, log.jsonl, ckpt.pt, best.pt
eval_interval = 2000                # iterations between evaluations, each followed by a checkpoint
eval_iters = 200                    # batches of each split that an evaluation reads, the same ones every time
log_interval = 1                    # iterations between lines of the log
eval_only = False                   # evaluate once and stop
model = 'gpt'                       # gpt | vit: of tokens or of images, each with its own keys below
init_from = 'scratch'               # scratch | resume | auto: either | gpt2, gpt2-medium, gpt2-large, gpt2-xl, a folder
overwrite = False                   # start in a folder that holds a run, which is then lost
always_save_checkpoint = True       # write ckpt.pt after every evaluation, not only where the validation loss improved
wandb_log = False                   # log to Weights & Biases too
wandb_project = 'nanonorm'          # its project
wandb_run_name = ''                 # empty: the name of out_dir
dataset = 'openwebtext'             # a folder of data/
gradient_accumulation_steps = 40    # micro-batches per iteration, over all ranks
batch_size = 12                     # windows, or images, per micro-batch
optimizer = 'adamw'                 # adamw | sgdw | lion | adam_mini
learning_rate = 6e-4                # peak
max_iters = 600000                  # optimizer steps in all
weight_decay = 1e-1                 # decoupled, on matrices only
beta1 = 0.9                         # adamw, lion, adam_mini
beta2 = 0.95                        # the same; config/optim/lion.py has what Lion wants
momentum = 0.9                      # sgdw
grad_clip = 1.0                     # largest norm of the whole gradient; 0: no clipping
diverge_factor = 0.0                # stop once the loss has been above this times its first value for 100 iterations; 0: never
schedule = 'cosine'                 # cosine | wsd | linear | constant
warmup_iters = 2000                 # iterations of linear warm-up
lr_decay_iters = 0                  # the iteration at which min_lr is reached; 0: max_iters
min_lr = 6e-5                       # where the schedule ends
decay_frac = 0.2                    # wsd: the last share of the iterations, in which the rate falls
r_emb = 1.0                         # Blockwise LR: the rate of the embeddings is this times learning_rate
r_head = 1.0                        # of an untied head
r_qk = 1.0                          # of W_q and W_k
r_ffn = 1.0                         # of the FFN
r_vo = 1.0                          # of W_v and W_o
blockwise = 'ramp'                  # ramp: warm-up goes on to the type's own peak | jump: r times the base after warm-up
crop_scale = 1.0                    # images: random crops of at least this share, resized; 1: their middle
flip = 0.0                          # images: how often they are mirrored
randaugment = 0.0                   # images: RandAugment's magnitude, up to 10; 0: none
mixup = 0.0                         # images: α of mixup; 0: none
cutmix = 0.0                        # images: α of cutmix, which takes turns with mixup; 0: none
label_smoothing = 0.0               # images: the share of a target that all classes share
seed = 1337                         # weights, dropout and augmentation
data_seed = 1337                    # order of the training data
measure_interval = 0                # iterations between the measurements of measure.py that go to measure.jsonl; 0: none
measure_batches = 4                 # batches that a measurement reads, the same ones every time
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16: bfloat16 wherever the hardware computes it
compile = True                      # torch.compile; on a CPU it needs a C++ compiler
recompute = False                   # keep of each block its input alone, and compute the rest again for the backward pass
parallel = 'ddp'                    # of torchrun's ranks: ddp | fsdp: which spreads the parameters and all that follows over them
reshard = True                      # fsdp: gather a block's parameters anew for its backward pass, instead of keeping them
backend = 'auto'                    # auto | nccl | gloo: of torch.distributed; auto takes nccl on GPUs, gloo elsewhere
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, ViTConfig)
print = functools.partial(print, flush=True)             # a log file shows progress too

for key, choices in {'optimizer': OPTIMIZERS, 'schedule': SCHEDULES, 'blockwise': ('ramp', 'jump'),
                     'parallel': ('ddp', 'fsdp'), 'backend': ('auto', 'nccl', 'gloo')}.items():
    if config[key] not in choices:
        raise ValueError(f'{key}={config[key]!r}: choose one of {", ".join(choices)}')
at_least(config, eval_interval=1, eval_iters=1, log_interval=1, gradient_accumulation_steps=1, batch_size=1, max_iters=0,
         warmup_iters=0, lr_decay_iters=0, learning_rate=0, min_lr=0, weight_decay=0, grad_clip=0, diverge_factor=0,
         measure_interval=0, measure_batches=1, r_emb=0, r_head=0, r_qk=0, r_ffn=0, r_vo=0, mixup=0, cutmix=0,
         seed=0, data_seed=0)
for key, low, high in (('crop_scale', 0.01, 1), ('flip', 0, 1), ('randaugment', 0, 10), ('label_smoothing', 0, 1)):
    if not low <= config[key] <= high:
        raise ValueError(f'{key}={config[key]}: wants {low} <= {key} <= {high}')
for key in ('beta1', 'beta2', 'momentum'):
    if not 0 <= config[key] < 1:
        raise ValueError(f'{key}={config[key]}: wants 0 <= {key} < 1')
if not 0 <= decay_frac <= 1:
    raise ValueError(f'decay_frac={decay_frac}: wants a share of the iterations, 0 <= decay_frac <= 1')
if min_lr > learning_rate and schedule != 'constant':
    raise ValueError(f'min_lr={min_lr} is above learning_rate={learning_rate}: lower it too, or choose schedule=constant')
model_config, vision = config_of(config), model == 'vit'
pretrained, brought = None, {}
path = {name: os.path.join(out_dir, name)
        for name in ('config.json', 'run.json', 'log.jsonl', 'measure.jsonl', 'measure.json', 'ckpt.pt', 'best.pt')}
others = "ViT of Hugging Face's or timm's, or a file of timm's" if vision else 'folder of a model of export.py or Hugging Face'
known = ('scratch', 'resume', 'auto', *(() if vision else OPENAI_MODELS))
if init_from not in known and not (os.path.exists if vision else os.path.isdir)(init_from):
    raise ValueError(f'init_from={init_from!r}: choose one of {", ".join(known)}, or a {others}')
if init_from == 'auto':
    init_from = config['init_from'] = 'resume' if os.path.exists(path['ckpt.pt']) else 'scratch'
    taken = init_from == 'scratch' and os.path.exists(path['best.pt'])          # a run that was killed early may start again
else:
    taken = init_from != 'resume' and any(os.path.exists(file) for file in path.values())
if taken and not overwrite and not eval_only:
    raise ValueError(f'out_dir={out_dir} holds a run: choose another, continue it by --init_from=resume, or lose it by '
                     f'--overwrite=True')
config['overwrite'] = False                             # config.json would carry it on
if init_from not in ('scratch', 'resume'):
    c = model_config
    pretrained = (ViT.from_pretrained(init_from, c.classes, c.n_head, c.dropout, c.drop_path) if vision else
                  GPT.from_pretrained(init_from, c.block_size, c.dropout))
    model_config = pretrained.config
    brought = dict(asdict(model_config).items() - config.items())       # where it differs from the keys, it wins
    config.update(brought)
if not vision and model_config.tie_weights and r_head != 1:
    raise ValueError(f'r_head={r_head}: with tie_weights=True the head is the embedding, set r_emb instead')

# ----------------------------------------------------------------------------- ranks, device, data
rank, local_rank, world_size = (int(os.environ.get(k, d)) for k, d in (('RANK', 0), ('LOCAL_RANK', 0), ('WORLD_SIZE', 1)))
distributed, master = 'RANK' in os.environ, rank == 0
fsdp = distributed and parallel == 'fsdp'
if gradient_accumulation_steps % world_size:
    raise ValueError(f'gradient_accumulation_steps={gradient_accumulation_steps} is not divisible by the {world_size} ranks: '
                     f'make it a multiple of {world_size}')
device = pick_device(device, local_rank)
dtype = pick_dtype(dtype, device)
if fsdp:
    if dtype == torch.float16:
        raise ValueError(f'dtype={config["dtype"]}: parallel=fsdp has no scaler of the loss, choose bfloat16 or float32')
    from parallel import load_sharded, own_optimizer_state, shard_model, whole
if vision:
    data = {split: Images(dataset, split, image_size=model_config.image_size, channels=model_config.channels,
                          classes=model_config.classes) for split in SPLITS}
    augment = Augment(config, model_config.image_size, model_config.classes)
    unit, window, metrics = 'images', 1, ('loss', 'top1', 'top5')

    def new_model():
        return ViT(model_config, data['train'].mean, data['train'].std)
else:
    data = {split: Tokens(dataset, split, block_size=model_config.block_size, vocab_size=model_config.vocab_size)
            for split in SPLITS}
    unit, window, metrics = 'tokens', model_config.block_size, ('loss',)

    def augment(x, y):
        return x, y

    def new_model():
        return GPT(model_config)
for windows in data.values():
    windows.read(windows.spread(1, batch_size)[0])      # tokens of another vocabulary show now
micro_batches = range(rank * gradient_accumulation_steps // world_size, (rank + 1) * gradient_accumulation_steps // world_size)
per_iter = gradient_accumulation_steps * batch_size * window

checkpoint = None
if init_from == 'resume':
    if not os.path.exists(path['ckpt.pt']):
        raise ValueError(f'there is no {path["ckpt.pt"]} to resume from: check out_dir, or start with --init_from=scratch')
    checkpoint = load_checkpoint(path['ckpt.pt'], mmap=fsdp)
    fixed = ['model', 'optimizer', *(f.name for f in fields(model_config) if f.name not in ('dropout', 'drop_path'))]
    there = {'model': 'gpt', **checkpoint['config']}    # which had no such key once
    differ = [f'{key} ({there.get(key)} there, {config[key]} here)' for key in fixed if there.get(key) != config[key]]
    if differ:
        raise ValueError(f'{path["ckpt.pt"]} cannot be resumed with another architecture or optimizer: {", ".join(differ)}')
    if checkpoint['iter'] > max_iters:
        raise ValueError(f'max_iters={max_iters}: {path["ckpt.pt"]} is at iteration {checkpoint["iter"]} already')

if distributed:
    if device.type == 'cuda':
        torch.cuda.set_device(device)
    store, *_ = next(dist.rendezvous('env://'))         # torchrun keeps it for a restart, with addresses that are outdated
    store = dist.PrefixStore(os.environ.get('TORCHELASTIC_RESTART_COUNT', '0'), store)
    dist.init_process_group({'auto': 'nccl' if device.type == 'cuda' else 'gloo'}.get(backend, backend), store=store,
                            rank=rank, world_size=world_size)
    control = dist.new_group(backend='gloo')            # for what must not wait for the GPU
    starts = [None] * world_size
    dist.all_gather_object(starts, checkpoint['iter'] if checkpoint else 0, group=control)
    if len(set(starts)) > 1:
        raise ValueError(f'the ranks see checkpoints of iterations {starts}: out_dir={out_dir} must lie on a disk that all see')

# ----------------------------------------------------------------------------- model and optimizer
torch.manual_seed(seed)
with torch.device('meta' if fsdp and checkpoint else 'cpu'):
    model = pretrained or new_model()
choose_kernels(device, model)
if device.type == 'cpu':
    keep_freed_memory()
model.recompute = recompute
if fsdp:
    for block in model.h if compile else ():
        block.compile()
    shard_model(model, device, dtype, reshard)
if checkpoint:
    (load_sharded if fsdp else load_weights)(model, checkpoint, path['ckpt.pt'])
model.to(device)
ratios = {kind: config[f'r_{kind}'] for kind in BLOCK_TYPES if f'r_{kind}' in config}       # the norms keep the base rate
optimizer = OPTIMIZERS[optimizer](param_groups(model, weight_decay, ratios), config)
scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
start, best_val_loss, first_loss = 0, float('inf'), None
if checkpoint:
    settings = [{key: value for key, value in group.items() if key != 'params'} for group in optimizer.param_groups]
    state = checkpoint['optimizer']
    optimizer.load_state_dict(own_optimizer_state(state, optimizer) if fsdp else state)
    for group, ours in zip(optimizer.param_groups, settings):
        group.update(ours)                              # this run's weight decay, betas and ratios, should they have changed
    scaler.load_state_dict(checkpoint['scaler'])
    start, best_val_loss, first_loss = checkpoint['iter'], checkpoint['best_val_loss'], checkpoint.get('first_loss')
    config['init_from'] = checkpoint['config']['init_from']     # config.json repeats the run from its start
    checkpoint = None
raw_model = model                                       # its parameters have the names of the module tree
if compile and not fsdp:
    model = torch.compile(model)
ddp = distributed and not fsdp
train_model = DistributedDataParallel(model, gradient_as_bucket_view=True) if ddp else model     # no second copy of them


# ----------------------------------------------------------------------------- what the loop needs
def to_device(x, y):
    if device.type != 'cuda':
        return x.to(device), y.to(device)
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


def score_tokens(x, y):
    """(1,): the loss of a batch, and its weight in the mean, in which all batches are alike"""
    return model(x, y)[1][None], 1


def score_images(x, y):
    """(3,): loss, top-1 and top-5 accuracy of a batch, and its weight in the mean, its images"""
    logits, loss = model(x, y)
    right = logits.topk(min(5, logits.size(1))).indices == y[:, None]
    return torch.stack((loss, right[:, 0].float().mean(), right.any(1).float().mean())), len(y)


score = score_images if vision else score_tokens


@torch.no_grad()
def evaluate():
    """{'train_loss': …, 'val_loss': …}: the mean of each metric over a split's evaluation windows, which the ranks share."""
    model.eval()
    means = {}
    for split, windows in data.items():
        batches = windows.spread(eval_iters, batch_size)
        total = torch.zeros(len(metrics) + 1, device=device)
        for i in range(rank, -(-len(batches) // world_size) * world_size, world_size):     # under fsdp they compute together
            x, y = to_device(*windows.read(batches[i % len(batches)]))
            with autocast(device, dtype):
                scores, weight = score(x, y)
            weight *= i < len(batches)
            total[:-1] += weight * scores
            total[-1] += weight
        if distributed:
            dist.all_reduce(total)
        *sums, weights = total.tolist()
        means.update({f'{split}_{name}': value / weights for name, value in zip(metrics, sums)})
    model.train()
    return means


def diverged(at, what):
    """Tells the terminal and the log, and exits with 3."""
    if master:
        kept = f'{path["ckpt.pt"]} holds the last good state' if os.path.exists(path['ckpt.pt']) else 'none was saved yet'
        if not eval_only:
            norms = {kind: dict(zip(('weights', 'gradient'), pair)) for kind, pair in zip(blocks, last_norms.tolist())}
            log(iter=at, diverged=what, lr=rate(at), last_finite_iter=last_finite, norms=norms)
        print(f'diverged: {what} at iteration {at}, learning rate {rate(at):.3e}; {kept}', file=sys.stderr)
    leave(3)


@torch.no_grad()
def block_norms(tensor_of):
    """(block types,): the norm of tensor_of(p) over the parameters p of each, on the device."""
    norms = [torch.nn.utils.get_total_norm([local(tensor_of(p)) for p in params]) for params in blocks.values()]
    if not fsdp:
        return torch.stack(norms)
    squares = torch.stack(norms).square()
    dist.all_reduce(squares)
    return squares.sqrt()


def whole_model():
    """The model, or under fsdp a copy with all of its weights, on rank 0; every rank calls it."""
    if not fsdp:
        return raw_model
    weights = whole(raw_model.state_dict(), keep=master)
    if master:
        copy = new_model().to(device)
        copy.load_state_dict(weights)
        return copy


def stop_if_diverged(*losses):
    """Exits with 3 where a loss or gradient was not finite, and so before a checkpoint could take it in."""
    bad = first_bad.clone()
    if distributed:
        dist.all_reduce(bad, dist.ReduceOp.MIN)
    bad = int(bad.item())
    overflows = scaler.is_enabled() and scaler.get_scale() < 1      # the scaler has halved its scale in vain
    if bad == never and not overflows and all(math.isfinite(loss) for loss in losses):
        return
    diverged(bad if bad < never else max(0, it - 1), 'the loss or its gradient was not finite')     # or by the step before


def write_whole(name, write):
    """Calls write(file) on a file beside `name` which then takes its place, whole. OSError where the disk is full."""
    try:
        with open(name + '.tmp', 'wb') as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(name + '.tmp', name)
    except (OSError, RuntimeError) as error:            # torch.save makes a RuntimeError of it
        if os.path.exists(name + '.tmp'):
            os.remove(name + '.tmp')
        raise OSError(f'{name} could not be written, what was there is kept: {str(error).splitlines()[0]}') from error


def save(it, best=False):
    """Writes ckpt.pt, and with best a second name for it. Every rank calls it, because under fsdp each holds a part."""
    if not (master or fsdp):
        return
    state = dict(model=raw_model.state_dict(), optimizer=optimizer.state_dict(), scaler=scaler.state_dict(), config=config,
                 iter=it, best_val_loss=best_val_loss, first_loss=first_loss)
    if fsdp:
        state = whole(state, keep=master)
        if not master:
            return
    write_whole(path['ckpt.pt'], lambda f: torch.save(state, f))
    if best:
        try:
            os.link(path['ckpt.pt'], path['best.pt'] + '.tmp')          # the next save replaces ckpt.pt, not this
        except OSError:
            shutil.copyfile(path['ckpt.pt'], path['best.pt'] + '.tmp')
        os.replace(path['best.pt'] + '.tmp', path['best.pt'])


def continue_rows(name):
    """A file of JSON rows, open for the next one; the rows of iterations that come again are dropped."""
    rows = []
    if start and os.path.exists(path[name]):
        with open(path[name], encoding='utf-8') as f:
            rows = [line for line in f if line.endswith('}\n') and json.loads(line)['iter'] < start]
    write_whole(path[name], lambda f: f.writelines(line.encode() for line in rows))
    return open(path[name], 'a', encoding='utf-8')


def rate(it, ratio=1.0):
    return lr_at(it, schedule, learning_rate, min_lr, warmup_iters, lr_decay_iters or max_iters, decay_frac, ratio, blockwise)


def log(**row):
    log_file.write(json.dumps(row) + '\n')
    log_file.flush()
    if wandb_log:
        wandb.log(row, step=row['iter'])


def git(*args):
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        return subprocess.run(['git', *args], capture_output=True, text=True, cwd=here).stdout.strip()
    except OSError:
        return ''                                       # a machine without git


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f'{minutes // 60}h{minutes % 60:02d}m' if minutes >= 60 else f'{minutes}m{seconds:02d}s'


def leave(code):
    """Ends the process. Among ranks it does so at once, without the interpreter's own end: a thread of gloo that frees its
    last tensor during that would abort the process."""
    if wandb_log and master and not eval_only:
        wandb.finish(exit_code=code)
    if distributed:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def on_signal(number, frame):
    """Ends the run after this step; a second Ctrl-C at once. Schedulers and torchrun may send SIGTERM more than once."""
    global stop_signal
    stop_signal = number
    if number == signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)


stop_signal = stop = 0
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, on_signal)

if master and not eval_only:
    os.makedirs(out_dir, exist_ok=True)
    for name in ('ckpt.pt', 'best.pt', 'measure.jsonl', 'measure.json') if start == 0 else ():
        if os.path.exists(path[name]):
            os.remove(path[name])                       # of the run that this one replaces
    log_file = continue_rows('log.jsonl')
    if measure_interval:
        from measure import IN_TRAINING, measure, update_sizes, write_row
        measure_file = continue_rows('measure.jsonl')
        measure_data = [to_device(*data['train'].read(starts)) for starts in data['train'].spread(measure_batches, batch_size)]
    write_whole(path['config.json'], lambda f: f.write(json.dumps(config, indent=1).encode()))
    run = dict(command=' '.join([sys.executable, *sys.argv]), ranks=world_size, device=str(device), dtype=str(dtype),
               machine=torch.cuda.get_device_name(device) if device.type == 'cuda' else f'{os.cpu_count()} CPU cores',
               platform=platform.platform(), python=platform.python_version(), torch=torch.__version__, numpy=np.__version__,
               commit=git('rev-parse', 'HEAD'), changed=git('status', '--porcelain', '--untracked-files=no').splitlines(),
               parameters=raw_model.num_params(), **{f'{unit}_per_iter': per_iter})
    write_whole(path['run.json'], lambda f: f.write(json.dumps(run, indent=1).encode()))
    if wandb_log:
        import wandb
        wandb.init(project=wandb_project, name=wandb_run_name or os.path.basename(os.path.normpath(out_dir)),
                   config={**config, **run}, dir=out_dir)
    print(f'{raw_model.num_params():,} parameters on {world_size} × {run["machine"]}, {str(dtype)[6:]}; '
          f'{per_iter:,} {unit} an iteration, {data["train"].windows:,} {"images" if vision else "windows"} an epoch; '
          f'in {out_dir}')
    if brought:
        print(f'{init_from} brings its own {", ".join(f"{key}={value}" for key, value in sorted(brought.items()))}')
    print(f'{"block type":12}{"tensors":>8}{"parameters":>15}{"LR ratio":>10}{"decay":>8}')
    for group in optimizer.param_groups:
        print(f'{group["block_type"]:12}{len(group["params"]):8}{sum(p.numel() for p in group["params"]):15,}'
              f'{group["lr_ratio"]:10g}{group["weight_decay"]:8g}')

# ----------------------------------------------------------------------------- the loop
never = 2 ** 62
first_bad = torch.full((), never, device=device)        # the first iteration that was not finite, kept on the device
peak = world_size * (vendors_peak(device) or 0)         # FLOP/s; MFU is the share of it that the model's own FLOPs take
flops = raw_model.flops_per_image() if vision else raw_model.flops_per_token()
began = time.perf_counter()
lap, lap_iters = began, 0                               # since the last line of the log
blocks = {}                                             # block type → its parameters
for group in optimizer.param_groups:
    blocks.setdefault(group['block_type'], []).extend(group['params'])
last_finite, last_norms = -1, torch.zeros(0, 2)         # the last logged iteration that was finite, and the norms then
high_since = None                                       # the first of the logged losses that are above the limit
for it in range(start, max_iters + 1):

    if it % eval_interval == 0 or it == max_iters or eval_only:
        stop_if_diverged()
        t = time.perf_counter()
        means = evaluate()
        val_loss = means['val_loss']
        if master:
            print(f'iter {it}:', ', '.join(f'{name.replace("_", " ")} {value:.4f}' for name, value in means.items()))
        stop_if_diverged(*means.values())
        if eval_only:
            break
        if master:
            log(iter=it, **means)
        again = it == start and val_loss == best_val_loss       # a kill may have come before best.pt was there
        improved = it > 0 and (again or val_loss < best_val_loss)
        best_val_loss = val_loss if improved else best_val_loss
        if high_since is None and (improved or always_save_checkpoint and it > start):
            save(it, best=improved)
        lap += time.perf_counter() - t
    if it == max_iters:
        break

    lr = rate(it)
    for group in optimizer.param_groups:
        group['lr'] = rate(it, group['lr_ratio'])

    measure_now = measure_interval and it % measure_interval == 0
    if measure_now:
        stop_if_diverged()
        probe = whole_model()
    measuring = measure_now and master
    if measuring:
        t = time.perf_counter()
        measured = measure(probe, measure_data, IN_TRAINING, seed)
        before = {name: p.detach().clone() for name, p in probe.named_parameters()}
        lap += time.perf_counter() - t

    loss_sum = torch.zeros((), device=device)
    for j in micro_batches:
        number = it * gradient_accumulation_steps + j
        x, y = to_device(*data['train'].shuffled(number * batch_size, batch_size, data_seed))
        torch.manual_seed(hash((seed, number)))         # dropout too is a function of the seed and the micro-batch alone
        x, y = augment(x, y)
        if ddp:
            train_model.require_backward_grad_sync = j == micro_batches[-1]
        with autocast(device, dtype, cache=not recompute):      # which casts a block's weights twice anyway
            loss = train_model(x, y)[1]
        scaler.scale(loss / len(micro_batches)).backward()
        loss_sum += loss.detach() / gradient_accumulation_steps
    scaler.unscale_(optimizer)
    grad_norms = block_norms(lambda p: p.grad)
    grad_norm = torch.linalg.vector_norm(grad_norms)
    torch.nn.utils.clip_grads_with_norm_(raw_model.parameters(), grad_clip or float('inf'), grad_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if measure_now:
        probe = whole_model()
    if measuring:
        write_row(measure_file, dict(iter=it, **measured, updates=update_sizes(before, probe)))
        del measured, before, probe
    watched = loss_sum if scaler.is_enabled() else loss_sum + grad_norm     # the scaler lives with gradients that overflow
    first_bad = torch.where(torch.isfinite(watched), first_bad, first_bad.clamp(max=it))
    lap_iters += 1
    if it == start:
        began = time.perf_counter()                     # the first iteration compiles, and tells nothing of the rest

    if it % log_interval == 0:
        stop_if_diverged()
        last_finite, last_norms = it, torch.stack((block_norms(lambda p: p), grad_norms), dim=1)
        if distributed:
            dist.all_reduce(loss_sum)
        first_loss = first_loss or loss_sum.item()
        high = diverge_factor and loss_sum.item() > diverge_factor * first_loss
        high_since = (it if high_since is None else high_since) if high else None
        if high and it - high_since >= 100:
            diverged(it, f'the loss has been above {diverge_factor} times its first value, {first_loss:.4f}, for 100 iterations')
        if master:
            now = time.perf_counter()
            speed = lap_iters * per_iter / (now - lap)
            pace = (now - began) / (it - start) if it > start else now - lap
            mfu = {'mfu': round(speed * flops / peak, 4)} if peak else {}
            log(iter=it, loss=loss_sum.item(), lr=lr, grad_norm=grad_norm.item(), **{f'{unit}_per_s': round(speed)}, **mfu)
            left = clock(pace * (max_iters - it - 1))
            shown = f', MFU {mfu["mfu"]:.1%}' if mfu else ''
            print(f'iter {it}: loss {loss_sum.item():.4f}, lr {lr:.2e}, {speed:,.0f} {unit}/s{shown}, {left} left')
            lap, lap_iters = time.perf_counter(), 0

    stop = stop_signal                                  # a copy: the next signal may come while the ranks agree
    if distributed:
        stop = torch.tensor(stop)
        dist.all_reduce(stop, dist.ReduceOp.MAX, group=control)
        stop = int(stop)
    if stop:
        stop_if_diverged()
        save(it + 1)
        if master:
            start_with = 'torchrun …' if distributed else 'python'
            print(f'stopped after iteration {it}; to go on: {start_with} train.py {path["config.json"]} --init_from=resume')
        if distributed:
            dist.barrier(group=control)                 # torchrun ends all ranks once one has exited
        break

leave(128 + stop if stop else 0)
