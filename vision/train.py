"""
Trains a ViT on images, on one process or many:

    python -m vision.train config/train_quick_vision.py config/arch/s1.py
    torchrun --nproc_per_node=8 -m vision.train config/vit/train_vdnt_l_sgd.py

Config files and --key=value set the keys below, those of ViTConfig and those of train.py. They apply in order, and the later one
wins. The loop is that of train.py without FSDP; batches, augmentation and scores differ.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.train')

from configurator import TRAIN, configure

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from data.write import SPLITS
from engine.checkpoint import load_weights
from engine.device import Machine, tune_for_training, why_not_compile
from engine.keys import CHOICES, LOWS, check_keys, config_from, group_settings
from engine.run import Run, Speed, progress
from engine.stats import StepStats, block_stats, tell_unused
from optim import lr_at, make_optimizer, param_groups
from vision.augment import INTERPOLATIONS, Mix
from vision.data import Images, Reader, Shuffled
from vision.vit import ViT, ViTConfig, correct

# ----------------------------------------------------------------------------- keys, besides those of ViTConfig and train.py
# data
crop_scale = 1.0                    # random crops of at least this share of the area, resized; 1: the middle square
interpolation = 'bicubic'           # bicubic | bilinear | random: how to resize crops; random: one of the two for each image
aug_repeats = 1                     # copies of each image in a row, each augmented anew (repeated augmentation)
flip = 0.0                          # probability of a horizontal flip
randaugment = 0.0                   # magnitude of RandAugment, up to 10; 0: none
mixup = 0.0                         # α of mixup; 0: none
cutmix = 0.0                        # α of cutmix; if mixup is on too, each batch uses one of the two; 0: none
label_smoothing = 0.0               # share of each target that is spread over all classes
workers = 0                         # processes of each rank that read images, and as many for each evaluated split; 0: none
# -----------------------------------------------------------------------------
config = configure(globals(), ViTConfig, TRAIN)
check_keys(config, CHOICES | dict(interpolation=INTERPOLATIONS, init_from=('scratch', 'resume', 'auto'), parallel=('ddp',)),
           LOWS | dict(crop_scale=0.01, aug_repeats=1, flip=0, randaugment=0, mixup=0, cutmix=0, label_smoothing=0, workers=0))
for key, most in dict(crop_scale=1, flip=1, randaugment=10, label_smoothing=1).items():
    if config[key] > most:
        raise ValueError(f'{key}={config[key]}: must be at most {most}')
model_config = config_from(ViTConfig, config)

# ----------------------------------------------------------------------------- the run, the machine, the data
machine = Machine(device, dtype)
run = Run(config, machine)
data = {split: Images(dataset, split, model_config) for split in SPLITS}
reader = Reader(Shuffled(data['train'], config), workers)
eval_readers = {split: Reader(images, workers) for split, images in data.items() if split != 'train' or eval_train}
group_keys = group_settings(config)
micro_batches = machine.my_range('gradient_accumulation_steps', gradient_accumulation_steps)
checkpoint = run.find_checkpoint(ViTConfig, data['train'].fingerprint)          # connects the ranks

# ----------------------------------------------------------------------------- model: built, compiled, spread over the ranks
def build():
    return ViT(model_config, data['train'].mean, data['train'].std)


torch.manual_seed(seed)
obstacle = why_not_compile(machine.device) if compile else ''
is_compiled = compile and not obstacle
tune_for_training(machine.device, tf32, deterministic, is_compiled)
raw_model = build()
raw_model.recompute = recompute
if checkpoint:
    load_weights(raw_model, checkpoint)
raw_model.to(machine.device)
model = torch.compile(raw_model) if is_compiled else raw_model
train_model = model                                     # under DDP, the wrapper that averages gradients over the ranks
if machine.distributed:
    train_model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train_model.broadcast_buffers = False               # they are the same on all ranks

# ----------------------------------------------------------------------------- optimizer
optimizer = make_optimizer(param_groups(raw_model, **group_keys), {**config, 'compile': is_compiled, 'dtype': machine.dtype})
scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.dtype == torch.float16)
if checkpoint:
    run.resume(checkpoint, optimizer, scaler)
else:
    machine.after_step(raw_model)                       # a resumed run's checkpoint was saved after it
checkpoint = None                                       # free its memory
mix = Mix(config, model_config.classes)


@torch.no_grad()
def evaluate():
    """Return {'train_loss': …, 'train_top1': …, 'train_top5': …, 'val_loss': …}: means over the images of eval_iters batches of
    each split, always the same ones, without augmentation. The ranks share the work."""
    raw_model.eval()
    means = {}
    for split, eval_reader in eval_readers.items():
        shard = list(machine.padded_shard(data[split].eval_batches(eval_iters, batch_size)))
        numbers = [np.pad(batch, (0, batch_size - len(batch)), constant_values=-1) for batch, _ in shard]
        total, items = torch.zeros(4, device=machine.device), progress(shard, f'evaluation on {split}', shown=machine.master)
        for (_, counts), batch in zip(items, eval_reader.batches(numbers)):
            x, y = machine.to_device(*batch)
            with machine.autocast():
                logits, loss = model(x, y)
            images = (y >= 0).sum()                     # padding has the class −1
            top1, top5 = correct(logits, y).sum(1)
            total += counts * torch.stack((images * loss, top1, top5, images))
        loss_sum, top1, top5, images = machine.sum(total).tolist()
        means |= {f'{split}_loss': loss_sum / images, f'{split}_top1': top1 / images, f'{split}_top5': top5 / images}
    raw_model.train()
    return means


def stats_of_blocks():
    """Return the numbers of block_stats for the first batch of the validation split, on rank 0."""
    if not machine.master:
        return {}
    x, _ = machine.to_device(*data['val'].read(data['val'].eval_batches(1, batch_size)[0]))
    with machine.autocast():
        return block_stats(raw_model, x)


# ----------------------------------------------------------------------------- log, measurements
images_per_iter = gradient_accumulation_steps * batch_size
notes = [f'this run is not compiled, and therefore slower: {obstacle}'] if obstacle else []
run.begin(raw_model, optimizer, f'{images_per_iter:,} images an iteration, {data["train"].count:,} images an epoch', notes,
          compiled=is_compiled, images_per_iter=images_per_iter)
stats = StepStats(raw_model, optimizer, machine, gradient_accumulation_steps, log_layers)
speed = Speed('images', images_per_iter, raw_model.flops_per_image(), machine, max_iters)
if measure_interval:
    from lab.measure import Probe
    probe = Probe(run, config, machine, data['train'], build)

# ----------------------------------------------------------------------------- the loop
# The passes of train.py
firsts = ((it * gradient_accumulation_steps + j) * batch_size for it in range(run.start, max_iters) for j in micro_batches)
loader = reader.batches(range(first, first + batch_size) for first in firsts)
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
        means = evaluate() if evaluates else {}
        if evaluates:
            run.raise_if_diverged(it, stats, scaler, means.values())
            run.log_evaluation(it, means, stats_of_blocks())
        is_best = run.is_best(it, means)
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
        x, y = machine.to_device(*next(loader))
        torch.manual_seed(hash((seed, number)))         # for mixtures, dropout and stochastic depth
        x, y = mix(x, y)
        if machine.distributed:                         # the last backward pass averages gradients over the ranks
            train_model.require_backward_grad_sync = j == micro_batches[-1]
        raw_model.aux.clear()
        raw_model.logged.clear()
        with machine.autocast(cache=not recompute):
            _, loss = train_model(x, y)
        stats.add(loss)                                 # now: recomputation adds to aux and logged again
        loss = sum(raw_model.aux.values(), loss)        # what an edit of the model adds to the loss
        scaler.scale(loss / len(micro_batches)).backward()      # DDP averages gradients over the ranks
    if it == run.start:
        tell_unused(raw_model, machine.distributed, run.say)

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

for each in (reader, *eval_readers.values()):
    each.close()
run.end(it, stop)
