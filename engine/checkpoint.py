"""Checkpoints: what is in one, how it is read without running code from it, and how a run resumes from it."""
from configurator import ROOT, TRAIN, defaults_of, expanded
from engine.process import say

import hashlib
import math
import os
import re
import sys
import warnings
import zipfile
from dataclasses import fields

import torch

from data.text import check_tokenizer
from data.tokens import is_prepared, read_meta
from engine.files import map_leaves, write_whole
from engine.keys import config_from
from model import GPT
from optim import CHANGES

# fields that a resumed run may change; other model classes have more
CHANGEABLE_ON_RESUME = ('dropout', 'init', 'init_gain', 'emb_init', 'emb_std', 'fused_qkv_init', 'z_loss')
REQUIRED = dict(model=dict, optimizer=dict, scaler=dict, config=dict, about=dict, iter=int, best_val_loss=float, data=str)


def checkpoint_paths(folder):
    """Return the paths of all checkpoints in a run's folder."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if re.fullmatch(r'(best|ckpt|ckpt-\d+)\.pt', name)]


def damaged(path, fault=''):
    """Return a ValueError that names a checkpoint, its fault if known, its code's patch, and the run's other checkpoint."""
    best, patch = (os.path.join(os.path.dirname(path), name) for name in ('best.pt', 'code.patch'))
    if fault and os.path.exists(patch) and os.path.getsize(patch):
        fault = f'{fault}; it may be of edited code: git apply {patch}'
    other = f'; there is {best} too' if os.path.basename(path) == 'ckpt.pt' and os.path.exists(best) else ''
    return ValueError(f'{path} is damaged, or not a checkpoint of train.py{": " if fault else ""}{fault}{other}')


def checkpoint_hash(path):
    """Hash the names, sizes and CRCs in a checkpoint's zip directory, which takes no time."""
    with zipfile.ZipFile(path) as f:
        entries = [(entry.filename, entry.file_size, entry.CRC) for entry in f.infolist()]
    return hashlib.blake2b(repr(entries).encode(), digest_size=6).hexdigest()


# ----------------------------------------------------------------------------- saving

def whole(state, keep=True):
    """Copy nested dicts and lists, gathering each tensor that fully_shard has spread over the ranks on the CPU if `keep`; else
    None replaces it. Every rank must call this. Ranks hold one whole tensor at a time."""
    def gather(name, t):
        if hasattr(t, 'full_tensor'):
            t = t.full_tensor()
            return t.cpu() if keep else None
        return t

    return map_leaves(state, gather)


def save(paths, state):
    """Write a checkpoint to each of these paths. The last is ckpt.pt: if a kill leaves the old one, the run goes on from it and
    writes the others again."""
    for path in paths:
        write_whole(path, lambda f: torch.save(state, f))


def check_leaf(name, value):
    """Raise ValueError if a checkpoint with this value under this name could not be read or resumed."""
    if torch.is_tensor(value):
        t = value.to_local() if hasattr(value, 'to_local') else value
        if t.is_meta or t.layout != torch.strided or t.untyped_storage().nbytes() < t.nbytes:
            raise ValueError(f'{name} has not all of its numbers in memory, as after expand: make it contiguous()')
        if (t.isnan() if name.startswith('model.') else ~t.isfinite()).any():       # a mask has -inf
            raise ValueError(f'{name} is not finite')
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f'{name} is not finite')
    elif type(value) not in (bool, int, float, str, type(None)):
        raise ValueError(f'{name} is a {type(value).__name__}: use tensors, plain numbers, text, lists and dicts')


# ----------------------------------------------------------------------------- reading

