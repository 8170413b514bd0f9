"""
Trains a GPT, or with --model=vit a ViT, on one process or many:

    python train.py config/train_quick.py config/arch/s1.py --learning_rate=0.1
    torchrun --nproc_per_node=8 train.py config/train_ldnt_sgd.py
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=HOST train.py config/train_ldnt_sgd.py

Config files and --key=value set the keys below. They apply in order, and the later one wins.
"""
from configurator import configure, flags, refuse

import os
from contextlib import nullcontext
from dataclasses import asdict

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from engine.checkpoint import Checkpoints, find_checkpoint, load_weights
from engine.device import Machine, StopRequest, attention_backend_of, lacks_to_compile, tune_for_training
from engine.divergence import Watch, block_norms
from engine.keys import check_keys, group_settings, unused_keys
from engine.memory import check_memory
from engine.pretrained import load_others
from engine.pretrained_vit import load_vit
from engine.runlog import Log, Run, Speed, progress, working_time
from engine.task import task_of
from model import GPTConfig
from optim import OPTIMIZERS, check_on_shards, lr_at, param_groups
from vit import ViTConfig

# ----------------------------------------------------------------------------- keys, besides those of GPTConfig and ViTConfig
out_dir = 'out'                     # the run's folder: config.json, run.json, log.jsonl, ckpt.pt, best.pt
eval_interval = 2000                # iterations between evaluations, each followed by a checkpoint
eval_iters = 200                    # batches of each split in an evaluation, the same ones every time
log_interval = 1                    # iterations between lines of the log
eval_only = False                   # evaluate once and stop
model = 'gpt'                       # gpt | vit: a GPT on text or a ViT on images, each with its own keys below
init_from = 'scratch'               # scratch | resume | auto: either | a model: gpt2, gpt2-medium, …, gpt2-xl, or its folder
image_mean = []                     # per channel, 0 to 1: what a ViT of init_from subtracts, where its weights do not state it
image_std = []                      # and by what it divides then; both empty: what the weights state, or else a guess of 0.5
overwrite = False                   # start again in a folder that holds a run; that run is lost once the new one has saved
always_save_checkpoint = True       # write ckpt.pt after every evaluation, not only after the best one so far
wandb_log = False                   # log to Weights & Biases too
wandb_project = 'nanonorm'          # project on Weights & Biases
wandb_run_name = ''                 # the run's name there; empty: the name of out_dir
dataset = 'openwebtext'             # a folder of data/
vocab_size = 0                      # text: tokens that the model knows, at least those of the data; 0: these
gradient_accumulation_steps = 40    # micro-batches per iteration, over all ranks
batch_size = 12                     # windows of block_size tokens, or images, per micro-batch
optimizer = 'adamw'                 # adamw | sgdw | lion | adam_mini | muon
learning_rate = 6e-4                # peak
max_iters = 600000                  # optimizer steps of the whole run
weight_decay = 1e-1                 # decoupled; on matrices, and with decay_norms on norms too
decay_norms = False                 # weight decay on the gains and biases of norms too
wd_TYPE = 1.0                       # the weight decay of TYPE, a block type of model.py, as a multiple of weight_decay
beta1 = 0.9                         # adamw, lion, adam_mini; muon: of its AdamW, for all but the matrices of blocks
beta2 = 0.95                        # the same; config/optim/lion.py has the usual values for Lion
momentum = 0.9                      # sgdw, muon; config/optim/muon.py has the usual value for Muon
muon_scale = 'match_rms_adamw'      # match_rms_adamw: AdamW's learning rates fit | original: Jordan's do; see Muon in optim.py
grad_clip = 1.0                     # largest norm of the whole gradient; 0: no clipping
diverge_factor = 0.0                # stop if the loss stays above this times its first value for 100 iterations; 0: never
schedule = 'cosine'                 # cosine | wsd | linear | constant
warmup_iters = 2000                 # iterations of linear warm-up
lr_decay_iters = 0                  # the iteration at which the rate reaches min_lr; 0: max_iters
min_lr = 6e-5                       # the rate at the end of the schedule
decay_frac = 0.2                    # wsd: the share of the iterations, at the end, over which the rate falls
r_TYPE = 1.0                        # Blockwise LR: the learning rate of TYPE, a block type, as a multiple of learning_rate
blockwise = 'ramp'                  # ramp | jump | merge: how a block type's rate leaves the base rate, see lr_at in optim.py
crop_scale = 1.0                    # images: random crops of at least this share of the area, resized; 1: the middle square
interpolation = 'bicubic'           # bicubic | bilinear | random: how crops are resized; random: one of the two for each image
aug_repeats = 1                     # images: how many times in a row each comes, augmented anew each time (repeated augmentation)
flip = 0.0                          # images: probability of a mirror image
randaugment = 0.0                   # images: magnitude of RandAugment, up to 10; 0: none
mixup = 0.0                         # images: α of mixup; 0: none
cutmix = 0.0                        # images: α of cutmix; if mixup is on too, each batch uses one of the two; 0: none
label_smoothing = 0.0               # images: the share of a target that is spread over all classes
seed = 1337                         # of weights, dropout and augmentation
data_seed = 1337                    # of the order of the training data
measure_interval = 0                # iterations between the measurements of lab/measure.py, written to measure.jsonl; 0: none
measure_batches = 4                 # batches in a measurement, the same ones every time
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16; auto: bfloat16 if the hardware computes in it
attention_backend = 'auto'          # auto | flash | cudnn | efficient | math: the kernel for attention; run.json tells which
compile = True                      # torch.compile, if there is the compiler that it needs: of C++ on a CPU, of C on a GPU
recompute = False                   # save memory: keep only each block's input, and compute the rest again in the backward pass
parallel = 'ddp'                    # with torchrun: ddp: each rank holds all parameters and their state | fsdp: a share of them
ddp_overlap = False                 # ddp, compiled: more and smaller graphs, so that gradients are sent during the backward pass
ddp_bf16 = False                    # ddp: send gradients in bfloat16, half as many bytes
reshard = True                      # fsdp: gather a block's parameters again for its backward pass, instead of keeping them
reduce_each = True                  # fsdp: reduce gradients after each micro-batch; False: once, for 4 bytes a parameter
save_shards = False                 # fsdp: each rank writes its own part of a checkpoint, in the background, into a folder
shard_ranks = 0                     # fsdp: how many ranks share one copy of the model, such as a node's GPUs; 0: all
backend = 'auto'                    # auto | nccl | gloo, for torch.distributed; auto: nccl on GPUs, gloo elsewhere
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig, ViTConfig)
check_keys(config)
if 'SWEEP_PID' not in os.environ:                       # the grid of a sweep may hold them, as config files may
    for key, why in unused_keys(config).items():
        refuse((key,), why)

