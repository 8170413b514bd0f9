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

from data.tokens import SPLITS
from engine.checkpoint import Checkpoints, find_checkpoint, load_weights
from engine.device import Machine, StopRequest, attention_backend_of, tune_for_training, why_not_compile
from engine.divergence import Watch, tell_unused
from engine.evidence import Evidence, block_norms
from engine.health import health
from engine.keys import CHOICES, LOWS, check_keys, check_parallel, config_from, group_settings
from engine.log import Log, Speed, add_scalars, progress
from engine.run import Run
from optim import lr_at, make_optimizer, param_groups
from vision.augment import INTERPOLATIONS, Mix
from vision.data import Images, Shuffled, batches_of
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
workers = 0                         # processes of each rank that read and augment images; 0: the training process does
# -----------------------------------------------------------------------------
config = configure(globals(), ViTConfig, TRAIN)
check_keys(config, CHOICES | dict(interpolation=INTERPOLATIONS, init_from=('scratch', 'resume', 'auto'), parallel=('ddp',)),
           LOWS | dict(crop_scale=0.01, aug_repeats=1, flip=0, randaugment=0, mixup=0, cutmix=0, label_smoothing=0, workers=0))
for key, most in dict(crop_scale=1, flip=1, randaugment=10, label_smoothing=1).items():
    if config[key] > most:
        raise ValueError(f'{key}={config[key]}: wants at most {most}')
model_config = config_from(ViTConfig, config)

# ----------------------------------------------------------------------------- the run, the machine, the data
run = Run(config)
machine = Machine(device, dtype)
data = {split: Images(dataset, split, model_config) for split in SPLITS}
run.data = data['train'].fingerprint
checkpoint = None
if run.init_from == 'resume':
    checkpoint = find_checkpoint(run, config, model_config, machine)
group_keys = group_settings(config)
config['init_from'] = checkpoint['config']['init_from'] if checkpoint else run.init_from
config['overwrite'] = False
micro_batches = machine.share('gradient_accumulation_steps', gradient_accumulation_steps)
check_parallel(config, machine)
machine.connect(backend, run.given(config))
run.leave_if_complete(checkpoint, config, machine)

# ----------------------------------------------------------------------------- model: built, compiled, spread over the ranks
def build(fill=True):
    return ViT(model_config, data['train'].mean, data['train'].std, fill=fill)


torch.manual_seed(seed)
obstacle = why_not_compile(machine.device) if compile else ''
is_compiled = compile and not obstacle
raw_model = build()
raw_model.recompute = recompute
tune_for_training(machine.device, raw_model, attention_backend, tf32, deterministic)
attention_kernel = attention_backend_of(raw_model, machine.device, machine.dtype)
if checkpoint:
    load_weights(raw_model, checkpoint)
raw_model.to(machine.device)
model = torch.compile(raw_model) if is_compiled else raw_model
train_model = model                                     # under DDP, the wrapper that averages gradients over the ranks
if machine.distributed:
    torch._dynamo.config.optimize_ddp = False           # its smaller graphs cost more than they hide
    train_model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train_model.broadcast_buffers = False               # they are the same on all ranks

# ----------------------------------------------------------------------------- optimizer
opt = make_optimizer(param_groups(raw_model, **group_keys), {**config, 'compile': is_compiled, 'dtype': machine.dtype})
scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.dtype == torch.float16)
mix = Mix(config, model_config.classes)


def rate(it, ratio=1.0):
    """Return the learning rate at an iteration, for block types with this ratio."""
    return lr_at(it, schedule, learning_rate, min_lr, warmup_iters, lr_decay_iters or max_iters, decay_frac, ratio, blockwise)


@torch.no_grad()
def evaluate(*splits):
    """Return {'train_loss': …, 'train_top1': …, 'train_top5': …, 'val_loss': …}: means over the images of eval_iters batches of
    each split, always the same ones, without augmentation. The ranks share the work."""
    raw_model.eval()
    means = {}
    for split in splits:
        shard = list(machine.padded_shard(data[split].spread(eval_iters, batch_size)))
        numbers = [np.pad(batch, (0, batch_size - len(batch)), constant_values=-1) for batch, _ in shard]
        total, items = torch.zeros(4, device=machine.device), progress(shard, f'evaluation on {split}', shown=machine.master)
        for (_, counts), batch in zip(items, batches_of(data[split], numbers, workers)):
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


# ----------------------------------------------------------------------------- checkpoints, log, measurements
checkpoints = Checkpoints(run, machine, False, opt)
if checkpoint:
    checkpoints.resume(checkpoint, scaler)
stop_request = StopRequest(max_minutes * machine.master)
images_per_iter = gradient_accumulation_steps * batch_size
log = Log(run, config, machine, parameters=raw_model.num_params(), attention_backend=attention_kernel,
          compiled=is_compiled, images_per_iter=images_per_iter)
watch = Watch(machine, run, log, rate, scaler)
evidence = Evidence(machine, opt, log_layers, model_config.vocab_size)
best_val_loss = checkpoint['best_val_loss'] if checkpoint else float('inf')
checkpoint = None                                       # free its memory
if measure_interval:
    from lab.measure import Probe
    probe = Probe(run, config, machine, data['train'], build)
