"""Checkpoints of train.py. They are never written partially, and they are checked when they are read."""
import os
import shutil
import warnings
from dataclasses import fields

import torch

from configurator import SPLIT_OFF
from engine.task import task_of
from optim import load_state


def write_whole(path, write):
    """Calls write(file) on a temporary file, which then replaces `path`. On failure, such as a full disk, it raises OSError and
    keeps the old file."""
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
    """Gives the file a second name, or copies it if the disk has no links. Later calls of write_whole(path, …) do not change
    it."""
    try:
        os.link(path, other + '.tmp')
    except OSError:
        shutil.copyfile(path, other + '.tmp')
    os.replace(other + '.tmp', other)


def load_checkpoint(path, device='cpu', mmap=False):
    """What train.py saved: {'model': state_dict, 'optimizer', 'scaler', 'config', 'iter', 'best_val_loss'}. With mmap, tensors
    are read from the file only when they are used."""
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
    """Copies the weights of a checkpoint, read from `path`, into the model. ValueError if they belong to another model."""
    try:
        model.load_state_dict(state['model'])
    except RuntimeError as error:
        raise ValueError(f'{path} is damaged, or not a checkpoint of train.py: its weights do not fit its config') from error


def load_run(path, device='cpu'):
    """The model of a checkpoint, on the device, and the whole checkpoint. ValueError for a missing or damaged file."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: train first, or check out_dir and checkpoint')
    state = load_checkpoint(path, device)
    model = task_of(state['config']).new_model().to(device)
    load_weights(model, state, path)
    return model, state


def load_text_run(path, device='cpu'):
    """As load_run, but ValueError for a model of images."""
    model, state = load_run(path, device)
    if state['config'].get('model', 'gpt') != 'gpt':
        raise ValueError(f'{path} holds a model of images, but this needs a model of text')
    return model, state


FREE = ('dropout', 'drop_path', 'init', 'init_gain', 'emb_std', 'fused_qkv_init')        # what a resumed run may change


def find_checkpoint(path, config, model_config, mmap=False):
    """The checkpoint that a run with these keys resumes from. ValueError if there is none, or if it does not fit these keys.
    Sets keys that are newer than the checkpoint and have taken over a part of an older key."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to resume from: check out_dir, or start with --init_from=scratch')
    state = load_checkpoint(path, mmap=mmap)
    fixed = ['model', 'optimizer', *(f.name for f in fields(model_config) if f.name not in FREE)]
    defaults = {f.name: f.default for f in fields(model_config)}        # of keys that are newer than the checkpoint
    there = {'model': 'gpt', **defaults, **state['config']}
    differ = [f'{key} ({there.get(key)} there, {config[key]} here)' for key in fixed if there.get(key) != config[key]]
    if differ:
        raise ValueError(f'{path} cannot be resumed with another architecture or optimizer: {", ".join(differ)}; choose another '
                         f'out_dir, or start again by --init_from=scratch --overwrite=True')
    if state['iter'] > config['max_iters']:
        raise ValueError(f'max_iters={config["max_iters"]}: {path} is at iteration {state["iter"]} already')
    for key, other in SPLIT_OFF.items():
        if key not in state['config']:
            config[key] = config[other]
    return state


class Checkpoints:
    """Saves and resumes a run. `sharded`: whether fully_shard has spread the model over the ranks; the files hold whole tensors
    in any case. `watch` knows the first loss; nothing is saved while it finds the loss too high."""

    def __init__(self, run, config, machine, model, optimizer, scaler, watch, sharded):
        self.run, self.config, self.machine, self.sharded = run, config, machine, sharded
        self.model, self.optimizer, self.scaler, self.watch = model, optimizer, scaler, watch
        self.best_val_loss = float('inf')

    def resume(self, checkpoint):
        """Restores all except the weights from a checkpoint. The groups keep this run's weight decay, betas and ratios."""
        state = checkpoint['optimizer']
        if self.sharded:
            from engine.fsdp import own_optimizer_state
            state = own_optimizer_state(state, self.optimizer)
        load_state(self.optimizer, state)
        self.scaler.load_state_dict(checkpoint['scaler'])
        self.best_val_loss, self.watch.first_loss = checkpoint['best_val_loss'], checkpoint.get('first_loss')

    def evaluated(self, it, val_loss):
        """Saves after an evaluation: best.pt if the loss is the lowest so far, and ckpt.pt then too, or always with
        always_save_checkpoint=True. Every rank must call it."""
        again = it == self.run.start and val_loss == self.best_val_loss         # best.pt may be missing after a kill
        improved = it > 0 and (again or val_loss < self.best_val_loss)
        if improved:
            self.best_val_loss = val_loss
        if self.watch.high_since is None and (improved or self.config['always_save_checkpoint'] and it > self.run.start):
            self.save(it, improved)

    def save(self, it, best=False):
        """Writes ckpt.pt, and with `best` makes best.pt the same. Every rank must call it, and waits until it is done: each
        holds a part of a sharded model."""
        if self.machine.master or self.sharded:
            self.write(it, best)
        self.machine.wait()

    def write(self, it, best):
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
        self.run.drop_old()