# ----------------------------------------------------------------------------- what is trained, where, on which data
run = Run(config)                                       # its folder, and whether it starts or resumes there
task = task_of(config)                                  # text or images
pretrained, brought = None, {}                          # a pretrained model, and the keys that it overrides
if run.init_from not in ('scratch', 'resume'):
    pretrained = load_vit(run.init_from, config, flags()) if model == 'vit' else load_others(run.init_from, task.config)
    task.config = pretrained.config
    brought = {key: value for key, value in asdict(task.config).items() if config[key] != value}
    differ = [f'{key} ({value} there, {config[key]} here)' for key, value in brought.items() if key in flags()]
    if differ:
        raise ValueError(f'{run.init_from} has another architecture than the command line: {", ".join(differ)}; leave these out')
    config.update(brought)                              # the pretrained model decides the architecture
    check_keys(config)
if pretrained is None or model != 'vit':
    refuse(('image_mean', 'image_std'), 'only a ViT that init_from loads takes it')
machine = Machine(device, dtype)
micro_batches = machine.share('gradient_accumulation_steps', gradient_accumulation_steps)       # this rank's, in each iteration
ddp = machine.distributed and parallel == 'ddp'
fsdp = machine.distributed and parallel == 'fsdp'
if fsdp:
    from engine.fsdp import check_dtype, init_sharded, load_sharded, shard_model, whole_copy, without_memory
    check_dtype(machine.dtype)
if ddp_bf16 and machine.device.type != 'cuda':
    raise ValueError(f'ddp_bf16=True: NCCL sends bfloat16, and the device is {machine.device.type}; leave it out')
