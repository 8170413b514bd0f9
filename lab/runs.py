"""
Print a table of runs, sorted by their last validation loss:

    python -m lab.runs out-*                                    # with the keys in which they differ
    python -m lab.runs out-* --keys=norm,learning_rate
    python -m lab.runs out-quick out-s1                         # two runs, line by line: also code, data and versions that differ

Below it, runs that differ only in their seed have their mean ± a 95% interval. In a notebook:

    from lab.runs import load
    log, model = load('out-quick')                              # the log as a data frame, and the model
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.runs')

from configurator import ROOT, SECTIONS, TRAIN, keys_in, read_config
from engine.process import begin, say

import argparse
import functools
import glob
import importlib
import json
import os
import re

import numpy as np

from data.lock import is_locked
from engine.files import is_number, read_json, read_rows

SEEDS = {'seed', 'data_seed'}
ALWAYS_DIFFER = {'out_dir', 'init_from', 'overwrite', 'debug', 'eval_only', 'wandb_log', 'wandb_project', 'wandb_run_name'}
VERSIONS = ('commit', 'data', 'python', 'torch', 'numpy', 'platform', 'machine', 'device', 'ranks', 'dtype', 'compiled')


def read_object(folder, name):
    """Return the JSON object of a file in a folder, {} if there is no file."""
    found = read_json(os.path.join(folder, name), 'remove it') or {}
    if not isinstance(found, dict):
        raise ValueError(f'{folder}/{name} is damaged, remove it: it holds no JSON object')
    return found


def read_run(folder):
    """Return a run's `folder`, `config`, the `about` of its last start, and its log's `rows`."""
    config, log = read_object(folder, 'config.json'), os.path.join(folder, 'log.jsonl')
    if not config or not os.path.exists(log):
        raise ValueError(f'{folder} is not the folder of a run, with config.json and log.jsonl')
    about = read_object(folder, 'run.json')
    return dict(folder=folder, config=config, about={**about, **(about.get('starts') or [{}])[-1]}, rows=read_rows(log))


def numbers_in(value, key='', curve=''):
    """Yield (key, curve, number) of the numbers in a row of log.jsonl or measure.jsonl. A key is a path such as 'grad_norms.qk'.
    A curve is '' for a plain number, and in a list a layer: 1, 2, …, or its entry 'at'. All heads of a layer are one curve."""
    if is_number(value):
        yield key, curve, value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in ('iter', 'histogram'):
                yield from numbers_in(part, f'{key}.{name}' if key else name, curve)
    elif isinstance(value, list):
        for i, item in enumerate(value, 1):
            yield from numbers_in(item, key, curve or str(item.get('at', i) if isinstance(item, dict) else i))


def status_of(run):
    """Return 'running', 'diverged', 'done' or 'stopped'."""
    if is_locked(run['folder']):
        return 'running'
    if run['rows'] and 'diverged' in run['rows'][-1]:
        return 'diverged'
    ended = any(row['iter'] == run['config'].get('max_iters') for row in run['rows'] if 'val_loss' in row)
    return 'done' if ended else 'stopped'


def model_of(script):
    """Return the class of the models that a script trains. It is imported by name: the lab does without images."""
    classes = {'train.py': ('model', 'GPT'), 'vision.train': ('vision.vit', 'ViT')}
    if script not in classes:
        raise ValueError(f'script={script!r}: choose one of {", ".join(classes)}')
    module, name = classes[script]
    return getattr(importlib.import_module(module), name)


@functools.cache
def section_of(key):
    """Return the section of --help that has this key of train.py or vision.train; 'sizes' for fields of a model's config."""
    scripts = {**keys_in(os.path.join(ROOT, 'vision', 'train.py')), **keys_in(TRAIN)}
    return scripts[key].section if key in scripts else 'sizes'


def differing(dicts):
    """Return the keys whose values differ between these dicts, in their original order."""
    keys = dict.fromkeys(key for one in dicts for key in one)
    return [key for key in keys if any(one.get(key) != dicts[0].get(key) for one in dicts)]


@functools.cache
def architectures(is_vision=False):
    """Return {name: keys} of the files of config/arch/. Some of their values are others for a ViT."""
    values = {'patch_size': 16} if is_vision else {}
    paths = sorted(glob.glob(os.path.join(ROOT, 'config', 'arch', '*.py')))
    files = {os.path.basename(path).removesuffix('.py'): read_config(path, values) for path in paths}
    return {name: {key: value for key, value in keys.items() if key not in values} for name, keys in files.items()}


def architecture(config):
    """Return the file of config/arch/ that is nearest to a run's architecture, with the keys that differ from it, as in 'pre,
    residual_scale=0.1'. Return '' if these are more than two."""
    known = architectures('patch_size' in config)
    nearest = min(([name, *(f'{key}={config.get(key)}' for key, value in keys.items() if config.get(key) != value)]
                   for name, keys in known.items()), key=len)
    return ', '.join(nearest) if len(nearest) <= 3 else ''


def tell_apart(configs):
    """Return the name of each run's architecture, and the other keys in which the runs differ: those of the model first, those
    of logging and of the machine last."""
    archs = [architecture(config) for config in configs]
    named = architectures()['pre'] if all(arch or not config for arch, config in zip(archs, configs)) else ()
    keys = [key for key in differing(configs) if key not in ALWAYS_DIFFER and key not in named]
    return archs, sorted(keys, key=lambda key: SECTIONS.index(section_of(key)))


