"""
Trains a grid of runs, each with several seeds, and makes their table:

    python -m lab.sweep config/train_quick.py --arch=s1,s5 --optim=sgdw --learning_rate=0.1,0.3,1.0 --seeds=3
    python -m lab.sweep config/sweep/dnt.py                     # the same from a file, as results/ has them
    python -m lab.sweep config/sweep/dnt.py --against=arch=s1,optim=adamw
    python -m lab.sweep --report=out-sweep/runs.csv             # the table again, without training

A key of train.py with several values is an axis of the grid. So are arch, optim and lr, folders of config/, with the names of
their files or `none` as values. Every run is a run of train.py in its own folder, and has a row in runs.csv once it has ended.
A run with a row is not trained again: after an interruption, the same command continues. Seed 1 trains at all learning rates, to
the end, and chooses one by its validation loss. The other seeds train at that rate, and they alone are compared.

lab/sweep_plan.py says what is run, and lab/sweep_table.py makes the tables.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.sweep')

from configurator import at_least, configure, defaults_of, flags, is_help, refuse
from engine.process import say

import os
import re
import signal
import statistics
import subprocess
import time
from dataclasses import asdict

import torch

from data.lock import lock_file, lock_folder
from data.tokens import Tokens, load_meta, read_meta
from engine.code import code_hash
from engine.errors import last_iter, read_json
from engine.keys import gpt_config, group_settings
from lab.sweep_plan import plan, planned_rows, script_path, sources_of, words
from lab.sweep_table import (
    find_row,
    labels_of,
    make_tables,
    read_about,
    read_contrasts,
    read_csv,
    row_of_run,
    runs_csv,
    runs_of,
    write_report,
    write_text,
)

# ----------------------------------------------------------------------------- keys
out_dir = 'out-sweep'               # the folder of all runs, and of runs.csv, table.txt, .md, .csv and sweep.png
csv = ''                            # the file with a row for each run that has ended; empty: runs.csv in out_dir
script = 'train.py'                 # what every run starts: train.py, or a module such as vision.train
arguments = ''                      # what every run gets first: config files and --key=value
grids = []                          # for a config file: dicts from an axis to a list of its values, or to {label: arguments}
seeds = 3                           # runs of each row, with seed and data_seed 1, 2, …; seed 1 chooses the learning rate
extend = 2                          # add at most so many rates at each side of a row's grid, while its best rate is at the edge
jobs = 0                            # runs at once, which share the cores; 0: one per GPU, or per core without GPUs
select = 'all'                      # all | best: the table shows every learning rate, or each row's best and its rate sensitivity
against = ''                        # a row, as axis=value,…: how far the others differ from it, and when they reach its loss
contrast = ''                       # 'ROW - ROW - ROW + ROW', rows as in against: a difference of differences; more after a ;
diverged_loss = 0.0                 # a run that ends above this loss counts as diverged too; 0: only if train.py stopped it
diverged_rise = 0.0                 # so does one whose training loss (mean of 5 logged) rises so far above its lowest; 0: none
report = ''                         # the runs.csv of a sweep: make the table and run nothing
# -----------------------------------------------------------------------------

EVERY = 30.0                        # seconds between two lines about the current runs, at least


def split_arguments(arguments):
    """The command line → what is for this script, what is for train.py."""
    own = defaults_of(__file__)
    ours, theirs = [], []
    for arg in arguments:
        if arg.startswith('-'):
            mine = is_help(arg) or arg[2:].partition('=')[0] in own
        else:
            text = open(arg, encoding='utf-8', errors='replace').read() if os.path.isfile(arg) else ''
            mine = re.search(r'^grids *=', text, re.MULTILINE)
        (ours if mine else theirs).append(arg)
    return ours, theirs


def key_of(labels, seed):
    """What tells a run from the others of its sweep"""
    return frozenset({**labels, 'seed': seed}.items())


def check_folder(run, folder):
    """ValueError if the folder holds a run with another config."""
    held, config = read_json(os.path.join(folder, 'config.json'), f'remove {folder}') or {}, run['config']
    of_model = asdict(gpt_config(config, sources_of(script)[1]))        # which knows the vocab_size of the data
    config = {**config, **{key: value for key, value in of_model.items() if key in config}}
    of_pretrained = set() if config['init_from'] == 'scratch' else {*of_model}
    for key in held.keys() - {'out_dir', 'debug', 'overwrite'} - of_pretrained:
        if held[key] != config.get(key):
            raise ValueError(f'{folder} holds a run with {key}={held[key]} instead of {config.get(key)}: '
                             f'choose another --out_dir, or remove it')


def check_data(config):
    """The fingerprint of a run's data. Raises the error with which train.py would refuse it. Pretrained weights decide the sizes
    themselves."""
    group_settings(config)
    if config['init_from'] == 'scratch':
        model_config = gpt_config(config, sources_of(script)[1])
        if script == 'train.py':
            for split in read_meta(config['dataset'])['tokens']:
                Tokens(config['dataset'], split, model_config.block_size, model_config.vocab_size)
        return load_meta(config['dataset'])['fingerprint']


def check_rows(rows, runs, code, data):
    """ValueError if the rows of a runs.csv are of another grid or data than these runs, {key: run}. Keys are compared in rows of
    this code only. `data`: {data set: its fingerprint} of those that are still to be read."""
    fingerprints = {name: [fingerprint] for name, fingerprint in data.items()}
    for row, ended in zip(rows, runs_of(rows, path=csv)):
        run = runs.get(key_of(ended['labels'], ended['seed']))
        name = ', '.join(f'{key}={label}' for key, label in {**ended['labels'], 'seed': ended['seed']}.items())
        if run is None or row['code'] == code and row['keys'] != run['keys']:
            why = 'which is not in this grid' if run is None else 'which had other keys'
            raise ValueError(f'{csv} has the run {name}, {why}: choose another --out_dir (or --csv), or move the file away')
        fingerprints.setdefault(run['config']['dataset'], []).append(row['data'])
    for name, prints in fingerprints.items():
        if len(set(prints)) > 1:
            raise ValueError(f'{csv} is of other data of the name {name} ({prints[-1]}) than data/{name} ({prints[0]}): '
                             f'prepare the same again, choose another --out_dir (or --csv), or move the file away')


# ----------------------------------------------------------------------------- running

def start(run, folder, code, data, slot, cores, gpus):
    """Starts the script as a process. A run that was stopped continues from its checkpoint, if code and data are the same."""
    os.makedirs(folder, exist_ok=True)
    arguments = [*run['arguments'], '--overwrite=True']         # replaces a run that was killed before it saved
    if os.path.exists(os.path.join(folder, 'ckpt.pt')):
        about = read_about(folder)
        if (about.get('code'), about.get('data')) == (code, data or about.get('data')):
            arguments = [os.path.join(folder, 'config.json'), '--init_from=resume']
        else:
            say(f'{run["name"]} starts again: its code or data has changed since it was interrupted')
    env = {**os.environ, 'OMP_NUM_THREADS': str(cores), 'SWEEP_PID': str(os.getpid())}      # with which the run ends
    if gpus:
        env['CUDA_VISIBLE_DEVICES'] = gpus[slot]
    command = [script_path(script)] if script.endswith('.py') else ['-m', script]
    with open(os.path.join(folder, 'output.txt'), 'w') as output:
        return subprocess.Popen([sys.executable, *command, *arguments, f'--out_dir={folder}'], env=env, stdout=output,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def last_line(folder):
    """The last line that a run has printed"""
    with open(os.path.join(folder, 'output.txt'), encoding='utf-8', errors='replace') as f:
        return ([''] + [line.strip() for line in f if line.strip()])[-1]


def folder_of(run):
    return os.path.join(out_dir, run['name'])


def where_is(run):
    at = max(0, last_iter(os.path.join(folder_of(run), 'log.jsonl')))
    return f'{run["name"]} at iteration {at} of {run["config"]["max_iters"]}'


def interrupt(number, frame):
    raise KeyboardInterrupt


def stop_all(processes):
    """Lets each finish its step and save, for a minute or until the next Ctrl-C."""
    for process in processes:
        process.terminate()
    try:
        deadline = time.monotonic() + 60
        for process in processes:
            process.wait(max(0, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_all(rows, table, code, data):
    """Trains what the planned rows want, several runs at once, and adds a row to `table`, the rows of runs.csv, when one ends. A
    run that failed is tried again by the next call. `data`: {data set: its fingerprint}."""
    def judged_runs():
        return {name_at[key_of(run['labels'], run['seed'])]: run for run in runs_of(table, diverged_loss, diverged_rise)}

    def to_do():
        ended = judged_runs()
        return [run for row in rows for run in row.next(ended)]

    name_at = {key_of(labels_of(run['labels']), run['labels']['seed']): run['name']
               for row in rows for run in row.runs()}
    order, waiting = list(name_at), to_do()
    for row in table if waiting else []:
        if row['code'] != code:
            raise ValueError(f'{csv} is of other code ({row["code"]}, commit {row["commit"][:12]}) than the files here ({code}): '
                             f'go on in a checkout of that commit, choose another --out_dir (or --csv), or move the file away')
    gpus = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(str(i) for i in range(torch.cuda.device_count()))
    gpus = gpus.split(',') if torch.cuda.is_available() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    at_once = min(jobs or len(gpus) or cores, max(1, len(waiting)))
    gpus = [gpus[slot % len(gpus)] for slot in range(at_once)] if gpus else []
    more = any(len(row.grid) > 1 for row in rows)
    say(f'{len(table)} runs of {csv} are done, {len(waiting)} to do, {at_once} at once' + '; more may follow' * more)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    running, slots, took, said = {}, list(range(at_once)), [], time.monotonic()
    try:
        while waiting or running:
            while waiting and slots:
                run, slot = waiting.pop(0), slots.pop(0)
                fingerprint = data.get(run['config']['dataset'])
                process = start(run, folder_of(run), code, fingerprint, slot, max(1, cores // at_once), gpus)
                running[process] = run, slot, time.monotonic()
            time.sleep(0.1)
            if time.monotonic() - said >= EVERY:
                said = time.monotonic()
                say('running:', '; '.join(where_is(run) for run, *_ in running.values()))
            for process in [process for process in running if process.poll() is not None]:
                run, slot, began = running.pop(process)
                slots.append(slot)
                took.append(time.monotonic() - began)
                status = {0: 'done', 3: 'diverged'}.get(process.returncode, 'failed')
                row = row_of_run(run, folder_of(run), status)
                if status != 'failed':
                    fingerprint = data.get(run['config']['dataset']) or row['data']
                    for what, of_run, of_sweep in ('code', row['code'], code), ('data', row['data'], fingerprint):
                        if of_run != of_sweep:
                            raise ValueError(f'{run["name"]} has other {what} ({of_run}) than the sweep began with ({of_sweep}): '
                                             f'undo the change and go on, or choose another --out_dir')
                table.append(row)
                table.sort(key=lambda row: order.index(key_of(labels_of(row), row['seed'])))        # of the plan, not of the ends
                write_text(csv, runs_csv(table))
                how = f'val loss {row["val_loss"]}' if status == 'done' else last_line(folder_of(run)) or status
                names = {run['name'] for run, *_ in running.values()}
                waiting = [run for run in to_do() if run['name'] not in names]
                total = len(took) + len(running) + len(waiting)
                left = statistics.mean(took) * (total - len(took)) / at_once / 60
                say(f'[{len(took)}/{total}{"+" * more}] {run["name"]}: {how}; {took[-1]:.0f} s, {left:.0f} min left')
    except KeyboardInterrupt:
        say(f'stopped with {len(took)} of {len(took) + len(running) + len(waiting)} runs done; the same command goes on',
            to=sys.stderr)
        sys.exit(130)
    finally:
        stop_all(running)


def report_on(rows, folder):
    """Prints the tables of rows of runs.csv, and writes them into the folder, if there is one."""
    runs = runs_of(rows, diverged_loss, diverged_rise, path=csv)
    caption, tables = make_tables(runs, select, against, contrast)
    write_report(runs, caption, tables, folder)


def main():
    global csv
    if not sys.argv[1:]:
        sys.exit(__doc__.strip() + '\n\n--help lists the keys')
    if '--report' in sys.argv[1:-1]:
        at = sys.argv.index('--report')
        sys.argv[at:at + 2] = [f'--report={sys.argv[at + 1]}']
    sys.argv[1:], theirs = split_arguments(sys.argv[1:])
    at_least(configure(globals()), seeds=1, jobs=0, diverged_loss=0, diverged_rise=0, extend=0)
    if select not in ('all', 'best'):
        raise ValueError(f'select={select!r}: choose all or best')
    if report:
        refuse(('arguments', 'seeds', 'jobs', 'extend', 'csv'), 'report only makes the table again')
        if theirs:
            raise ValueError(f'{theirs[0]}: report only makes the table again, leave it out')
        csv = report if report.endswith('.csv') else os.path.join(report, 'runs.csv')
        rows = read_csv(csv)
        if not rows:
            raise ValueError(f'there is no {csv}: report={report!r} wants the runs.csv of a sweep, or its folder')
        report_on(rows, out_dir if 'out_dir' in flags() else '' if report.endswith('.csv') else report)
        return
    csv = csv or os.path.join(out_dir, 'runs.csv')
    split = [arg.removeprefix('--').partition('=')[::2] for arg in theirs if arg.startswith('--')]
    axes = {key: text.split(',') for key, text in split}
    if 'seeds' in flags():
        axes['seeds'] = seeds                           # before those of the grids in a file
    files = [arg for arg in theirs if not arg.startswith('--')]
    rows = planned_rows(plan(grids or [{}], [*words('arguments', arguments), *files], axes, seeds, script), extend)
    if against:
        find_row(rows, against)
    read_contrasts(contrast, rows)                      # both raise now for a row that is not in the table
    runs = {key_of(labels_of(run['labels']), run['labels']['seed']): run
            for row in rows for run in row.runs()}
    table = [row for row in read_csv(csv) if row['status'] != 'failed']         # which are tried again
    ended = {key_of(run['labels'], run['seed']) for run in runs_of(table, path=csv)}
    in_grid = {run['name'] for row in rows for rate in row.grid for run in row.rates[rate]}
    data = {}
    for key, run in runs.items():
        if key not in ended:
            check_folder(run, folder_of(run))
        if key not in ended and run['name'] in in_grid:
            name = run['config']['dataset']
            data[name] = check_data(run['config']) or data.get(name)
    code = code_hash(script_path(script))
    check_rows(table, runs, code, {name: fingerprint for name, fingerprint in data.items() if fingerprint})
    for folder in out_dir, os.path.dirname(csv) or '.':
        os.makedirs(folder, exist_ok=True)
    locked = lock_folder(out_dir, 'sweeping'), lock_file(f'{csv}.lock', csv, 'adding runs')     # noqa: F841, held until the end
    if [row for row in read_csv(csv) if row['status'] != 'failed'] != table:
        raise ValueError(f'{csv} has got rows meanwhile: call this again')
    run_all(rows, table, code, data)
    report_on(table, out_dir)
    if all(row['status'] == 'failed' for row in table):
        first = next(iter(runs.values()))
        raise ValueError(f'all {len(table)} runs failed, the first with: {last_line(folder_of(first))}')


if __name__ == '__main__':
    main()