check_memory(task, machine.device, batch_size, recompute=recompute, ranks=machine.world_size if fsdp else 1)
data = task.splits()
run.data = data['train'].fingerprint                    # checkpoints hold it, and only the same data resumes
augment = task.augmentation()
checkpoint = None
if run.init_from == 'resume':
    checkpoint = find_checkpoint(run.path['ckpt.pt'], config, task.config, run.data, machine.distributed, whole=not fsdp)
    run.start = checkpoint['iter']
settings = group_settings(config)                       # learning rate and weight decay of each block type
config['init_from'] = checkpoint['config']['init_from'] if checkpoint else run.init_from  # config.json repeats the whole run
config['overwrite'] = False
machine.connect(backend)
starts = machine.gather(run.start)
if len(set(starts)) > 1:
    raise ValueError(f'the ranks see checkpoints of iterations {starts}: put out_dir={out_dir} on a disk that all of them share')

# ----------------------------------------------------------------------------- model and optimizer
torch.manual_seed(seed)
with without_memory(task.Model) if fsdp else nullcontext():
    raw_model = pretrained or task.new_model(data['train'])     # a ViT stores the data's mean and standard deviation
raw_model.recompute = recompute
tune_for_training(machine.device, raw_model, attention_backend)
lacking = lacks_to_compile(machine.device) if compile else ''
compiled = compile and not lacking
attention_in_use = attention_backend_of(raw_model, machine.device, machine.dtype)
if fsdp:
    shard_model(raw_model, machine.device, machine.dtype, reshard, compiled, shard_ranks)
if checkpoint:
    load = load_sharded if fsdp else load_weights
    load(raw_model, checkpoint, run.path['ckpt.pt'])
elif fsdp and not pretrained:
    init_sharded(raw_model)
raw_model.to(machine.device)
opt = OPTIMIZERS[optimizer](param_groups(raw_model, **settings), {**config, 'compile': compiled, 'dtype': machine.dtype})
if fsdp:
    check_on_shards(opt)
scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.dtype == torch.float16)
compiled_model = torch.compile(raw_model) if compiled and not fsdp else raw_model
train_model = compiled_model
if ddp:
    torch._dynamo.config.optimize_ddp = ddp_overlap
    train_model = DistributedDataParallel(compiled_model, gradient_as_bucket_view=True)
    train_model.broadcast_buffers = False               # they are the same on all ranks
    if ddp_bf16:
        train_model.register_comm_hook(None, bf16_compress_hook)


def rate(it, ratio=1.0):
    """The learning rate of an iteration, for block types with this ratio"""
    return lr_at(it, schedule, learning_rate, min_lr, warmup_iters, lr_decay_iters or max_iters, decay_frac, ratio, blockwise)


def by_type(norms):
    """{block type: number} of a tensor (block types,) as block_norms gives it"""
    return dict(zip(params_of, norms.tolist()))


@torch.no_grad()
def evaluate(*splits):
    """{'train_loss': …, 'val_loss': …}: the mean of each metric over a split's evaluation windows. The ranks share the work."""
    raw_model.eval()
    means = {}
    for split in splits:
        windows = data[split]
        batches = windows.spread(eval_iters, batch_size)
        total = torch.zeros(len(task.metrics) + 1, device=machine.device)
        turns = list(machine.turns(batches))
        for starts, counts in progress(turns, f'evaluation on {split}', shown=machine.master):
            batch = windows.read_padded(starts, batch_size) if compiled else windows.read(starts)   # one size: one graph
            x, y = machine.to_device(*batch)
            with machine.autocast():
                scores, weight = task.score(compiled_model, x, y)
            total[:-1] += counts * weight * scores
            total[-1] += counts * weight
        *sums, weights = machine.sum(total).tolist()
        means.update({f'{split}_{name}': value / weights for name, value in zip(task.metrics, sums)})
    raw_model.train()
    return means


def model_to_measure():
    """The model with all of its weights on rank 0, None on others. Every rank must call it."""
    if fsdp:
        return whole_copy(raw_model, lambda: task.new_model(data['train']).to(machine.device), machine.master)
    return raw_model if machine.master else None


# ----------------------------------------------------------------------------- what the loop reports to
params_of = {}                                          # {block type: its parameters}
for group in opt.param_groups:
    params_of.setdefault(group['block_type'], []).extend(group['params'])
