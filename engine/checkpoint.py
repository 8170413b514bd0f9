"""Checkpoints of train.py: written whole or not at all, and read with care."""
import os
import shutil
import warnings
from dataclasses import fields

import torch

from configurator import SPLIT_OFF
from engine.task import task_of
from optim import load_state


def write_whole(path, write):
    """Calls write(file) on a file beside `path`, which then takes its place. OSError where the disk is full; what was there
    is kept."""
    try:
        with open(path + '.tmp', 'wb') as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + '.tmp', path)
    except (OSError, RuntimeError) as error:            # torch.save turns an OSError into a RuntimeError
        if os.path.exists(path + '.tmp'):
            os.remove(path + '.tmp')
        raise OSError(f'{path} could not be written, what was there is kept: {str(error).splitlines()[0]}') from error


def link_or_copy(path, other):
    """Gives the file a second name, by a copy where the disk has no links. A later write_whole(path, …) leaves it as it is."""
    try:
        os.link(path, other + '.tmp')
    except OSError:
        shutil.copyfile(path, other + '.tmp')
    os.replace(other + '.tmp', other)


def load_checkpoint(path, device='cpu', mmap=False):
    """What train.py saved: {'model': state_dict, 'optimizer', 'scaler', 'config', 'iter', 'best_val_loss'}. With mmap the
    tensors are read from the file as they are used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            state = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        types = dict(model=dict, optimizer=dict, scaler=dict, config=dict, iter=int, best_val_loss=float)
        if isinstance(state, dict) and all(isinstance(state[key], kind) for key, kind in types.items()):
            if {'dataset', 'init_from', 'optimizer'} <= state['config'].keys():
                return state
    except (IsADirectoryError, PermissionError):
        raise
    except Exception:                                   # unpickling garbage fails in many ways
        pass
    raise ValueError(f'{path} is damaged, or not a checkpoint of train.py')


def load_weights(model, state, path):
    """Copies the weights of a checkpoint, read from `path`, into the model; ValueError where they belong to another one."""
    try:
        model.load_state_dict(state['model'])
    except RuntimeError as error:
        raise ValueError(f'{path} is damaged, or not a checkpoint of train.py: its weights do not fit its config') from error


def load_run(path, device='cpu'):
    """The model of a checkpoint, on the device, and all else that the file holds. ValueError for a missing or damaged file."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: train first, or check out_dir and checkpoint')
    state = load_checkpoint(path, device)
    model = task_of(state['config']).new_model().to(device)
    load_weights(model, state, path)
    return model, state


def load_text_run(path, device='cpu'):
    """As load_run; ValueError for a model of images."""
    model, state = load_run(path, device)
    if state['config'].get('model', 'gpt') != 'gpt':
        raise ValueError(f'{path} holds a model of images, which reads and writes no text')
    return model, state


FREE = ('dropout', 'drop_path', 'init', 'init_gain', 'emb_std', 'fused_qkv_init')        # what a resumed run may change


def find_checkpoint(path, config, model_config, mmap=False):
    """The checkpoint that a run with these keys resumes from. ValueError where there is none, or one that it cannot continue.
    Sets a key that was split off another one since the checkpoint was made."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to resume from: check out_dir, or start with --init_from=scratch')
    state = load_checkpoint(path, mmap=mmap)
    fixed = ['model', 'optimizer', *(f.name for f in fields(model_config) if f.name not in FREE)]
    defaults = {f.name: f.default for f in fields(model_config)}        # of keys that there were not yet
    there = {'model': 'gpt', **defaults, **state['config']}
    differ = [f'{key} ({there.get(key)} there, {config[key]} here)' for key in fixed if there.get(key) != config[key]]
    if differ:
        raise ValueError(f'{path} cannot be resumed with another architecture or optimizer: {", ".join(differ)}')
    if state['iter'] > config['max_iters']:
        raise ValueError(f'max_iters={config["max_iters"]}: {path} is at iteration {state["iter"]} already')
    for key, other in SPLIT_OFF.items():
        if key not in state['config']:
            config[key] = config[other]
    return state


class Checkpoints:
    """Saves a run, and resumes it. `sharded`: whether fully_shard has spread the model over the ranks; a checkpoint is whole all
    the same. `watch` tells the first loss, and while the loss is too high nothing is saved."""

    def __init__(self, run, config, machine, model, optimizer, scaler, watch, sharded):
        self.run, self.config, self.machine, self.sharded = run, config, machine, sharded
        self.model, self.optimizer, self.scaler, self.watch = model, optimizer, scaler, watch
        self.best_val_loss = float('inf')

    def resume(self, checkpoint):
        """Takes all but the weights from a checkpoint. The groups keep this run's weight decay, betas and ratios."""
        state = checkpoint['optimizer']
        if self.sharded:
            from engine.fsdp import own_optimizer_state
            state = own_optimizer_state(state, self.optimizer)
        load_state(self.optimizer, state)
        self.scaler.load_state_dict(checkpoint['scaler'])
        self.best_val_loss, self.watch.first_loss = checkpoint['best_val_loss'], checkpoint.get('first_loss')

    def evaluated(self, it, val_loss):
        """Saves after an evaluation: ckpt.pt always, or with always_save_checkpoint=False where the loss is the lowest so far;
        best.pt there alone. Every rank calls it."""
        again = it == self.run.start and val_loss == self.best_val_loss         # a kill may have come before best.pt was there
        improved = it > 0 and (again or val_loss < self.best_val_loss)
        if improved:
            self.best_val_loss = val_loss
        if self.watch.high_since is None and (improved or self.config['always_save_checkpoint'] and it > self.run.start):
            self.save(it, improved)

    def save(self, it, best=False):
        """Writes ckpt.pt, and with `best` makes best.pt the same. Every rank calls it: a sharded model is on all of them."""
        if not (self.machine.master or self.sharded):
            return
        state = dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), scaler=self.scaler.state_dict(),
                     config=self.config, iter=it, best_val_loss=self.best_val_loss, first_loss=self.watch.first_loss)
        if self.sharded:
            from engine.fsdp import whole
            state = whole(state, keep=self.machine.master)
            if not self.machine.master:
                return
        write_whole(self.run.path['ckpt.pt'], lambda f: torch.save(state, f))
        if best:
            link_or_copy(self.run.path['ckpt.pt'], self.run.path['best.pt'])
