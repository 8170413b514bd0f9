"""Write checkpoints atomically, check them when they are read, and resume from them."""
from configurator import ROOT, TRAIN, defaults_of, expanded, script_of
from engine.process import say

import copy
import hashlib
import math
import os
import re
import shutil
import sys
import warnings
import zipfile
from contextlib import suppress
from dataclasses import fields

import torch

from engine.errors import check_weights, damaged, map_leaves
from engine.keys import config_from
from engine.ranks import local
from model import GPT

# ----------------------------------------------------------------------------- files

def write_whole(path, write):
    """Call write(file) on a temporary file, which then replaces `path`. On failure, such as a full disk, raise OSError and keep
    the old file."""
    try:
        with open(path + '.tmp', 'wb') as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + '.tmp', path)
    except (OSError, RuntimeError) as error:            # torch.save turns an OSError into a RuntimeError
        with suppress(FileNotFoundError):
            os.remove(path + '.tmp')
        raise OSError(f'{path} could not be written, what was there is kept: {str(error).splitlines()[0]}') from error


def link_or_copy(path, other):
    """Hard-link `path` as `other`, or copy it on a disk without links. A later write_whole(path, …) does not change `other`."""
    with suppress(FileNotFoundError):
        os.remove(other + '.tmp')       # a killed run may have left this link to a file that a resumed run has mapped
    try:
        os.link(path, other + '.tmp')
    except OSError:
        shutil.copyfile(path, other + '.tmp')
        with open(other + '.tmp', 'rb') as f:
            os.fsync(f.fileno())
    os.replace(other + '.tmp', other)


def checkpoint_paths(folder):
    """Return the paths of all checkpoints in a run's folder."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if re.fullmatch(r'(best|ckpt|ckpt-\d+)\.pt', name)]


def checkpoint_hash(path):
    """Hash the names, sizes and CRCs in a checkpoint's zip directory, which takes no time."""
    with zipfile.ZipFile(path) as f:
        entries = [(entry.filename, entry.file_size, entry.CRC) for entry in f.infolist()]
    return hashlib.blake2b(repr(entries).encode(), digest_size=6).hexdigest()


# ----------------------------------------------------------------------------- reading one

REQUIRED = dict(model=dict, config=dict, iter=int, best_val_loss=float, scaler=dict, optimizer=dict, started=list, data=str,
                start=int)


def load_checkpoint(path, device='cpu', mmap=False):
    """Load a `state` that Checkpoints.save has written, and add its `path`. mmap=True maps tensors from the file. Raise
    ValueError for any other file, and for numbers that are not finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            state = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        if not (all(isinstance(state[key], kind) for key, kind in REQUIRED.items()) and not math.isnan(state['best_val_loss'])
                and all(map(torch.is_tensor, state['model'].values()))
                and {'dataset', 'init_from', 'optimizer'} <= state['config'].keys()):
            raise ValueError('it holds something else')
    except PermissionError:
        raise
    except Exception:                                   # unpickling garbage fails in many ways
        raise damaged(path) from None
    state['config'], state['path'] = expanded(state['config']), path
    try:
        map_leaves({key: state.get(key) for key in ('model', 'optimizer', 'scaler')}, check_leaf)
    except ValueError as error:
        raise damaged(path, error) from error
    return state


def check_leaf(name, value):
    """Raise ValueError if a checkpoint with this value under this name could not be read or resumed."""
    if torch.is_tensor(value):
        t = local(value)
        if t.is_meta or t.layout != torch.strided or t.untyped_storage().nbytes() < t.nbytes:
            raise ValueError(f'{name} has not all of its numbers in memory, as after expand: make it contiguous()')
        if (t.isnan() if name.startswith('model.') else ~t.isfinite()).any():       # a mask has -inf
            raise ValueError(f'{name} is not finite')
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f'{name} is not finite')
    elif type(value) not in (bool, int, float, str, type(None)):
        raise ValueError(f'{name} is a {type(value).__name__}: use tensors, plain numbers, text, lists and dicts')


def load_weights(model, checkpoint):
    """Copy a checkpoint's weights into the model. Raise ValueError if they belong to another model."""
    check_weights(model.state_dict(), checkpoint['model'], checkpoint['path'])
    model.load_state_dict(checkpoint['model'])


OPENED_BY = {'train.py': 'sample.py, lab.measure, lab.evaluate and lab.export',
             'vision.train': 'vision.measure and vision.evaluate'}


def check_script(checkpoint, Config):
    """Raise ValueError if another script saved the checkpoint: its models have another config class."""
    script = script_of(checkpoint['config'])
    if script != getattr(Config, 'script', 'train.py'):
        raise ValueError(f'{checkpoint["path"]} is of a run of {script}: {OPENED_BY[script]} open it')


