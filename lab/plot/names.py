"""How pictures name runs: by their folders, and by the keys in which they differ."""
from configurator import ROOT, read_config, script_of

import functools
import glob
import json
import math
import os
import re
from dataclasses import asdict

from engine.errors import read_json
from lab.runs import ALWAYS_DIFFER, keys_that_differ

SEEDS = {'seed', 'data_seed'}
MOST = 8                                # runs in a picture that tells them apart by colours alone
SHOWN = 5                               # parts of a name in brackets


@functools.cache
def fragments(vision):
    """Return {name: keys} of config/arch, for a run of train.py or of vision.train. The files ask for a key of the latter."""
    paths = sorted(glob.glob(os.path.join(ROOT, 'config', 'arch', '*.py')))
    keys = {os.path.basename(path).removesuffix('.py'): read_config(path, {'patch_size': 16} if vision else {}) for path in paths}
    return {name: {key: value for key, value in of_file.items() if key != 'patch_size'} for name, of_file in keys.items()}


def read_keys(folder):
    """Return a run's config.json, {} if there is none. Fields of GPTConfig that an older run lacks are at their defaults."""
    config = read_json(os.path.join(folder, 'config.json'), 'remove it, and the run will be named by its folder') or {}
    if 'optimizer' in config and any(key not in config for key in fragments(script_of(config) == 'vision.train')['pre']):
        from model import GPTConfig  # here, for PyTorch is slow to import
        config = {**asdict(GPTConfig()), **config}
    return config


def architecture(config):
    """Return ['pre', 'residual_scale=0.1']: the nearest fragment of config/arch, and the keys in which the run differs from it;
    [] if these are more than two."""
    if 'optimizer' not in config:
        return []
    known = fragments(script_of(config) == 'vision.train')
    nearest = min(([arch, *(f'{key}={config.get(key)}' for key, value in keys.items() if config.get(key) != value)]
                   for arch, keys in known.items()), key=len)
    return nearest if len(nearest) <= 3 else []


def folder_name(folder):
    return os.path.basename(os.path.normpath(folder))


def titles(folders):
    """Return the names of the runs' architectures, as the first lines of their files in config/arch have them: 'Pre-LN', 'Pre-LN,
    residual_scale=0.1'. A run whose architecture is unknown, or that of another run too, has the folder's name."""
    names = []
    for folder in folders:
        arch, *rest = architecture(read_keys(folder)) or ['']
        if arch:
            with open(os.path.join(ROOT, 'config', 'arch', f'{arch}.py'), encoding='utf-8') as f:
                title, colon, _ = f.readline().strip('# ').partition(': ')
            arch = title if colon else arch
        names.append(', '.join([arch or folder_name(folder), *rest]))
    return [name if names.count(name) == 1 else f'{name} ({folder_name(folder)})' for folder, name in zip(folders, names)]


def labels(folders, most=MOST, leave_out=()):
    """Return the name of each run: 'out-a (pre, sgdw, learning_rate=0.1)', by its folder, its architecture, its optimizer, and
    the other keys in which the runs differ. What all have in common, or the folder's name says, is left out; … stands for parts
    beyond SHOWN. Where two folders have one name, the paths stand instead."""
    if len(folders) > most:
        raise ValueError(f'{len(folders)} runs are too many for this picture: name at most {most}, and draw the others with '
                         f'another --out')
    configs = [read_keys(folder) for folder in folders]
    archs = [architecture(config) for config in configs]
    of_arch = fragments(False)['pre'] if all(arch for arch, config in zip(archs, configs) if config) else {}
    keys = [key for key in keys_that_differ([*filter(None, configs)]) if key not in {'optimizer', *of_arch, *leave_out}]
    abouts = [[*arch, *([config['optimizer']] if 'optimizer' in config else []),
               *(f'{key}={config[key]}' for key in keys if key in config)] for arch, config in zip(archs, configs)]
    common = set.intersection(*map(set, abouts)) if len(folders) > 1 else set()
    unique = len(set(map(folder_name, folders))) == len(folders)
    names = []
    for folder, about in zip(folders, abouts):
        said = {*common, *re.split(r'[\W_]+', folder_name(folder)), *folder_name(folder).split(',')}
        parts = [part for part in about if part not in said]
        parts[SHOWN:] = ['…'] * (len(parts) > SHOWN)
        names.append((folder_name(folder) if unique else os.path.normpath(folder)) + f' ({", ".join(parts)})' * bool(parts))
    return names


def grouped_by_seed(folders):
    """Return [(label, folders)]: runs that differ only in their seed are one group."""
    groups, found = {}, []
    for folder in folders:
        config = read_keys(folder) or dict(folder=folder)
        rest = {key: value for key, value in config.items() if key not in SEEDS | ALWAYS_DIFFER}
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append((folder, [config.get(key) for key in SEEDS]))
    for group in groups.values():
        members, seeds = zip(*group)
        all_differ = all(seed not in seeds[:i] for i, seed in enumerate(seeds))
        found += [members] if all_differ else [(folder,) for folder in members]
    found.sort(key=lambda group: folders.index(group[0]))
    several = any(len(group) > 1 for group in found)
    names = labels([group[0] for group in found], math.inf, SEEDS if several else ())
    return [(name_of_group(name, group), group) for name, group in zip(names, found)]


def name_of_group(name, folders):
    """Return the name of a group's first run, with what the names of the folders begin with instead of its own"""
    if len(folders) == 1:
        return name
    begin = re.sub(r'[\W_]*(seed[\W_]*\d*)?[\W_]*$', '', os.path.commonprefix(list(map(folder_name, folders))))
    return name.replace(folder_name(folders[0]), begin or folder_name(os.path.dirname(folders[0])), 1) + f', {len(folders)} seeds'


def unit_of(folders):
    """Return the unit of these runs' loss: 'byte', 'character', 'token' or 'image'."""
    units = set()
    for config in map(read_keys, folders):
        meta = read_json(os.path.join('data', str(config.get('dataset')), 'meta.json'), 'prepare it again') or {}
        units.add('image' if 'patch_size' in config or config.get('model') == 'vit' else
                  {'bytes': 'byte', 'char': 'character'}.get(meta.get('tokenizer'), 'token'))
    return units.pop() if len(units) == 1 else 'token'