def load_checkpoint(path, device='cpu', mmap=False):
    """Load what `save` has written, and add its `path`. mmap=True maps tensors from the file. Raise ValueError for any other
    file, and for numbers that are not finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            with zipfile.ZipFile(path) as f:
                if broken := f.testzip():               # a flipped bit; 0.3 s a GB
                    raise ValueError(f'{broken} in it is damaged')
            state = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        if not (all(isinstance(state[key], kind) for key, kind in REQUIRED.items()) and not math.isnan(state['best_val_loss'])
                and all(map(torch.is_tensor, state['model'].values()))
                and {'dataset', 'init_from', 'optimizer'} <= state['config'].keys() and 'script' in state['about']):
            raise ValueError('it holds something else')
    except PermissionError:
        raise
    except Exception:                                   # unpickling garbage fails in many ways
        raise damaged(path) from None
    state['config'], state['path'] = expanded(state['config']), path
    try:
        map_leaves({key: state[key] for key in ('model', 'optimizer', 'scaler')}, check_leaf)
    except ValueError as error:
        raise damaged(path, error) from error
    return state


def check_weights(wanted, weights, path=''):
    """Raise ValueError if two state_dicts differ in names, shapes or dtypes. The second was read from `path`, if given."""
    for name in {**wanted, **weights}:
        if not (name in wanted and name in weights and weights[name].shape == wanted[name].shape
                and weights[name].dtype == wanted[name].dtype):
            if not path:
                raise ValueError(f'{name} is not as in a model that is built anew from its config')
            raise damaged(path, f'its weights do not fit its config, see {name}')


def load_weights(model, checkpoint):
    """Copy a checkpoint's weights into the model. Raise ValueError if they belong to another model."""
    check_weights(model.state_dict(), checkpoint['model'], checkpoint['path'])
    model.load_state_dict(checkpoint['model'])


def script_of(Config):
    """Return the script that trains models of this config class: 'train.py', or the module that the class names."""
    return getattr(Config, 'script', 'train.py')


def key_sources(Config):
    """Return the sources of all keys of a run with this config class: its script's path, the class, and TRAIN."""
    path = os.path.join(ROOT, *script_of(Config).removesuffix('.py').split('.')) + '.py'
    return tuple(dict.fromkeys((path, Config, TRAIN)))


def load_run(path, device='cpu', Model=GPT):
    """Return a checkpoint's model, on the device, and the checkpoint. Raise ValueError for a missing or damaged file, and for a
    run of another script."""
    if not os.path.exists(path):
        names = ', '.join(map(os.path.basename, checkpoint_paths(os.path.dirname(path))))
        raise ValueError(f'there is no {path}: ' + (f'choose one of {names}' if names else 'train first, or check out_dir'))
    checkpoint = load_checkpoint(path, device)
    return model_from(checkpoint, device, Model), checkpoint


def model_from(checkpoint, device, Model):
    """Return a checkpoint's model, on the device. Raise ValueError if the run's script trains models of another class."""
    path, config, script = checkpoint['path'], checkpoint['config'], checkpoint['about']['script']
    if script != script_of(Model.Config):
        raise ValueError(f'{path} is of a run of {script}: choose a run of {script_of(Model.Config)}')
    if unknown := sorted(config.keys() - defaults_of(*key_sources(Model.Config)).keys()):
        keys = ', '.join(f'{key}={config[key]}' for key in unknown)
        say(f'{path} was saved by code with more keys ({keys}), and this code may build a different model: code.patch beside it '
            f'has that code', to=sys.stderr)
    try:
        model = Model(config_from(Model.Config, config)).to(device)
    except (ValueError, TypeError) as error:
        raise damaged(path, f'its config is not that of a {Model.__name__}, {error}') from error
    load_weights(model, checkpoint)
    return model


def check_data(checkpoint, fingerprint):
    """Raise ValueError if the run's data, which now has this fingerprint, has been prepared anew since it trained."""
    if fingerprint != checkpoint['data']:
        raise ValueError(f'data/{checkpoint["config"]["dataset"]} holds other data than when {checkpoint["path"]} was saved: '
                         f'prepare it as it was')


def meta_of(checkpoint):
    """Return read_meta of the data that a run was trained on. Raise ValueError if it has been prepared anew since."""
    meta = read_meta(checkpoint['config']['dataset'])
    check_data(checkpoint, meta['fingerprint'])
    return meta


# ----------------------------------------------------------------------------- resuming