def group_by_seed(configs):
    """Return lists of folders of {folder: config}: runs that differ only in their seed are one list. A repetition of a run with
    the same seed is in another one."""
    groups, earlier = {}, []
    for folder, config in configs.items():
        keys = {key: value for key, value in sorted(config.items()) if key not in ALWAYS_DIFFER}
        but_seed = json.dumps({key: value for key, value in keys.items() if key not in SEEDS})
        groups.setdefault((but_seed, earlier.count(keys)), []).append(folder)
        earlier.append(keys)
    return [*groups.values()]


def name_of_group(folders):
    """Return a run's folder without its parents; of several, how their names begin: 'out-s1' for out-s1-seed1, out-s1-seed2."""
    names = [os.path.basename(os.path.normpath(folder)) for folder in folders]
    begins = re.sub(r'[\W_]*(seed[\W_]*\d*)?[\W_]*$', '', os.path.commonprefix(names))
    return names[0] if len(names) == 1 else begins or os.path.basename(os.path.dirname(os.path.abspath(folders[0])))


def mean_interval(values):
    """Return the mean over the first axis, and half the width of its 95% interval by Student's t, NaN for a single value."""
    values = np.asarray(values, dtype=float)
    if len(values) == 1:
        return values[0], np.full_like(values[0], np.nan)
    from scipy.stats import t  # here, because one run needs no interval
    return values.mean(0), t.ppf(0.975, len(values) - 1) * values.std(0, ddof=1) / np.sqrt(len(values))


def load(folder, checkpoint='best.pt'):
    """Return a run's log as a pandas data frame, with columns such as grad_norms.qk, and the model of its checkpoint, on the CPU
    in eval mode, or None without a checkpoint."""
    import pandas  # here and below, for lab.plot imports this file and does without

    from engine.checkpoint import load_checkpoint, model_from
    log, path = pandas.json_normalize(read_run(folder)['rows']), os.path.join(folder, checkpoint)
    if not os.path.exists(path):
        return log, None
    state = load_checkpoint(path)
    return log, model_from(state, 'cpu', model_of(state['about']['script'])).eval()


def argument_parser(name, about, folders, **more):
    """Return a parser for a command that reads folders of runs. An error is one line."""
    parser = argparse.ArgumentParser(prog=f'python -m {name}', description=about, **more,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')
    parser.add_argument('folders', nargs='+', help=folders)
    return parser


def summary(run):
    """Return {column: value} of a run's row in the table."""
    losses = [row['val_loss'] for row in run['rows'] if is_number(row.get('val_loss')) and np.isfinite(row['val_loss'])]
    ends = max((row['iter'] for row in run['rows']), default=0), run['config'].get('max_iters', '?')
    return {'run': run['folder'], 'status': status_of(run), 'iterations': '/'.join(map(str, ends)),
            'val loss': losses[-1] if losses else np.nan, 'best': min(losses, default=np.nan)}


def means(table, groups):
    """Yield {column: value} for each of group_by_seed's groups that has several runs: the mean loss of those that are done."""
    for folders in groups:
        if len(folders) > 1:
            losses = table['val loss'][table.run.isin(folders) & (table.status == 'done')].dropna()
            mean, half = mean_interval(losses) if len(losses) else (np.nan, np.nan)
            yield {'runs': name_of_group(folders), 'done': f'{len(losses)} of {len(folders)}', 'val loss': mean, '± 95%': half}


def main():
    import pandas
    parser = argument_parser('lab.runs', __doc__, 'folders of runs; other folders are skipped')
    parser.add_argument('--keys', help='keys to show, separated by commas; default: those that differ')
    args = parser.parse_args()
    begin()
    runs, skipped = [], []
    for folder in dict.fromkeys(map(os.path.normpath, args.folders)):
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError, TypeError, LookupError) as error:
            skipped.append(f'{folder}: {error}')
    if not runs:
        raise ValueError('; '.join(skipped))
    for why in skipped:
        say(f'skipped {why}', to=sys.stderr)
    configs, table = {run['folder']: run['config'] for run in runs}, pandas.DataFrame(map(summary, runs))
    facts, is_pair = [*configs.values()], len(runs) == 2 and not args.keys
    archs, keys = tell_apart(facts) if not args.keys else ([], args.keys.split(','))
    if is_pair:
        abouts = [{key: run['about'].get(key) for key in VERSIONS} | run['about'].get('code', {}) for run in runs]
        facts, keys = [config | about for config, about in zip(facts, abouts)], keys + differing(abouts)
    columns = (dict(arch=archs) if len({*archs}) > 1 else {}) | {key: [str(fact.get(key, '')) for fact in facts] for key in keys}
    table = table.assign(**columns).sort_values('val loss', kind='stable')
    as_text = dict(na_rep='', float_format='{:.4f}'.format)
    print(table.T.to_string(header=False, **as_text) if is_pair else table.to_string(index=False, **as_text))
    if lines := [*means(table, group_by_seed(configs))]:
        lines = pandas.DataFrame(lines).sort_values('val loss', kind='stable')
        print('\nmeans over seeds:\n' + lines.to_string(index=False, **as_text))


if __name__ == '__main__':
    main()
