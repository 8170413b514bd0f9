"""
Trains a GPT, on one process or many:

    python train.py config/train_quick.py config/arch/s1.py --learning_rate=0.1
    torchrun --nproc_per_node=8 train.py config/train_ldnt_sgd.py
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=HOST train.py config/train_ldnt_sgd.py

Config files and --key=value set the keys below. They apply in order, and the later one wins.
"""
from configurator import configure

import torch
from torch.nn.parallel import DistributedDataParallel

from data.tokens import Tokens, read_meta
from engine.checkpoint import load_weights
from engine.device import Machine, tune_for_training, why_not_compile
from engine.keys import check_keys, check_parallel, config_from, gpt_config, group_settings
from engine.run import Run, Speed, progress
from engine.stats import StepStats, block_stats, tell_unused
from model import GPT, GPTConfig
from optim import lr_at, make_optimizer, param_groups

# ----------------------------------------------------------------------------- keys, besides those of GPTConfig
# run
out_dir = 'out'                     # the run's folder, for config.json, run.json, log.jsonl, ckpt.pt, best.pt
eval_interval = 2000                # iterations between evaluations; each is followed by a checkpoint
eval_iters = 200                    # batches of each split in an evaluation, the same ones every time
log_interval = 1                    # iterations between log lines
log_layers = False                  # log the norms of gradient, weights and update of each layer too
eval_train = True                   # evaluate on the training split too
eval_only = False                   # evaluate once and stop
init_from = 'scratch'               # scratch | resume | auto: either | gpt2, …, gpt2-xl | the folder of a run or a model
max_minutes = 0.0                   # save and stop this many minutes after launch; 0: no limit
overwrite = False                   # delete the run in out_dir first
keep_every = 0                      # keep a numbered checkpoint every so many iterations; 0: never
always_save_checkpoint = True       # write ckpt.pt after every evaluation, not only after the best one so far
wandb_log = False                   # log to Weights & Biases too
wandb_project = 'nanonorm'          # Weights & Biases project
wandb_run_name = ''                 # Weights & Biases run name; empty: the name of out_dir
# data
dataset = 'openwebtext'             # a folder of data/, whose prepare.py has written its files
vocab_size = 0                      # vocabulary size, at least the data's; 0: the data's
gradient_accumulation_steps = 40    # micro-batches per iteration, over all ranks
batch_size = 12                     # windows of block_size tokens per micro-batch
# optimizer
optimizer = 'adamw'                 # CHOICES
weight_decay = 1e-1                 # decoupled; on matrices and embeddings, and with decay_norms on norms too
decay_norms = False                 # weight decay on norms too
wd_TYPE = 1.0                       # such as wd_ffn: the weight decay of this block type, as a multiple of weight_decay
beta1 = 0.9                         # adamw, lion, adam_mini; muon, normuon: for the AdamW part, all but the blocks' matrices
beta2 = 0.95                        # as beta1, and for normuon's rows; config/optim/lion.py has the usual values for Lion
momentum = 0.9                      # sgdw, muon, normuon; config/optim/muon.py has the usual value for Muon
cautious_decay = False              # decay a weight only where its update has its sign
hyperball = False                   # keep the norm of each matrix of a block, in place of its weight decay; see ListOptimizer
muon_scale = 'match_rms_adamw'      # match_rms_adamw: use AdamW's learning rates | original: use Jordan's; see Muon in optim.py
grad_clip = 1.0                     # clip the gradient's global norm to this; 0: no clipping
# schedule
learning_rate = 6e-4                # peak learning rate
max_iters = 600000                  # optimizer steps in the whole run
schedule = 'cosine'                 # cosine | wsd | linear | constant
warmup_iters = 2000                 # iterations of linear warm-up
lr_decay_iters = 0                  # iteration at which the learning rate reaches min_lr; 0: max_iters
min_lr = 6e-5                       # learning rate at the end of the schedule
decay_frac = 0.2                    # wsd: fraction of the iterations, at the end, over which the learning rate decays
r_TYPE = 1.0                        # Blockwise LR, such as r_qk: this block type's learning rate, as a multiple of learning_rate
blockwise = 'ramp'                  # ramp | peak | jump | merge: how Blockwise LR departs from the base schedule, see lr_at
# run
seed = 1337                         # seed for weights and dropout
data_seed = 1337                    # seed for the order of the training data
measure_interval = 0                # iterations between measurements (lab/measure/), written to measure.jsonl; 0: none
measure_batches = 4                 # batches per measurement, the same ones every time
# machine
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16; auto: bfloat16 if the hardware computes in it
tf32 = True                         # on a GPU, compute fp32 products in TF32: several times as fast, three digits, not seven
deterministic = False               # same bits every time, also compiled and on a GPU; slower; makes resuming exact
compile = True                      # use torch.compile if its compiler is installed: C++ for a CPU, C for a GPU
recompute = False                   # save memory: keep only each block's input, and recompute the rest in the backward pass
parallel = 'ddp'                    # under torchrun a rank holds  ddp: all parameters and optimizer state | fsdp: a share
backend = 'auto'                    # auto | nccl | gloo, for torch.distributed; auto: nccl on GPUs, gloo elsewhere
# -----------------------------------------------------------------------------
config = configure(globals(), GPTConfig)
check_keys(config)
if init_from in ('scratch', 'resume', 'auto'):
    gpt_config(config)                                  # fail early on a wrong value