log.introduce(opt, rate, f'{images_per_iter:,} images an iteration, {data["train"].windows:,} images an epoch', [])
if obstacle:
    log.say(f'this run is not compiled, and therefore slower: {obstacle}')
speed = Speed('images', images_per_iter, raw_model.flops_per_image(), machine, max_iters)


def state(it):
    """Return the state to save before iteration `it`."""
    return dict(model=raw_model.state_dict(), optimizer=opt.state_dict(), scaler=scaler.state_dict(), config=config, iter=it,
                started=checkpoints.started, best_val_loss=best_val_loss, data=run.data)


# ----------------------------------------------------------------------------- the loop
firsts = ((it * gradient_accumulation_steps + j) * batch_size for it in range(run.start, max_iters) for j in micro_batches)
batches = batches_of(Shuffled(data['train'], config), (range(first, first + batch_size) for first in firsts), workers)
stop = 0
for it in range(run.start, max_iters + 1):

    # evaluate, and save a checkpoint
    best, save = False, keep_every and it % keep_every == 0
    if it % eval_interval == 0 or it == max_iters or eval_only:
        watch.check(it)
        with speed.paused():
            means = evaluate('train', 'val')
            watch.check(it, *means.values())
            x, _ = machine.to_device(*data['val'].read(data['val'].spread(1, batch_size)[0]))
            with machine.autocast():
                sizes = health(raw_model, x) if machine.master else {}
            log.evaluation(it, means, sizes)
            if eval_only:
                break
        best, save = it > 0 and means['val_loss'] <= best_val_loss, save or always_save_checkpoint
        best_val_loss = means['val_loss'] if best else best_val_loss
    if best or save and it > run.start:
        watch.check(it)
        with speed.paused():
            checkpoints.save(state(it), best)           # ckpt.pt, and best.pt too if it is the best so far
    if it == max_iters:
        if measure_interval:
            probe.at_end(it, raw_model)
        break

    # set the learning rate of each group
    for group in opt.param_groups:
        group['lr'] = group['lr_scale'] * rate(it, group['lr_ratio'])
    measure_now = measure_interval and it % measure_interval == 0
    if measure_now:
        watch.check(it)
        with speed.paused():
            probe.before_step(raw_model)

    # forward and backward passes, one micro-batch at a time
    sums, logged = {}, {}
    for j in micro_batches:
        number = it * gradient_accumulation_steps + j   # the micro-batch's number in the whole run
        x, y = machine.to_device(*next(batches))
        evidence.see(x, y)
        torch.manual_seed(hash((seed, number)))         # for mixtures, dropout and stochastic depth
        x, y = mix(x, y)
        last = j == micro_batches[-1]                   # its backward pass exchanges gradients between the ranks
        if machine.distributed:
            train_model.require_backward_grad_sync = last
        raw_model.aux.clear()
        raw_model.logged.clear()
        with machine.autocast(cache=not recompute):
            _, loss = train_model(x, y)
        aux = dict(raw_model.aux)                       # what an edit of the model adds to the loss: {name: scalar}
        add_scalars(sums, {'loss': loss, **aux}, gradient_accumulation_steps)
        add_scalars(logged, raw_model.logged, gradient_accumulation_steps)      # before recomputation adds to it again
        scaler.scale(sum(aux.values(), loss) / len(micro_batches)).backward()

    # clip the gradient, and step
    if it == run.start:
        tell_unused(raw_model, machine.distributed, log)
    scaler.unscale_(opt)
    grad_norms = block_norms(evidence.types, lambda p: p.grad)
    grad_norm = torch.linalg.vector_norm(grad_norms)
    log_now = it % log_interval == 0
    if log_now:
        evidence.before_step()                          # it copies the weights, to see how far the step moves them
    torch.nn.utils.clip_grads_with_norm_(raw_model.parameters(), grad_clip or float('inf'), grad_norm)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    if measure_now:
        probe.after_step(it, raw_model)

    # log, and end if the run has diverged or was asked to stop
    watch.see(it, sums['loss'], grad_norm)
    if it == run.start:
        watch.check(it)
        checkpoints.check_resumable(state(it + 1), build)       # stop an edit whose checkpoints could not be resumed
    speed.iteration(it)
    if log_now:
        watch.check(it)
        means, scalars = ({name: machine.sum(total).item() for name, total in totals.items()} for totals in (sums, logged))
        row = dict(iter=it, loss=means.pop('loss'), lr=rate(it), grad_norm=grad_norm.item(),
                   **evidence.row(grad_norms))
        log.step(row | (dict(aux=means) if means else {}) | (dict(logged=scalars) if scalars else {}), speed)
    stop = machine.largest(stop_request.number)
    if stop:
        watch.check(it)
        checkpoints.save(state(it + 1))
        log.stopped(it)
        break

del batches                             # ends the workers
log.close(128 + stop if stop else 0)
machine.leave(128 + stop if stop else 0)
