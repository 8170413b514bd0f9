"""Checkpoints of train.py. They are never written partially, and they are checked when they are read."""
from configurator import SPLIT_OFF, TRAIN, defaults_of, expanded, typed

import math
import os
import shutil
import warnings
from contextlib import suppress
from dataclasses import fields

import torch

from engine.files import NUMBER, check_regular, check_weights, damaged, fits, map_leaves
from engine.task import task_of
from model import GPTConfig
from optim import load_state
from vit import ViTConfig


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
    with suppress(FileNotFoundError):
        os.remove(other + '.tmp')       # a kill may have left it: a name of an older file, which a resumed run has mapped
    try:
        os.link(path, other + '.tmp')
    except OSError:
        shutil.copyfile(path, other + '.tmp')
    os.replace(other + '.tmp', other)


CHECKPOINT = dict(model={str: torch.Tensor}, config={str: (bool, *NUMBER, str, list)}, iter=int, best_val_loss=float,
                  scaler={str: NUMBER}, optimizer=dict(state={int: {str: object}}, param_groups=[
                      dict(params=[int], param_names=[str], lr=(*NUMBER, torch.Tensor))]),
                  **{'first_loss?': (float, type(None)), 'data?': str, 'shards?': dict(folder=str, files={str: int})})


def load_checkpoint(path, device='cpu', mmap=False, whole=True):
    """What train.py saved: {'model': state_dict, 'optimizer', 'scaler', 'config', 'iter', 'best_val_loss'}. With mmap, tensors
    are mapped from the file. Of a checkpoint in shards (save_shards), tensors are read if it shall be `whole`, and else are on
    device 'meta'. ValueError for anything else than such a checkpoint, or numbers in it that are not finite."""
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            state = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        ours = (fits(state, CHECKPOINT) and {'dataset', 'init_from', 'optimizer'} <= state['config'].keys()
                and state['iter'] >= 0 and not math.isnan(state['best_val_loss'])
                and all(len(group['params']) == len(group['param_names']) for group in state['optimizer']['param_groups']))
    except PermissionError:
        raise
    except Exception:                                   # unpickling garbage fails in many ways
        ours = False
    if not ours:
        raise damaged(path)
    if 'shards' in state and whole:
        from engine.shards import whole_state
        state = whole_state(path, state, device)
    state['config'] = expanded(state['config'])
    for key, default in defaults_of(TRAIN, GPTConfig, ViTConfig).items():
        if key in state['config']:
            typed(key, state['config'][key], default, path)

    def check(name, value):
        if torch.is_tensor(value):
            good = sound(value, meta='shards' in state)
        else:
            good = not isinstance(value, float) or math.isfinite(value)
        if not good:
            raise damaged(path, f'{name} is not finite')

    map_leaves({key: state.get(key) for key in ('model', 'optimizer', 'scaler', 'first_loss')}, check)
    return state


def sound(t, meta):
    """Whether a tensor from a file is dense, as large in memory as its shape says, and finite; or, with meta, has no memory."""
    if t.layout != torch.strided or t.is_meta:
        return t.is_meta and meta
    return t.untyped_storage().nbytes() >= t.nbytes and bool(t.isfinite().all())


def load_weights(model, state, path):
    """Copies the weights of a checkpoint, read from `path`, into the model. ValueError if they belong to another model."""
    check_weights(model.state_dict(), state['model'], path)
    model.load_state_dict(state['model'])