def find_checkpoint(path, config, Config, data):
    """Return the checkpoint from which a run with these keys and data of this fingerprint resumes. Raise ValueError if there is
    none, or if it has another architecture, optimizer, data or tokenizer, or more iterations."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to resume from: check out_dir, or start with --init_from=scratch')
    state = load_checkpoint(path, mmap=True)
    changeable = (*CHANGEABLE_ON_RESUME, *getattr(Config, 'changeable_on_resume', ()))
    architecture = {f.name: f.default for f in fields(Config) if f.init and f.name not in changeable}
    saved = {**architecture, **state['config']}         # code that was edited since may have more keys
    if state['about']['script'] != script_of(Config):
        raise ValueError(f'{path} is of a run of {state["about"]["script"]}: choose another out_dir')
    for key in ('optimizer', *CHANGES, *architecture):
        if saved.get(key, False) != config[key]:
            raise ValueError(f'{path} cannot be resumed with another architecture or optimizer: {key} ({saved.get(key, False)} '
                             f'there, {config[key]} here); choose another out_dir, or start again by --init_from=scratch '
                             f'--overwrite=True')
    here, there = (c['batch_size'] * c['gradient_accumulation_steps'] for c in (config, saved))
    if here != there and state['iter'] and not config['eval_only']:
        raise ValueError(f'{path} was saved with {there} windows in an iteration, and this run has {here}: keep '
                         f'batch_size * gradient_accumulation_steps, or some windows are read twice and others never')
    if data != state['data'] and saved['dataset'] == config['dataset']:
        raise ValueError(f'data/{config["dataset"]} holds other data than when {path} was saved: prepare it as it '
                         f'was; or to go on with the new data, rename its folder, and name it by --dataset=…')
    if Config is GPT.Config and saved['dataset'] != config['dataset'] and is_prepared(saved['dataset']):
        if (meta := read_meta(saved['dataset']))['fingerprint'] == state['data']:
            check_tokenizer(path, (meta['tokenizer'], meta['chars']), config['dataset'])
    if state['iter'] > config['max_iters']:
        raise ValueError(f'max_iters={config["max_iters"]}: {path} is at iteration {state["iter"]} already')
    return state


def load_state(optimizer, state):
    """Restore an optimizer's state from a state_dict of whole tensors, by the parameters' names. The groups keep this run's
    settings, except for the learning rate. Raise ValueError if the names differ."""
    own, number, rates = optimizer.state_dict(), {}, {}
    for group in state['param_groups']:
        number |= zip(group['param_names'], group['params'])
        rates |= dict.fromkeys(group['param_names'], group['lr'])
    names = [name for group in own['param_groups'] for name in group['param_names']]
    if different := {*names} ^ number.keys():
        raise ValueError(f'the optimizer state is for other parameters, see {min(different)!r}: use the same model')
    for group in own['param_groups']:
        group['lr'] = rates[group['param_names'][0]]
    params = [p for group in optimizer.param_groups for p in group['params']]

    def placed(p, value):
        """Return a value of p's state where p is: a whole tensor, or of one with p's shape this rank's rows."""
        def place(name, t):
            if not torch.is_tensor(t) or not (hasattr(p, 'device_mesh') and t.shape == p.shape):
                return t.to(p.device, copy=True) if torch.is_tensor(t) else t
            from torch.distributed.tensor import distribute_tensor  # here, for it takes a second
            return distribute_tensor(t.to(p.device), p.device_mesh, p.placements, src_data_rank=None).clone()

        return map_leaves(value, place)

    found = {i: placed(p, state['state'][number[name]]) for i, (name, p) in enumerate(zip(names, params))
             if number[name] in state['state']}
    shared = {key: placed(params[0], value) for key, value in state['state'].items() if isinstance(key, str)}
    optimizer.load_state_dict(own | dict(state={**shared, **found}))
    for i, values in found.items():                     # PyTorch casts to the parameter's dtype, and treats text as a list
        for key, value in values.items():
            loaded = optimizer.state[params[i]].get(key)
            if not torch.is_tensor(value) or loaded.dtype != value.dtype:
                optimizer.state[params[i]][key] = value
