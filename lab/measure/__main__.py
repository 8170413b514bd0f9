"""
Measures what the papers measure, on a run or on an untrained model:

    python -m lab.measure --out_dir=out-quick                               # all, into out-quick/measure.json and pictures
    python -m lab.measure --out_dir=out-quick --what=sharpness,gradients
    python -m lab.measure config/train_quick.py config/arch/peri.py --init_only=True        # a check before training
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.measure')

from configurator import TRAIN, at_least, configure, defaults_of, flags, refuse

import json
import os

import torch

from data.tokens import Tokens
from engine.checkpoint import check_data, load_run, load_state
from engine.device import pick_device
from engine.files import finite, read_json, write_whole
from engine.keys import gpt_config, group_settings
from engine.step import training_step
from lab.measure import MEASUREMENTS, NEEDS, measure, update_sizes
from lab.measure.parameters import show_updates
from model import GPT, GPTConfig
from optim import make_optimizer, param_groups

ABOUT = [f'    {name:14}{measurement.__doc__.splitlines()[0]}' for name, measurement in MEASUREMENTS.items()]
__doc__ += '\n'.join(['\nvalues of --what:', *ABOUT])

# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out'                     # a run's folder, which also gets the results; with init_only they go into <out_dir>-init
checkpoint = 'ckpt.pt'              # ckpt.pt: the latest | best.pt: the lowest validation loss | ckpt-000500.pt: a kept one
init_only = False                   # measure the untrained model of the config instead
what = ''                           # measurements, with commas; empty: all except preflight, or preflight with init_only
batches = 8                         # batches of batch_size windows or images, evenly spread over the run's training data
# -----------------------------------------------------------------------------

def one_update(model, state, config, data):
    """Return update_sizes of one step from a checkpoint, with its optimizer's state, on the mean gradient over the data."""
    optimizer = make_optimizer(param_groups(model, **group_settings(config)), {**config, 'compile': False})
    load_state(optimizer, state['optimizer'])
    for block in model.h if config['qk_clip'] else ():
        block.attn.train().dropout = 0.0                # QK-Clip sees the logits of attention in training mode
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    training_step(model, model, optimizer, data, config['grad_clip'])
    return update_sizes(before, model)


def refuse_other_keys(config, run, folder, defaults):
    """Raise ValueError for a key of the command that differs from the run's, because a run is measured with its own."""
    for key in sorted(defaults.keys() & run.keys() - {'out_dir', 'device', 'debug', 'init_from', 'overwrite'}):
        if config[key] != run[key] and (config[key] != defaults[key] or key in flags()):
            raise ValueError(f'{key}={config[key]}: {folder} has {run[key]}, and a run is measured with its own keys; leave it '
                             f'out, or measure an untrained model by --init_only=True')


def write_results(folder, results, about, config=None):
    """Write measure.json. Earlier results stay if they are `about` the same iteration and batches, and if those of an untrained
    model are of the same config, which becomes config.json."""
    paths, remedy = [os.path.join(folder, name) for name in ('config.json', 'measure.json')], 'remove it and measure again'
    held, earlier = (read_json(path, remedy) or {} for path in paths)
    if config and held != config or any(earlier.get(key) != value for key, value in about.items()):
        if lost := sorted(earlier.keys() - about.keys() - results.keys()):
            print(f'{paths[1]} loses {", ".join(lost)}: they are of another model, iteration or number of batches')
        earlier = {}
    os.makedirs(folder, exist_ok=True)
    if config:                                          # lab.plot names the model by it
        write_whole(paths[0], lambda f: f.write(json.dumps(config, indent=1).encode()))
    write_whole(paths[1], lambda f: f.write(json.dumps(finite({**about, **earlier, **results})).encode() + b'\n'))
    print(f'\nwrote {paths[1]}')


def untrained(config):
    """Return a function that builds the GPT of a run's keys, and its training data."""
    model_config = gpt_config(config)
    return lambda: GPT(model_config), Tokens(config['dataset'], 'train', model_config.block_size, model_config.vocab_size)


def main(Model=GPT, sources=(TRAIN, GPTConfig), untrained=untrained, unit='tokens'):
    """Measure a run or an untrained model. `sources` of its keys as configure takes them; `untrained` as above; targets are
    counted as `unit`."""
    config = configure(globals(), *sources)
    at_least(config, batches=1, batch_size=1, seed=0)
    default = ['preflight'] if init_only else [name for name in MEASUREMENTS if name != 'preflight']
    names = what.split(',') if what else default
    if unknown := set(names) - MEASUREMENTS.keys():
        raise ValueError(f'what={min(unknown)!r}: choose among {", ".join(MEASUREMENTS)}')
    device, path, state = pick_device(config['device']), os.path.join(out_dir, checkpoint), None
    if init_only:
        refuse(['checkpoint', 'init_from'], 'init_only=True measures an untrained model')
    elif not os.path.exists(path):
        raise ValueError(f'there is no {path} to measure: train first, check out_dir, or set --init_only=True')
    else:
        model, state = load_run(path, device, Model)
        refuse_other_keys(config, state['config'], out_dir, defaults_of(*sources))
        config |= state['config']
    build, windows = untrained(config)
    if state:
        check_data(state, windows.fingerprint)
    else:
        torch.manual_seed(config['seed'])
        model = build().to(device)
        model.after_step()                              # as training starts: nGPT normalizes its weights
    data = [tuple(t.to(device) for t in windows.read(starts)) for starts in windows.spread(batches, config['batch_size'])]
    results = measure(model, data, names, config['seed'])
    if state and 'parameters' in names:
        results['updates'] = one_update(model.eval(), state, config, data)
    for name, result in results.items():
        if result:
            (show_updates if name == 'updates' else MEASUREMENTS[name].show)(result)
    folder = out_dir + '-init' * init_only
    about = {'iter': state['iter'] if state else 0, unit: sum(y.numel() for _, y in data)}
    keys = None if state else {key: value for key, value in config.items() if key not in ('what', 'batches', 'debug')}
    write_results(folder, results, about, keys)
    from lab.plot import draw
    for name in names:
        if results[name]:
            draw(name, [folder], os.path.join(folder, f'{name}.png'))
        else:
            print(f'{name} has no result: {NEEDS[name]}')


if __name__ == '__main__':
    main()
