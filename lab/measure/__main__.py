"""
Measures what the papers measure, on a run or on an untrained model:

    python -m lab.measure --out_dir=out-quick                               # all, into out-quick/measure.json and pictures
    python -m lab.measure --out_dir=out-quick --what=sharpness,gradients
    python -m lab.measure config/train_quick.py config/arch/peri.py --init_only=True        # a check before training
    python -m lab.measure --script=vision.train config/train_quick_vision.py --init_only=True        # the same of a ViT

A sequence is also the tokens of an image, whose loss is the mean over images.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.measure')

from configurator import at_least, configure, defaults_of, flags, parse_args
from engine.process import begin

import importlib
import os

import torch

from data.tokens import Tokens
from engine.checkpoint import check_data, key_sources, load_checkpoint, model_from
from engine.device import pick_device
from engine.files import finite, read_json, write_json
from engine.keys import gpt_config
from lab.measure import MEASUREMENTS, NEEDS, measure
from lab.plot import draw
from lab.runs import model_of
from model import GPT

__doc__ += '\nvalues of --what:' + ''.join(f'\n    {name:14}{f.__doc__.splitlines()[0]}' for name, f in MEASUREMENTS.items())

# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out'                     # a run's folder, which also gets the results; with init_only they go into <out_dir>-init
checkpoint = 'ckpt.pt'              # ckpt.pt: the latest | best.pt: the lowest validation loss | ckpt-000500.pt: a kept one
init_only = False                   # measure the untrained model of the config instead
script = ''                         # train.py | vision.train: whose models; empty: that of the run, and of init_only train.py
what = ''                           # measurements, with commas; empty: all except preflight, or preflight with init_only
batches = 8                         # batches of batch_size windows or images, evenly spread over the run's training data
# -----------------------------------------------------------------------------

def refuse_other_keys(config, run, defaults):
    """Raise ValueError for a key of the command that differs from the run's, because a run is measured with its own keys."""
    for key in sorted(defaults.keys() & run.keys() - {'out_dir', 'device', 'debug', 'init_from', 'overwrite'}):
        if config[key] != run[key] and (config[key] != defaults[key] or key in flags()):
            raise ValueError(f'{key}={config[key]}: {out_dir} has {run[key]}, and a run is measured with its own keys; leave it '
                             f'out, or measure an untrained model by --init_only=True')


def write_results(folder, results, about, config):
    """Write measure.json, and config.json for an untrained model. Earlier results stay if they are of the same config, iteration
    and batches."""
    paths, remedy = [os.path.join(folder, name) for name in ('config.json', 'measure.json')], 'remove it and measure again'
    config_before, earlier = (read_json(path, remedy) or {} for path in paths)
    if init_only and config_before != config or any(earlier.get(key) != value for key, value in about.items()):
        earlier = {}
    os.makedirs(folder, exist_ok=True)
    if init_only:                                       # lab.plot names the model by it
        write_json(paths[0], config)
    write_json(paths[1], finite({**about, **earlier, **results}))
    print(f'\nwrote {paths[1]}')


def untrained(Model, config):
    """Return a function that builds the model of a run's keys, and the run's training data."""
    model_config = gpt_config(config, Model.Config)
    if Model is GPT:
        return lambda: GPT(model_config), Tokens(config['dataset'], 'train', model_config.block_size, model_config.vocab_size)
    images = importlib.import_module('vision.data').Images(config['dataset'], 'train', model_config)
    return lambda: Model(model_config, images.mean, images.std), images


def main():
    begin()
    of_script = [arg for arg in sys.argv[1:] if arg.startswith('--script=')]        # first, for it decides on the other keys
    Model = model_of(parse_args(of_script, dict(script=''))['script'] or 'train.py')
    sources = key_sources(Model.Config)
    config = configure(globals(), *sources)
    at_least(config, batches=1, batch_size=1, seed=0)
    default = ['preflight'] if init_only else [name for name in MEASUREMENTS if name != 'preflight']
    names = what.split(',') if what else default
    if unknown := set(names) - MEASUREMENTS.keys():
        raise ValueError(f'what={min(unknown)!r}: choose among {", ".join(MEASUREMENTS)}')
    device, path, folder = pick_device(config['device']), os.path.join(out_dir, checkpoint), out_dir + '-init' * init_only
    if init_only:
        if ignored := {'checkpoint', 'init_from'} & flags():
            raise ValueError(f'{min(ignored)}: init_only=True measures an untrained model, leave it out')
        build, windows = untrained(Model, config)
        torch.manual_seed(config['seed'])
        model, iteration = build().to(device), 0
        model.after_step()                              # as training starts: nGPT normalizes its weights
    else:
        if not os.path.exists(path):
            raise ValueError(f'there is no {path} to measure: train first, check out_dir, or set --init_only=True')
        state = load_checkpoint(path, device)
        Model = model_of(script or state['about']['script'])
        model = model_from(state, device, Model)
        refuse_other_keys(config, state['config'], defaults_of(*sources))
        config, iteration = state['config'], state['iter']
        windows = untrained(Model, config)[1]
        check_data(state, windows.fingerprint)
    data = [tuple(t.to(device) for t in windows.read(starts)) for starts in windows.eval_batches(batches, config['batch_size'])]
    results = measure(model, data, names, config['seed'])
    for name, result in results.items():
        if result:
            MEASUREMENTS[name].show(result)
        else:
            print(f'\n{name} has no result: it needs {NEEDS[name]}')
    about = {'iter': iteration, 'tokens' if Model is GPT else 'images': sum(y.numel() for _, y in data)}
    keys = {key: value for key, value in config.items() if key not in ('what', 'batches', 'script', 'debug')}
    write_results(folder, results, about, keys)
    for name in filter(results.get, names):
        draw(MEASUREMENTS[name].plot, [folder], os.path.join(folder, f'{name}.png'))


if __name__ == '__main__':
    main()