def load_run(path, device='cpu', Model=GPT):
    """Return a checkpoint's model, on the device, and the checkpoint. Raise ValueError for a missing or damaged file."""
    if not os.path.exists(path):
        names = ', '.join(map(os.path.basename, checkpoint_paths(os.path.dirname(path))))
        raise ValueError(f'there is no {path}: ' + (f'choose one of {names}' if names else 'train first, or check out_dir'))
    checkpoint = load_checkpoint(path, device)
    check_script(checkpoint, Model.Config)
    script = os.path.join(ROOT, script_of(checkpoint['config']).removesuffix('.py').replace('.', os.sep) + '.py')
    unknown = sorted(checkpoint['config'].keys() - defaults_of(*dict.fromkeys((script, TRAIN)), Model.Config).keys())
    if unknown:
        keys = ', '.join(f'{key}={checkpoint["config"][key]}' for key in unknown)
        say(f'{path} was saved by code with more keys ({keys}), and this code may build a different model: code.patch beside '
            f'it has that code', to=sys.stderr)
    try:
        model = Model(config_from(Model.Config, checkpoint['config'])).to(device)
    except (ValueError, TypeError) as error:
        raise damaged(path, f'its config is not that of a {Model.__name__}, {error}') from error
    load_weights(model, checkpoint)
    return model, checkpoint


# ----------------------------------------------------------------------------- resuming from one

FREE = ('dropout', 'init', 'init_gain', 'emb_std', 'fused_qkv_init')        # fields that a resumed run may change


def find_checkpoint(run, config, model_config, machine):
    """Return the checkpoint that a run with these keys resumes from. Raise ValueError if there is none, or if it does not fit
    the keys or run.data, the data's fingerprint; an evaluation may use other data. Set run.start, run.ckpt_config,
    run.ckpt_hash and run.ckpt_start."""
    path, data = run.path['ckpt.pt'], run.data
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to resume from: check out_dir, or start with --init_from=scratch')
    state = load_checkpoint(path, mmap=machine.distributed)
    check_script(state, model_config)
    free = (*FREE, *getattr(model_config, 'free', ()))
    defaults = {f.name: f.default for f in fields(model_config) if f.init and f.name not in free}
    saved = {**defaults, **state['config']}             # code that was edited since may have more keys
    differ = [key for key in ('optimizer', *defaults) if saved[key] != config[key]]
    if differ:
        both = ', '.join(f'{key} ({saved[key]} there, {config[key]} here)' for key in differ)
        raise ValueError(f'{path} cannot be resumed with another architecture or optimizer: {both}; choose another out_dir, or '
                         f'start again by --init_from=scratch --overwrite=True')
    windows, saved_windows = (c['batch_size'] * c['gradient_accumulation_steps'] for c in (config, state['config']))
    if windows != saved_windows and state['iter'] and not config['eval_only']:
        given = ', '.join(f'{key}={config[key]}' for key in ('batch_size', 'gradient_accumulation_steps'))
        raise ValueError(f'{given}: these are {windows} windows in an iteration, and {path} was saved with {saved_windows}: '
                         f'keep their product, or some are read twice and others never')
    name = config['dataset']
    if state['data'] != data and state['config']['dataset'] == name and not config['eval_only']:
        raise ValueError(f'data/{name} holds other data than when {path} was saved: prepare it as it was; or to go on with the '
                         f'new data, rename its folder, and name it by --dataset=…')
    if state['iter'] > config['max_iters']:
        raise ValueError(f'max_iters={config["max_iters"]}: {path} is at iteration {state["iter"]} already')
    run.start, run.ckpt_config, run.ckpt_hash = state['iter'], state['config'], checkpoint_hash(path)
    run.ckpt_start = state['start']
    return state


def load_state(optimizer, state, started):
    """Restore a state_dict by parameter names, because the groups may differ. Settings such as the weight decay stay those of
    this run. From a saved group, restore only the learning rate and the entries that the optimizer updates, such as a counter:
    those that are missing in `started`, the groups at the start of the saved run, or have another value there. Raise ValueError
    if the state does not fit the parameters.

    torch's set_optimizer_state_dict cannot do this: it calls step() on a new optimizer, which advances counters, it restores
    settings too, and it drops state that belongs to no parameter."""
    states, params = states_by_number(optimizer, state), [p for group in optimizer.param_groups for p in group['params']]
    groups, saved = optimizer.state_dict()['param_groups'], groups_by_name(state['param_groups'])
    begun = groups_by_name(started)
    for group in groups:
        name = group['param_names'][0]
        group.update({key: value for key, value in saved[name].items() if key == 'lr' or
                      key not in ('params', 'param_names') and not equal(value, begun[name].get(key))})
    shared = {key: value for key, value in state['state'].items() if not isinstance(key, int)}      # of no single parameter
    optimizer.load_state_dict(dict(state=states | on_device(shared, params[0].device), param_groups=groups))
    for i, of_param in states.items():                  # PyTorch casts to the parameter's dtype, and treats text as a list
        for key, value in of_param.items():
            loaded = optimizer.state[params[i]].get(key)
            if not torch.is_tensor(value) or loaded.dtype != value.dtype:
                optimizer.state[params[i]][key] = on_device(value, params[i].device)