# ----------------------------------------------------------------------------- the run, the machine, the data
machine = Machine(device, dtype)                        # this rank, its device, its dtype
run = Run(config, machine)                              # the run's folder, log and checkpoints
pretrained = None
if run.init_from not in ('scratch', 'resume'):
    from lab.convert.pretrained import load_pretrained
    pretrained = load_pretrained(run.init_from, config)         # sets its architecture in `config`
elif vocab_size == 0:
    config['vocab_size'] = read_meta(dataset)['vocab_size']
check_keys(config)
model_config = config_from(GPTConfig, config)
block_size = model_config.block_size
data = {split: Tokens(dataset, split, block_size, model_config.vocab_size) for split in read_meta(dataset)['tokens']}
group_keys = group_settings(config)                     # each block type's learning rate and weight decay
micro_batches = machine.my_range('gradient_accumulation_steps', gradient_accumulation_steps)    # this rank's in an iteration
check_parallel(config, machine)
checkpoint = run.find_checkpoint(GPTConfig, data['train'].fingerprint)          # connects the ranks

# ----------------------------------------------------------------------------- model: built, compiled, spread over the ranks
torch.manual_seed(seed)
ddp, fsdp = (machine.distributed and parallel == way for way in ('ddp', 'fsdp'))
obstacle = why_not_compile(machine.device) if compile else ''
is_compiled = compile and not obstacle
tune_for_training(machine.device, tf32, deterministic, is_compiled)
raw_model = pretrained or GPT(model_config)
raw_model.recompute = recompute
if checkpoint:
    load_weights(raw_model, checkpoint)
if fsdp:                # a rank holds some rows of each parameter in fp32; to compute, a block gathers its parameters in dtype
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh(machine.device.type, (machine.world_size,))
    policy = MixedPrecisionPolicy(param_dtype=machine.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in raw_model.h:
        if is_compiled:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    if is_compiled:
        raw_model.output = torch.compile(raw_model.output)
    fully_shard(raw_model, mesh=mesh, reshard_after_forward=False)          # the backward pass needs it right away
raw_model.to(machine.device)
model = torch.compile(raw_model) if is_compiled and not fsdp else raw_model
train_model = model                                     # under DDP, the wrapper that averages gradients over the ranks
if ddp:
    train_model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train_model.broadcast_buffers = False               # they are the same on all ranks

# ----------------------------------------------------------------------------- optimizer
optimizer = make_optimizer(param_groups(raw_model, **group_keys), {**config, 'compile': is_compiled, 'dtype': machine.dtype})
scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.dtype == torch.float16)
if checkpoint:
    run.resume(checkpoint, optimizer, scaler)
else:
    machine.after_step(raw_model)                       # a checkpoint holds the weights as they are after it
checkpoint = None                                       # free its memory


@torch.no_grad()
def evaluate(split):
    """Return the mean loss over eval_iters batches of a split, always the same ones. The ranks share the work."""
    raw_model.eval()
    batches, total = data[split].eval_batches(eval_iters, batch_size), torch.zeros(2, device=machine.device)
    for starts, is_new in progress(list(machine.padded_shard(batches)), f'evaluation on {split}', shown=machine.master):
        x, y = machine.to_device(*data[split].read(starts))
        with machine.autocast():
            _, loss = model(x, y)
        total += is_new * torch.stack((loss, torch.ones_like(loss)))
    raw_model.train()
    loss_sum, count = machine.sum(total).tolist()
    return loss_sum / count


def stats_of_blocks():
    """Return the numbers of block_stats for the first batch of the validation split, on rank 0."""
    if not machine.master or fsdp:                      # with fsdp, no rank alone holds a block's weights
        return {}
    x, _ = machine.to_device(*data['val'].read(data['val'].eval_batches(1, batch_size)[0]))
    with machine.autocast():
        return block_stats(raw_model, x)


