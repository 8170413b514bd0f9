"""Checkpoints of a training script. They are never written partially, and they are checked when they are read."""
from configurator import RETIRED, SPLIT_OFF, TRAIN, defaults_of, expanded, script_of
from engine.process import say

import copy
import hashlib
import io
import math
import os
import shutil
import sys
import warnings
from contextlib import suppress
from dataclasses import fields

import torch
from torch.utils._pytree import tree_map

from engine.errors import check_weights, damaged, map_leaves
from engine.keys import config_from
from engine.ranks import local
from model import GPT, rename


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
        with open(other + '.tmp', 'rb') as f:
            os.fsync(f.fileno())
    os.replace(other + '.tmp', other)


PARTS = {'model': dict, 'config': dict, 'iter': int, 'best_val_loss': float, 'scaler': dict, 'optimizer': dict}


def load_checkpoint(path, device='cpu', mmap=False, whole=True):
    """What `Checkpoints.save` saved: PARTS, and its `path`. With mmap, tensors are mapped from the file. Of one in shards
    (save_shards), tensors are read if it shall be `whole`, and else are on device 'meta'. ValueError for anything else than such
    a checkpoint, or numbers in it that are not finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            state = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        ours = (isinstance(state, dict) and all(isinstance(state[key], kind) for key, kind in PARTS.items())
                and not math.isnan(state['best_val_loss']) and all(map(torch.is_tensor, state['model'].values()))
                and {'dataset', 'init_from', 'optimizer'} <= state['config'].keys())
        if ours:
            rename_parameters(state)
    except PermissionError:
        raise
    except Exception:                                   # unpickling garbage fails in many ways
        ours = False
    if not ours:
        raise damaged(path)
    if 'shards' in state and whole:
        from engine.shards import whole_state
        state = whole_state(path, state, device)
    state['config'], state['path'] = expanded(state['config']), path

    def check(name, value):
        if torch.is_tensor(value):
            good = sound(value, 'shards' in state, infinite=name.startswith('model.'))        # buffers may be, as masks are
        else:
            good = not isinstance(value, float) or math.isfinite(value)
        if not good:
            raise damaged(path, f'{name} is not finite')

    map_leaves({key: state.get(key) for key in ('model', 'optimizer', 'scaler', 'first_loss')}, check)
    return state


def rename_parameters(state):
    """Gives the parameters of an older checkpoint the names that they have now."""
    if 'shards' in state:
        state['shards']['saved_as'] = {f'model.{rename(name)}': f'model.{name}' for name in state['model']}
    state['model'] = {rename(name): value for name, value in state['model'].items()}
    for group in (*state['optimizer']['param_groups'], *state.get('started', ())):
        group['param_names'] = [rename(name) for name in group['param_names']]


def sound(t, meta, infinite=False):
    """Whether a tensor from a file is dense, as large in memory as its shape says, and finite (or not NaN, if it may be
    `infinite`); or, with meta, has no memory."""
    if t.layout != torch.strided or t.is_meta:
        return t.is_meta and meta
    return t.untyped_storage().nbytes() >= t.nbytes and not bool((t.isnan() if infinite else ~t.isfinite()).any())


def load_weights(model, checkpoint):
    """Copies the weights of a checkpoint into the model. ValueError if they belong to another model."""
    check_weights(model.state_dict(), checkpoint['model'], checkpoint['path'])
    model.load_state_dict(checkpoint['model'])


OPENED_BY = {'train.py': 'sample.py, lab.measure, lab.evaluate and lab.export open it',
             'vision.train': 'vision.measure, vision.evaluate and vision.export open it'}


def check_script(checkpoint, Config):
    """ValueError if a checkpoint is of a run of another script than the one whose models have this class of config."""
    script = script_of(checkpoint['config'])
    if script != getattr(Config, 'script', 'train.py'):
        raise ValueError(f'{checkpoint["path"]} is of a run of {script}: {OPENED_BY[script]}')


def load_run(path, device='cpu', Model=GPT):
    """The model of a checkpoint, on the device, and the whole checkpoint. ValueError for a missing or damaged file."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: train first, or check out_dir and checkpoint')
    checkpoint = load_checkpoint(path, device)
    check_script(checkpoint, Model.Config)
    try:
        with torch.device('meta'):
            model = Model(config_from(Model.Config, checkpoint['config']))
    except (ValueError, TypeError, RuntimeError) as error:
        raise damaged(path, f'its config is not that of a {Model.__name__}, {error}') from error
    check_weights(model.state_dict(), checkpoint['model'], path)
    unknown = sorted(checkpoint['config'].keys() - defaults_of(TRAIN, Model.Config).keys() - {'debug', *RETIRED})
    if unknown:
        keys = ', '.join(f'{key}={checkpoint["config"][key]}' for key in unknown)
        say(f'{path} was saved by code with more keys ({keys}), and here its model may be another one: code.patch beside it has '
            f'that code', to=sys.stderr)
    model = Model(model.config).to(device)
    model.load_state_dict(checkpoint['model'])
    return model, checkpoint