def load_run(path, device='cpu'):
    """The model of a checkpoint, on the device, and the whole checkpoint. ValueError for a missing or damaged file."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: train first, or check out_dir and checkpoint')
    state = load_checkpoint(path, device)
    task = task_of(state['config'])
    if task.config.n_layer > len(state['model']):       # a model of very many layers would take very long to build
        raise damaged(path, 'its weights do not fit its config')
    try:
        with torch.device('meta'):
            check_weights(task.new_model().state_dict(), state['model'], path)
    except RuntimeError as error:                       # sizes beyond all numbers
        raise damaged(path, 'its weights do not fit its config') from error
    model = task.new_model().to(device)
    model.load_state_dict(state['model'])
    return model, state


def load_text_run(path, device='cpu'):
    """As load_run, but ValueError for a model of images."""
    model, state = load_run(path, device)
    if state['config'].get('model', 'gpt') != 'gpt':
        raise ValueError(f'{path} holds a model of images, but this needs a model of text')
    return model, state


FREE = ('dropout', 'drop_path', 'init', 'init_gain', 'emb_std', 'fused_qkv_init')        # what a resumed run may change


def find_checkpoint(path, config, model_config, data='', mmap=False, whole=True):
    """The checkpoint that a run with these keys resumes from. ValueError if there is none, or if it does not fit these keys or
    the fingerprint `data` of their data set; an evaluation may use other data. Sets keys that are newer than the checkpoint and
    have taken over a part of an older key."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to resume from: check out_dir, or start with --init_from=scratch')
    state = load_checkpoint(path, mmap=mmap, whole=whole)
    fixed = ['model', 'optimizer', *(f.name for f in fields(model_config) if f.name not in FREE)]
    defaults = {f.name: f.default for f in fields(model_config)}        # of keys that are newer than the checkpoint
    there = {'model': 'gpt', **defaults, **state['config']}
    differ = [f'{key} ({there.get(key)} there, {config[key]} here)' for key in fixed if there.get(key) != config[key]]
    if differ:
        raise ValueError(f'{path} cannot be resumed with another architecture or optimizer: {", ".join(differ)}; choose another '
                         f'out_dir, or start again by --init_from=scratch --overwrite=True')
    name, known = config['dataset'], data and state.get('data')         # older data and checkpoints have no fingerprint
    if known and known != data and state['config']['dataset'] == name and not config['eval_only']:
        raise ValueError(f'data/{name} holds other data than when {path} was saved: prepare it as it was; or to go on with the '
                         f'new data, rename its folder, and name it by --dataset=…')
    if state['iter'] > config['max_iters']:
        raise ValueError(f'max_iters={config["max_iters"]}: {path} is at iteration {state["iter"]} already')
    for key, other in SPLIT_OFF.items():
        if key not in state['config']:
            config[key] = config[other]
    return state


class Checkpoints:
    """Saves and resumes a run. `sharded`: whether fully_shard has spread the model over the ranks; the files hold whole tensors
    all the same, except with save_shards. `watch` knows the first loss; nothing is saved while it finds the loss too high."""

    def __init__(self, run, config, machine, model, optimizer, scaler, watch, sharded):
        self.run, self.config, self.machine, self.sharded = run, config, machine, sharded
        self.model, self.optimizer, self.scaler, self.watch = model, optimizer, scaler, watch
        self.best_val_loss, self.shards = float('inf'), None
        if sharded and config['save_shards']:
            from engine.shards import ShardWriter
            self.shards = ShardWriter(run.folder, machine)
            machine.before_leaving = self.shards.wait

    def resume(self, checkpoint):
        """Restores all except the weights from a checkpoint. The groups keep this run's weight decay, betas and ratios."""
        state = checkpoint['optimizer']
        if self.sharded:
            from engine.fsdp import own_optimizer_state
            state = own_optimizer_state(checkpoint, self.run.path['ckpt.pt'], self.optimizer)
        try:
            load_state(self.optimizer, state)
        except ValueError as error:
            raise damaged(self.run.path['ckpt.pt'], str(error)) from error
        if checkpoint['scaler']:                        # it has no state unless dtype=float16
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
        """Writes ckpt.pt, and with `best` makes best.pt the same. Every rank must call it, because each holds a part of a sharded
        model, and waits until it is done. With save_shards it waits until the last save is done and the state is copied."""
        if self.machine.master or self.sharded:
            state = dict(model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), scaler=self.scaler.state_dict(),
                         config=self.config, iter=it, best_val_loss=self.best_val_loss, first_loss=self.watch.first_loss,
                         data=self.run.data)
            if self.shards:
                return self.shards.start(it, state, lambda state: self.write(state, best))
            if self.sharded:
                from engine.fsdp import whole
                state = whole(state, keep=self.machine.master)
            if self.machine.master:
                self.write(state, best)
        self.machine.wait()

    def write(self, state, best):
        """Puts ckpt.pt, and with `best` best.pt, in place of the ones before."""
        write_whole(self.run.path['ckpt.pt'], lambda f: torch.save(state, f))
        if best:
            link_or_copy(self.run.path['ckpt.pt'], self.run.path['best.pt'])
        self.run.note_saved()
        if self.shards:
            from engine.shards import remove_unused
            path = self.run.path['best.pt']
            others = [load_checkpoint(path, whole=False)] if os.path.exists(path) else []
            remove_unused(self.run.folder, state, *others)
        self.run.drop_old()