def on_device(value, device):
    return map_leaves(value, lambda name, leaf: leaf.to(device) if torch.is_tensor(leaf) else leaf)


def equal(a, b):
    return torch.equal(a, b) if torch.is_tensor(a) and torch.is_tensor(b) else a == b


def groups_by_name(groups):
    """Return {parameter's name: its group}"""
    return {name: group for group in groups for name in group['param_names']}


def states_by_number(optimizer, state):
    """Return {a parameter's number in `optimizer`: its state in the state_dict}. Raise ValueError if parameter names differ."""
    number_there = {name: i for group in state['param_groups'] for name, i in zip(group['param_names'], group['params'])}
    names = [name for group in optimizer.param_groups for name in group['param_names']]
    if different := {*names} ^ number_there.keys():
        raise ValueError(f'the optimizer state is for other parameters, see {min(different)!r}: use the same model')
    states = ((i, state['state'].get(number_there[name])) for i, name in enumerate(names))
    return {i: of_param for i, of_param in states if of_param is not None}


# ----------------------------------------------------------------------------- saving and resuming

class Checkpoints:
    """Save and resume a run. `sharded`: whether fully_shard has spread the model over the ranks; even then the files hold whole
    tensors. Every rank has a Checkpoints, and all ranks must call the same methods."""

    def __init__(self, run, machine, sharded, optimizer):
        self.run, self.machine, self.optimizer, self.sharded = run, machine, optimizer, sharded
        self.started = copy.deepcopy([{key: value for key, value in group.items() if key != 'params'}
                                      for group in optimizer.param_groups])      # the groups, before the optimizer updates them

    def resume(self, checkpoint, scaler):
        """Restore the optimizer's and the scaler's state. The groups keep this run's weight decay, betas and ratios."""
        try:
            load_state(self.optimizer, checkpoint['optimizer'], checkpoint['started'])
        except Exception as error:                      # a damaged state fails in many ways
            raise damaged(checkpoint['path'], str(error)) from error
        if checkpoint['scaler']:                        # it has no state unless dtype=float16
            scaler.load_state_dict(checkpoint['scaler'])

    def check_resumable(self, state, build):
        """End the run if a checkpoint of this state could not be resumed, or if the ranks hold different buffers: only rank 0's
        would be saved. `build` makes an untrained model. Call this after the first step, before hours are spent."""
        failure, digests = None, {}
        try:
            with torch.device('meta'):
                untrained = build()
            check_weights(untrained.state_dict(), state['model'])
            states_by_number(self.optimizer, state['optimizer'])
            map_leaves({key: state[key] for key in ('model', 'optimizer', 'scaler', 'started')}, check_leaf)
            for name in state['model'].keys() - {name for name, _ in untrained.named_parameters(remove_duplicate=False)}:
                buffer = state['model'][name].cpu().reshape(-1).contiguous()
                digests[name] = hashlib.blake2b(buffer.view(torch.uint8).numpy()).hexdigest()
        except Exception as error:                      # edited code may raise anything
            failure = ValueError(f'a checkpoint of this run could not be resumed: {error}')
        differ = [name for name, digest in self.machine.gather(digests)[0].items() if digests.get(name) != digest]
        if differ and failure is None:
            failure = ValueError(f'the ranks hold different values of the buffer {differ[0]}, and a checkpoint holds only '
                                 f'those of rank 0: average them in forward, or use register_buffer(…, persistent=False)')
        self.machine.end_together(failure)

    def save(self, state, best=False):
        """Write ckpt.pt, with `best` also as best.pt, and wait until it is written."""
        if self.sharded:
            from engine.fsdp import whole
            state = whole(state, keep=self.machine.master)
        if self.machine.master:
            self.write(state, best)
        self.machine.wait()

    def write(self, state, best):
        """Replace ckpt.pt, with `best` also best.pt, and every keep_every iterations also write ckpt-000500.pt or the like.
        ckpt.pt comes last: if a kill leaves the old one, the run resumes from it and writes the others again."""
        self.run.check_lock()
        state = {**state, 'start': len(self.run.about['starts'])}
        every = state['config']['keep_every']
        kept = f'ckpt-{state["iter"]:06}.pt' if every and state['iter'] % every == 0 else ''
        first, *others = [os.path.join(self.run.folder, name) for name in ('best.pt' * best, kept, 'ckpt.pt') if name]
        write_whole(first, lambda f: torch.save(state, f))
        for path in others:
            link_or_copy(first, path)