def check_leaf(name, value):
    """ValueError if a checkpoint with this value, of this name there, could not be read."""
    if torch.is_tensor(value):
        if local(value).untyped_storage().nbytes() < local(value).nbytes:
            raise ValueError(f'{name} has numbers that share memory, as expand makes them: make it contiguous()')
    elif type(value) not in (bool, int, float, str, type(None)):
        try:
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:
            raise ValueError(f'{name} is a {type(value).__name__}: use tensors, plain numbers, text, lists and dicts') from error


FREE = ('dropout', 'init', 'init_gain', 'emb_std', 'fused_qkv_init')        # what a resumed run may change


def find_checkpoint(run, config, model_config, machine):
    """The checkpoint that a run with these keys resumes from. ValueError if there is none, or if it does not fit these keys or
    the fingerprint run.data of their data set; an evaluation may use other data. Sets keys that are newer than the checkpoint
    and have taken over a part of an older key, and run.start and run.ckpt_config."""
    path, data = run.path['ckpt.pt'], run.data
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to resume from: check out_dir, or start with --init_from=scratch')
    fsdp = machine.distributed and config['parallel'] == 'fsdp'
    state = load_checkpoint(path, mmap=machine.distributed, whole=not fsdp)
    check_script(state, model_config)
    free = (*FREE, *getattr(model_config, 'free', ()))
    defaults = {f.name: f.default for f in fields(model_config) if f.init and f.name not in free}
    saved = {**defaults, **state['config']}             # the defaults of keys that are newer than the checkpoint
    differ = [f'{key} ({saved[key]} there, {config[key]} here)' for key in ('optimizer', *defaults) if saved[key] != config[key]]
    if differ:
        raise ValueError(f'{path} cannot be resumed with another architecture or optimizer: {", ".join(differ)}; choose another '
                         f'out_dir, or start again by --init_from=scratch --overwrite=True')
    windows, saved_windows = (c['batch_size'] * c['gradient_accumulation_steps'] for c in (config, state['config']))
    if windows != saved_windows and state['iter'] and not config['eval_only']:
        raise ValueError(f'batch_size={config["batch_size"]}, gradient_accumulation_steps='
                         f'{config["gradient_accumulation_steps"]}: these are {windows} windows in an iteration, and {path} was '
                         f'saved with {saved_windows}: keep their product, or some are read twice and others never')
    name, known = config['dataset'], data and state.get('data')         # older data and checkpoints have no fingerprint
    if known and known != data and state['config']['dataset'] == name and not config['eval_only']:
        raise ValueError(f'data/{name} holds other data than when {path} was saved: prepare it as it was; or to go on with the '
                         f'new data, rename its folder, and name it by --dataset=…')
    if state['iter'] > config['max_iters']:
        raise ValueError(f'max_iters={config["max_iters"]}: {path} is at iteration {state["iter"]} already')
    for key, other in SPLIT_OFF.items():
        if key not in state['config']:
            config[key] = config[other]
    run.start, run.ckpt_config = state['iter'], state['config']
    return state


def load_state(optimizer, state, started=None):
    """Restore a state_dict, matching parameters by name, because the groups may differ. From each group come the learning rate
    and what the optimizer itself keeps there: entries that `started`, the groups with which that run began, lacks or has with
    another value. Raise ValueError if the names of the parameters differ, or the state does not fit them."""
    states = states_by_number(optimizer, state)
    groups, saved = optimizer.state_dict()['param_groups'], groups_by_name(state['param_groups'])
    begun, params = groups_by_name(started or state['param_groups']), [p for g in optimizer.param_groups for p in g['params']]
    for group in groups:
        name = group['param_names'][0]
        group.update({key: value for key, value in saved[name].items() if key == 'lr' or
                      key not in ('params', 'param_names') and not alike(value, begun[name].get(key))})
    shared = {key: value for key, value in state['state'].items() if not isinstance(key, int)}      # of no single parameter
    optimizer.load_state_dict(dict(state=states | on_device(shared, params[0].device), param_groups=groups))
    for i, of_param in states.items():                  # PyTorch casts to the parameter's dtype, and takes text for a list
        for key, value in of_param.items():
            loaded = optimizer.state[params[i]].get(key)
            if not torch.is_tensor(value) or loaded.dtype != value.dtype:
                optimizer.state[params[i]][key] = on_device(value, params[i].device)


def on_device(value, device):
    return tree_map(lambda leaf: leaf.to(device) if torch.is_tensor(leaf) else leaf, value)


def alike(a, b):
    return torch.equal(a, b) if torch.is_tensor(a) and torch.is_tensor(b) else a == b


def groups_by_name(groups):
    """{parameter's name: its group}"""
    return {name: group for group in groups for name in group['param_names']}