stop_request = StopRequest()
per_iter = gradient_accumulation_steps * batch_size * task.per_window()
log = Log(run, config, machine, parameters=raw_model.num_params(), attention_backend=attention_in_use, compiled=compiled,
          **{f'{task.unit}_per_iter': per_iter})
watch = Watch(config, machine, run, log, rate, scaler, params_of)
checkpoints = Checkpoints(run, config, machine, raw_model, opt, scaler, watch, sharded=fsdp)
if checkpoint:
    checkpoints.resume(checkpoint)
    del checkpoint
if measure_interval:
    from lab.measure import Probe
    probe = Probe(run, config, machine, data['train'])
log.introduce(opt, task, data, per_iter, brought, getattr(pretrained, 'started', []), rate)
for line in getattr(pretrained, 'notes', []):           # what was left out, changed or guessed
    log.say(f'{run.init_from}: {line}')
if lacking:
    log.say(f'this run is not compiled, and slower: {lacking}')
if compiled:
    log.say('compiling: the first evaluation and the first iteration take longer')
    working_time.skip_compiling()
speed = Speed(task.unit, per_iter, task.flops(raw_model), machine, max_iters)

# ----------------------------------------------------------------------------- the loop
stop = 0                                                # the number of the signal that ended the loop
for it in range(run.start, max_iters + 1):

    # evaluate, and save a checkpoint
    if it % eval_interval == 0 or it == max_iters or eval_only:
        watch.check(it)                                 # ends the process if the run has diverged
        with speed.paused():
            means = evaluate('train', 'val')
            watch.check(it, *means.values())
            if 'test' in data and (it == max_iters or eval_only):
                means |= evaluate('test')               # only at the end, and nothing depends on it
            log.evaluation(it, means)
            if eval_only:
                break
            checkpoints.evaluated(it, means['val_loss'])
    if it == max_iters:
        break

    # set the learning rate of each group
    for group in opt.param_groups:
        group['lr'] = group['lr_scale'] * rate(it, group['lr_ratio'])
    measure_now = measure_interval and it % measure_interval == 0
    if measure_now:
        watch.check(it)
        with speed.paused():
            probe.before_step(model_to_measure())

    # forward and backward, one micro-batch after another
    loss_sum = torch.zeros((), device=machine.device)
    for j in micro_batches:
        number = it * gradient_accumulation_steps + j
        batch = machine.to_device(*data['train'].shuffled(number * batch_size, batch_size, data_seed))
        torch.manual_seed(hash((seed, number)))         # dropout too depends only on the seed and the micro-batch
        x, y = augment(*batch)
        last = j == micro_batches[-1]
        if ddp:
            train_model.require_backward_grad_sync = last
        elif fsdp:
            raw_model.set_requires_gradient_sync(last or reduce_each)
            raw_model.set_requires_all_reduce(last)     # between copies of the model (shard_ranks)
        with machine.autocast(cache=not recompute):
            loss = train_model(x, y)[1]
        scaler.scale(loss / len(micro_batches)).backward()
        loss_sum += loss.detach() / gradient_accumulation_steps

    # clip the gradient, and step
    scaler.unscale_(opt)
    grad_norms = block_norms(params_of, lambda p: p.grad)       # per block type
    grad_norm = torch.linalg.vector_norm(grad_norms)
    torch.nn.utils.clip_grads_with_norm_(raw_model.parameters(), grad_clip or float('inf'), grad_norm)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    if measure_now:
        probe.after_step(it, model_to_measure())

    # log, and end if the run has diverged or was asked to stop
    watch.see(it, loss_sum, grad_norm)
    speed.iteration(it)
    if it % log_interval == 0:
        watch.check(it)
        mean_loss = machine.sum(loss_sum).item()
        weight_norms = block_norms(params_of, lambda p: p)
        watch.logged(it, mean_loss, weight_norms, grad_norms)
        row = dict(loss=mean_loss, lr=rate(it), grad_norm=grad_norm.item())
        log.step(it, row | dict(grad_norms=by_type(grad_norms), weight_norms=by_type(weight_norms)), speed)
    stop = machine.largest(stop_request.number)
    if stop:
        watch.check(it)
        good = watch.high_since is None
        if good:
            checkpoints.save(it + 1)
        log.stopped(it, saved=good)
        break

log.close(128 + stop if stop else 0)
machine.leave(128 + stop if stop else 0)
