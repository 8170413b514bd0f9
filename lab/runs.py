"""
Print a table of runs, sorted by their last validation loss; for two runs, print also their differences:

    python -m lab.runs out-*                                    # with the keys in which they differ
    python -m lab.runs out-* --keys=norm,learning_rate --csv=runs.csv
    python -m lab.runs out-quick out-s1                         # for two runs, also differences of code, data and versions

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
import json
import os
import re
import time

import numpy as np

from data.lock import is_locked
from engine.files import is_number, read_json, read_rows

SEEDS = {'seed', 'data_seed'}
ALWAYS_DIFFER = {'out_dir', 'init_from', 'overwrite', 'debug', 'eval_only', 'wandb_log', 'wandb_project', 'wandb_run_name'}
# keys of run.json that are compared, and their names
ABOUT = {'commit': 'code commit', 'data': 'data fingerprint', **{key: key for key in (
    'python', 'torch', 'numpy', 'platform', 'machine', 'device', 'ranks', 'dtype', 'compiled')}}


def read_object(folder, name):
    """Return the JSON object of a file in a folder, {} if there is no file."""
    found = read_json(path := os.path.join(folder, name), 'remove it') or {}
    if not isinstance(found, dict):
        raise ValueError(f'{path} is damaged, remove it: it holds no JSON object')
    return found


def read_run(folder):
    """Return a run's `folder`, `config`, the `about` of its last start, and its log's `rows`."""
    config, log = read_object(folder, 'config.json'), os.path.join(folder, 'log.jsonl')
    if not config or not os.path.exists(log):
        raise ValueError(f'{folder} is not the folder of a run, with config.json and log.jsonl')
    about = read_object(folder, 'run.json')
    try:
        about |= (about.get('starts') or [{}])[-1]
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f'{folder}/run.json is damaged, remove it: starts={about["starts"]!r}') from error
    return dict(folder=folder, config=config, about=about, rows=read_rows(log))


def numbers(run, key):
    """Return the finite values of a key in a run's log, in the order of the rows."""
    return [row[key] for row in run['rows'] if is_number(row.get(key)) and np.isfinite(row[key])]


def status_of(run):
    """Return 'running', 'diverged', 'done' or 'stopped'."""
    if is_locked(run['folder']):
        return 'running'
    if run['rows'] and 'diverged' in run['rows'][-1]:
        return 'diverged'
    ended = any(row['iter'] == run['config'].get('max_iters') for row in run['rows'] if 'val_loss' in row)
    return 'done' if ended else 'stopped'


# ----------------------------------------------------------------------------- keys and seeds

@functools.cache
def section_of(key):
    """Return the section of --help that has this key of train.py or vision.train; 'model' for fields of a model's config."""
    scripts = {**keys_in(os.path.join(ROOT, 'vision', 'train.py')), **keys_in(TRAIN)}
    return scripts[key].section if key in scripts else 'model'


def differing(dicts):
    """Return the keys whose values differ between these dicts, in their original order."""
    keys = dict.fromkeys(key for one in dicts for key in one)
    return [key for key in keys if any(one.get(key) != dicts[0].get(key) for one in dicts)]


def keys_that_differ(configs):
    """Return the keys that tell runs apart: those of the architecture first, those of logging and of the machine last."""
    keys = [key for key in differing(configs) if key not in ALWAYS_DIFFER]
    return sorted(keys, key=lambda key: SECTIONS.index(section_of(key)))


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
    return archs, [key for key in keys_that_differ(configs) if key not in named]


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


# ----------------------------------------------------------------------------- tables

def table_of(runs):
    """Return a data frame with a row for each run."""
    import pandas  # here, for lab.plot imports this file and does without
    lines = []
    for run in runs:
        losses, unit = numbers(run, 'val_loss'), 'images' if numbers(run, 'images_per_s') else 'tokens'
        speeds, at = numbers(run, f'{unit}_per_s'), max((row['iter'] for row in run['rows']), default=0)
        written = os.path.getmtime(os.path.join(run['folder'], 'log.jsonl'))
        lines.append({
            'run': run['folder'], 'status': status_of(run), 'iterations': f'{at}/{run["config"].get("max_iters", "?")}',
            'val loss': losses[-1] if losses else np.nan, 'best': min(losses, default=np.nan),
            'tokens/s': f'{np.median(speeds):,.0f}' + ' images/s' * (unit == 'images') if speeds else '',
            'last written': time.strftime('%Y-%m-%d %H:%M', time.localtime(written))})
    return pandas.DataFrame(lines)