# ----------------------------------------------------------------------------- log, measurements
tokens_per_iter = gradient_accumulation_steps * batch_size * block_size
notes = [f'this run is not compiled, and therefore slower: {obstacle}'] if obstacle else []
notes += ['parallel=fsdp does nothing on one process: torchrun starts several'] * (parallel == 'fsdp' and not fsdp)
run.begin(raw_model, optimizer, f'{tokens_per_iter:,} tokens an iteration, {data["train"].windows:,} windows an epoch',
          [*getattr(pretrained, 'notes', ()), *notes], compiled=is_compiled, tokens_per_iter=tokens_per_iter)
stats = StepStats(raw_model, optimizer, machine, gradient_accumulation_steps, log_layers)      # what the log says of a step
speed = Speed('tokens', tokens_per_iter, raw_model.flops_per_token(), machine, max_iters)
if measure_interval:
    from lab.measure import Probe
    probe = Probe(run, config, machine, data['train'], lambda: GPT(model_config))

# ----------------------------------------------------------------------------- the loop
# Each pass evaluates, logs and saves the model after `it` steps, then takes one more.
row = None                                              # of the last step, if it is logged
for it in range(run.start, max_iters + 1):
    last = it == max_iters or eval_only
    stop = run.stop_signal() if it > run.start else 0   # the number of a signal; each start takes at least one step
    evaluates = not stop and (it % eval_interval == 0 or last)
    measures = not stop and measure_interval and (it % measure_interval == 0 or last) and not eval_only
    saves = stop or it == run.start + 1 or keep_every and it % keep_every == 0 or evaluates and always_save_checkpoint

    # 1) evaluate, log, and save
    with speed.paused():
        if row or evaluates or saves or measures:       # first of all, stop if a loss or gradient was not finite
            run.raise_if_diverged(it, stats, scaler)
        if row:
            run.log_step(it - 1, row)
        splits = [split for split in data if dict(train=eval_train, val=True, test=last)[split]] if evaluates else []
        losses = {f'{split}_loss': evaluate(split) for split in splits}
        if evaluates:
            run.raise_if_diverged(it, stats, scaler, losses.values())
            run.log_evaluation(it, losses, stats_of_blocks())
        is_best = run.is_best(it, losses)
        if it > run.start and (is_best or saves):       # ckpt.pt, and best.pt if it is the best so far; the config joins there
            run.save(dict(model=raw_model.state_dict(), optimizer=optimizer.state_dict(), scaler=scaler.state_dict(), iter=it),
                     is_best)
        if measures:
            probe.before_step(it, raw_model, last)
    if last or stop:
        break

    # 2) forward and backward passes, one micro-batch at a time
    stats.begin()
    for j in micro_batches:
        number = it * gradient_accumulation_steps + j   # the micro-batch's number in the whole run
        torch.manual_seed(hash((seed, number)))         # dropout depends only on the seed and the micro-batch
        x, y = machine.to_device(*data['train'].shuffled(number * batch_size, batch_size, data_seed))
        if ddp:                                         # the last backward pass averages gradients over the ranks
            train_model.require_backward_grad_sync = j == micro_batches[-1]
        raw_model.aux.clear()
        raw_model.logged.clear()
        with machine.autocast(cache=not recompute):
            _, loss = train_model(x, y)
        stats.add(loss)                                 # now: recomputation adds to aux and logged again
        loss = sum(raw_model.aux.values(), loss)        # what an edit of the model adds to the loss
        scaler.scale(loss / len(micro_batches)).backward()      # DDP and FSDP average gradients over the ranks
    if it == run.start:
        tell_unused(raw_model, ddp, run.say)

    # 3) clip the gradient, set the learning rates, and step
    torch.manual_seed(hash((seed, ~it)))                # same random numbers on all ranks from here
    scaler.unscale_(optimizer)
    logs = it % log_interval == 0
    grad_norm = stats.gradient_norm(it, logs, copies=it % eval_interval == 0)
    torch.nn.utils.clip_grads_with_norm_(raw_model.parameters(), grad_clip or float('inf'), grad_norm)
    for group in optimizer.param_groups:
        group['lr'] = group['lr_scale'] * lr_at(it, config, group['lr_ratio'])
    scaler.step(optimizer)
    scaler.update()
    machine.after_step(raw_model)                       # nGPT, QK-Clip, and what an edit does there
    optimizer.zero_grad(set_to_none=True)
    if measures:
        probe.after_step(it, raw_model)
    speed.iteration(it)
    row = dict(lr=lr_at(it, config), **stats.row(), **speed.row(it)) if logs else None

run.end(it, stop)