def states_by_number(optimizer, state):
    """{a parameter's number in `optimizer`: its state} of a state_dict. ValueError as load_state raises it."""
    groups, saved_groups = optimizer.state_dict()['param_groups'], state['param_groups']
    saved = {name: i for group in saved_groups for name, i in zip(group['param_names'], group['params'])}
    names = [name for group in groups for name in group['param_names']]
    if sorted(names) != sorted(saved):
        raise ValueError(f'the optimizer state is for other parameters, see {min(set(names) ^ set(saved))!r}: use the same model')
    states, params = {}, [p for group in optimizer.param_groups for p in group['params']]
    keys = {key for number, param_state in state['state'].items() if isinstance(number, int) for key in param_state}
    for group in groups:
        for name, i in zip(group['param_names'], group['params']):
            if saved[name] in state['state']:
                states[i] = state['state'][saved[name]]
                check_state(optimizer, group, name, params[i], states[i], keys)
    return states


def check_state(optimizer, group, name, p, state, keys):
    """ValueError if a parameter's state lacks one of the keys that others have, or has a tensor of a wrong shape, which kernels
    do not check. Of other optimizers than those of OPTIMIZERS neither is known, unless they have a state_shape."""
    adamw, known = isinstance(optimizer, torch.optim.AdamW), hasattr(optimizer, 'state_shape')
    missing = keys - state.keys() if adamw else {key for key in keys - state.keys() if known
                                                 and optimizer.state_shape(group, name, p, key) is not None}
    if missing:
        raise ValueError(f'the optimizer state of {name} has no {min(missing)}')
    for key, value in state.items() if adamw or known else []:
        if key == 'step':
            good = (torch.is_tensor(value) and value.dim() == 0 if adamw else isinstance(value, int)) and value >= 0
        else:
            shape = p.shape if adamw else optimizer.state_shape(group, name, p, key)
            good = torch.is_tensor(value) and (value.shape, value.dtype) == (shape, p.dtype)
        if not good:
            raise ValueError(f'the optimizer state {key} of {name} does not fit it')


class Checkpoints:
    """Saves and resumes a run. `sharded`: whether fully_shard has spread the model over the ranks; the files hold whole tensors
    all the same, except with save_shards."""

    def __init__(self, run, config, machine, sharded, optimizer):
        self.run, self.machine, self.sharded, self.shards = run, machine, sharded, None
        self.optimizer = optimizer
        self.started = copy.deepcopy([{key: value for key, value in group.items() if key != 'params'}
                                      for group in optimizer.param_groups])      # the groups, before it counts anything there
        if sharded and config['save_shards']:
            from engine.shards import ShardWriter
            self.shards = ShardWriter(run.folder, machine)
            machine.before_leaving = self.shards.wait

    def resume(self, checkpoint, scaler):
        """Restores the states of the optimizer and of the scaler. The groups keep this run's weight decay, betas and ratios."""
        state = checkpoint['optimizer']
        if self.sharded:
            from engine.fsdp import own_optimizer_state
            state = own_optimizer_state(checkpoint, self.optimizer)
        try:
            load_state(self.optimizer, state, checkpoint.get('started'))
        except Exception as error:                      # a damaged state fails in many ways
            raise damaged(checkpoint['path'], str(error)) from error
        if checkpoint['scaler']:                        # it has no state unless dtype=float16
            scaler.load_state_dict(checkpoint['scaler'])

    def rehearse(self, state, build):
        """ValueError if no resumed run could read what `save` would write of this state, or if ranks hold different buffers, of
        which only rank 0's would be saved. `build` makes an untrained model. Every rank must call it after the first step, before
        hours are spent."""
        failure, digests = None, {}
        try:
            with torch.device('meta'):
                untrained = build()
            check_weights(untrained.state_dict(), state['model'])
            states_by_number(self.optimizer, state['optimizer'])
            map_leaves({key: state[key] for key in ('model', 'optimizer', 'scaler', 'started')}, check_leaf)
            for name in state['model'].keys() - {name for name, _ in untrained.named_parameters(remove_duplicate=False)}:
                buffer = state['model'][name]
                if buffer.isnan().any():
                    raise ValueError(f'{name} is not a number')
                digests[name] = hashlib.blake2b(buffer.cpu().reshape(-1).contiguous().view(torch.uint8).numpy()).hexdigest()
        except Exception as error:                      # code that was edited may raise any
            failure = ValueError(f'a checkpoint of this run could not be resumed: {error}')
        differ = [name for name, digest in self.machine.gather(digests)[0].items() if digests.get(name) != digest]
        if differ and failure is None:
            failure = ValueError(f'the ranks hold different values of the buffer {differ[0]}, and a checkpoint holds only those '
                                 f'of rank 0: average them in forward, or use register_buffer(…, persistent=False)')
        self.machine.end_together(failure)

    def save(self, state, best=False):
        """Writes ckpt.pt, and with `best` makes best.pt the same. Every rank must call it, because each holds a part of a sharded
        model, and waits until it is done. With save_shards it waits until the last save is done and the state is copied."""
        state = {**state, 'started': self.started}
        if self.shards:
            return self.shards.start(state, lambda state: self.write(state, best))
        if self.sharded:
            from engine.fsdp import whole
            state = whole(state, keep=self.machine.master)
        if self.machine.master:
            self.write(state, best)
        self.machine.wait()

    def write(self, state, best):
        """Puts ckpt.pt, and with `best` best.pt, in place of the ones before."""
        self.run.check_lock()
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