def table_of_seeds(table, groups):
    """Return a data frame with the mean loss of each group of runs that has several, over those that are done. `table` is from
    table_of, `groups` from group_by_seed."""
    import pandas
    lines = []
    for folders in groups:
        losses = table['val loss'][table.run.isin(folders) & (table.status == 'done')].dropna()
        mean, half = mean_interval(losses) if len(losses) else (np.nan, np.nan)
        done = f'{len(losses)} of {len(folders)}'
        lines.append({'runs': name_of_group(folders), 'done': done, 'val loss': mean, '± 95%': half})
    return pandas.DataFrame(lines).sort_values('val loss', kind='stable')


def patches(folder):
    """Return {file: its part of code.patch}."""
    path = os.path.join(folder, 'code.patch')
    if not os.path.exists(path):
        return {}
    with open(path, encoding='utf-8', errors='replace') as f:
        parts = re.split(r'^diff --git ', f.read(), flags=re.MULTILINE)[1:]
    return {part.split('\n')[0].rpartition(' b/')[2]: part for part in parts}


def differences(a, b):
    """Return a data frame of the differences between two runs, with columns name, value in a, value in b."""
    import pandas
    configs, abouts = ([run[part] for run in (a, b)] for part in ('config', 'about'))
    edits = [patches(run['folder']) for run in (a, b)]
    lines = [[f'key {key}', *(config.get(key, '–') for config in configs)] for key in keys_that_differ(configs)]
    for file in differing(edits):
        of_a, of_b = ('edited' if file in edit else '–' for edit in edits)
        lines.append([f'code {file}', of_a, of_b + ' differently' * (of_a == of_b)])
    lines += [[ABOUT[key], *(about.get(key, '–') for about in abouts)] for key in ABOUT if key in differing(abouts)]
    return pandas.DataFrame([[name, str(x)[:60], str(y)[:60]] for name, x, y in lines], columns=['', a['folder'], b['folder']])


def load(folder, checkpoint='best.pt', Model=None):
    """Return a run's log as a pandas data frame, and the model of its checkpoint, on the CPU in eval mode, or None without a
    checkpoint. The frame has a row for each line of log.jsonl, and a column such as grad_norms.qk for each entry of a dict.
    Model: GPT, or vision.vit's ViT for a run of vision.train."""
    import pandas

    from engine.checkpoint import load_run
    from model import GPT
    log, path = pandas.json_normalize(read_run(folder)['rows']), os.path.join(folder, checkpoint)
    return log, load_run(path, 'cpu', Model or GPT)[0].eval() if os.path.exists(path) else None


def argument_parser(name, about, folders, **more):
    """Return a parser for a command that reads folders of runs. An error is one line."""
    parser = argparse.ArgumentParser(prog=f'python -m {name}', description=about, **more,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')
    parser.add_argument('folders', nargs='+', help=folders)
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    return parser


def main():
    parser = argument_parser('lab.runs', __doc__, 'folders of runs; other folders are skipped')
    parser.add_argument('--keys', help='keys to show, separated by commas; default: those that differ')
    parser.add_argument('--csv', help='write the table to this file')
    args = parser.parse_args()
    begin(args.debug)
    runs, skipped = [], []
    for folder in dict.fromkeys(map(os.path.normpath, args.folders)):
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError) as error:
            skipped.append(str(error))
    if not runs:
        raise ValueError('; '.join(skipped))
    for why in skipped:
        say(f'skipped: {why}', to=sys.stderr)
    configs = {run['folder']: run['config'] for run in runs}
    archs, keys = tell_apart([*configs.values()]) if not args.keys else ([], args.keys.split(','))
    for key in keys:
        if not any(key in config for config in configs.values()):
            raise ValueError(f'keys={args.keys}: no run has the key {key!r}')
    columns = dict(arch=archs) if len({*archs}) > 1 else {}
    columns |= {key: [str(config.get(key, '')) for config in configs.values()] for key in keys}
    table, both = table_of(runs).assign(**columns).sort_values('val loss', kind='stable'), len(runs) == 2 and not args.keys
    as_text = dict(index=False, na_rep='', float_format='{:.4f}'.format)
    print(table.drop(columns=[*columns] if both else []).to_string(**as_text))     # the keys of two runs are listed below
    groups = [group for group in group_by_seed(configs) if len(group) > 1]
    if groups:
        print('\nmeans over seeds:\n' + table_of_seeds(table, groups).to_string(**as_text))
    if both:
        lines = differences(*runs)
        print('\ndifferences:\n' + (lines.to_string(index=False) if len(lines) else 'none but the folder'))
    if args.csv:
        table.to_csv(args.csv, index=False, float_format='%.4f')
        print(f'wrote {args.csv}')


if __name__ == '__main__':
    main()
