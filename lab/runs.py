"""
Print a table of runs, sorted by their last validation loss; for two runs, print also their differences:

    python -m lab.runs out-*                                    # with the keys in which they differ
    python -m lab.runs out-* --keys=norm,learning_rate --csv=runs.csv
    python -m lab.runs out-quick out-s1                         # for two runs, also differences of code, data and versions

In a notebook, the log of a run as a data frame, and its model:

    from lab.runs import load
    log, model = load('out-quick')
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.runs')

from engine.process import begin

import argparse
import math
import os
import re
import statistics
import time

from data.lock import is_locked
from engine.errors import read_json, read_rows

ALWAYS_DIFFER = {'out_dir', 'init_from', 'overwrite', 'debug', 'eval_only', 'wandb_log', 'wandb_project', 'wandb_run_name'}
VERSIONS = ('python', 'torch', 'numpy', 'platform', 'machine', 'device', 'ranks', 'dtype', 'attention_backend', 'compiled')


def read_run(folder):
    """Return a run's `config`, the `about` of its run.json, and its log's `rows`, or None for a folder without a run."""
    config = read_json(os.path.join(folder, 'config.json'), 'remove it')
    if not config or not os.path.exists(os.path.join(folder, 'log.jsonl')):
        return None
    about = read_json(os.path.join(folder, 'run.json'), 'remove it') or {}
    last_start = (about.get('starts') or [{}])[-1]              # for a resumed run, the last start counts
    return dict(folder=folder, config=config, about={**about, **last_start}, rows=read_rows(os.path.join(folder, 'log.jsonl')))


def status_of(run):
    """Return 'running', 'diverged', 'done' or 'stopped'."""
    if is_locked(run['folder']):
        return 'running'
    if run['rows'] and 'diverged' in run['rows'][-1]:
        return 'diverged'
    ended = any(row['iter'] == run['config'].get('max_iters') for row in run['rows'] if 'val_loss' in row)
    return 'done' if ended else 'stopped'


def differing(dicts):
    """Return the keys whose values differ between these dicts, in their original order."""
    keys = dict.fromkeys(key for one in dicts for key in one)
    return [key for key in keys if any(one.get(key) != dicts[0].get(key) for one in dicts)]


def keys_that_differ(configs):
    """Return the keys that tell runs apart, in tables and legends."""
    return [key for key in differing(configs) if key not in ALWAYS_DIFFER]


def table_of(runs, keys):
    """Return a data frame of texts with a row for each run, in ascending order of the last validation loss."""
    import pandas
    lines = []
    for run in runs:
        losses = [row['val_loss'] for row in run['rows'] if math.isfinite(row.get('val_loss', math.nan))]
        unit = 'images' if any('images_per_s' in row for row in run['rows']) else 'tokens'
        speeds = [row[f'{unit}_per_s'] for row in run['rows'] if f'{unit}_per_s' in row]
        speed = f'{statistics.median(speeds):,.0f}' + ' images/s' * (unit == 'images') if speeds else ''
        at = max((row['iter'] for row in run['rows']), default=0)
        written = os.path.getmtime(os.path.join(run['folder'], 'log.jsonl'))
        lines.append({
            'run': run['folder'], 'status': status_of(run), 'iterations': f'{at}/{run["config"].get("max_iters", "?")}',
            'val loss': f'{losses[-1]:.4f}' if losses else '', 'best': f'{min(losses):.4f}' if losses else '', 'tokens/s': speed,
            'last written': time.strftime('%Y-%m-%d %H:%M', time.localtime(written)),
            **{key: str(run['config'].get(key, '')) for key in keys}})
    return pandas.DataFrame(lines).sort_values('val loss', key=lambda texts: pandas.to_numeric(texts, 'coerce'), kind='stable')


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
    lines = []

    def add(kind, of_a, of_b, keys):
        for key in keys:
            if of_a.get(key) != of_b.get(key):
                lines.append([f'{kind} {key}'.strip(), *(str(values.get(key, '–'))[:60] for values in (of_a, of_b))])

    add('key', a['config'], b['config'], keys_that_differ([a['config'], b['config']]))
    add('code', a['about'], b['about'], ['commit'])
    edits = [patches(run['folder']) for run in (a, b)]
    for file in differing(edits):
        of_a, of_b = ('edited' if file in edit else '–' for edit in edits)
        lines.append([f'code {file}', of_a, of_b + ' differently' * (of_a == of_b)])
    add('data', *(dict(fingerprint=run['about'].get('data')) for run in (a, b)), ['fingerprint'])
    add('', a['about'], b['about'], VERSIONS)
    return pandas.DataFrame(lines, columns=['', a['folder'], b['folder']])


def load(folder, checkpoint='best.pt', Model=None):
    """Return a run's log as a pandas data frame, and the model of its checkpoint, on the CPU in eval mode, or None without a
    checkpoint. The frame has a row for each line of log.jsonl, and a column such as grad_norms.qk for each entry of a dict.
    Model: GPT, or vision.vit's ViT for a run of vision.train."""
    import pandas
    run = read_run(folder)
    if run is None:
        raise ValueError(f'{folder!r} is not the folder of a run')
    log, path = pandas.json_normalize(run['rows']), os.path.join(folder, checkpoint)
    if not os.path.exists(path):
        return log, None
    if Model is None and 'patch_size' in run['config']:
        raise ValueError(f'{folder} is a run of vision.train: type  from vision.vit import ViT,  and load({folder!r}, Model=ViT)')
    from engine.checkpoint import load_run
    from model import GPT
    return log, load_run(path, 'cpu', Model or GPT)[0].eval()


def main():
    parser = argparse.ArgumentParser(prog='python -m lab.runs', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')
    parser.add_argument('folders', nargs='+', help='folders of runs; other folders are skipped')
    parser.add_argument('--keys', help='keys to show, separated by commas; default: those that differ')
    parser.add_argument('--csv', help='write the table to this file')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    begin(args.debug)
    runs = [run for run in map(read_run, dict.fromkeys(os.path.normpath(folder) for folder in args.folders)) if run]
    if not runs:
        raise ValueError(f'none of these is the folder of a run, with config.json and log.jsonl: {", ".join(args.folders)}')
    configs = [run['config'] for run in runs]
    keys = args.keys.split(',') if args.keys else keys_that_differ(configs)
    for key in keys:
        if not any(key in config for config in configs):
            raise ValueError(f'keys={args.keys}: no run has the key {key!r}')
    both = len(runs) == 2 and not args.keys
    table = table_of(runs, keys)
    print((table.drop(columns=keys) if both else table).to_string(index=False))         # the keys are listed below
    if both:
        lines = differences(*runs)
        print('\ndifferences:\n' + (lines.to_string(index=False) if len(lines) else 'none but the folder'))
    if args.csv:
        table.to_csv(args.csv, index=False)
        print(f'wrote {args.csv}')


if __name__ == '__main__':
    main()
