"""Train the runs of a sweep, several at once, and add a row to runs.csv when a run ends."""
from engine.process import say

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from statistics import fmean

import numpy as np
import pandas as pd
import torch

from data.tokens import Tokens, load_meta, read_meta
from engine.code import code_hash
from engine.device import pick_device, pick_dtype
from engine.errors import last_row, read_json, read_rows
from engine.keys import gpt_config
from lab.sweep.plan import runs_left, sources_of
from lab.sweep.table import LR, ORIGIN, TUNING_SEED, by_key, labels_of, read_csv, runs_of, write_csv

STATUS_INTERVAL = 30.0          # seconds between two lines about the current runs, at least
RISE_ROWS = 5                   # logged losses per mean, for the largest rise
ELSEWHERE = 'choose another --out_dir (or --csv), or move the file away'


# ----------------------------------------------------------------------------- the row of a run

def read_about(folder):
    return read_json(os.path.join(folder, 'run.json'), 'remove it') or {}


def row_of_run(run, folder, status):
    """Return the runs.csv row, as texts, of a run that has ended in this folder. Raise ValueError if it is done but has no
    loss."""
    about, rows = read_about(folder), read_rows(os.path.join(folder, 'log.jsonl'))
    evaluations = [row for row in rows if math.isfinite(row.get('val_loss', math.nan))]
    if status == 'done' and not evaluations:
        raise ValueError(f'{folder} has lost its log.jsonl: remove the folder, and its run will be trained again')
    last = evaluations[-1] if status == 'done' else {}
    per_iter = about.get('tokens_per_iter', about.get('images_per_iter', ''))
    return dict(
        run['labels'], status=status, iterations=str(rows[-1]['iter'] if rows else 0),
        parameters=str(about.get('parameters', '')), tokens_per_iteration=str(per_iter),
        val_losses=' '.join(f'{row["iter"]}:{row["val_loss"]:.6g}' for row in evaluations),
        val_loss=digits(last.get('val_loss', math.nan)), test_loss=digits(last.get('test_loss', math.nan)),
        largest_rise=digits(largest_rise([row['loss'] for row in rows if 'loss' in row])), keys=run['keys'],
        commit=about.get('commit', '') + '-dirty' * bool(about.get('changed')), machine=about.get('machine', ''),
        attention_kernel=about.get('attention_backend', ''), **origin_of(about),
        seconds=digits(training_seconds(rows, per_iter or 0)))


def origin_of(about):
    """Return {ORIGIN: value} from a run.json: compared runs must agree in these."""
    return {what: about.get('dtype' if what == 'precision' else what, '').removeprefix('torch.') for what in ORIGIN}


def digits(x):
    return f'{x:.6g}' if math.isfinite(x) else ''


def largest_rise(losses):
    """Return how far the training loss, in means of RISE_ROWS logged values, rises at most above its lowest value so far: the
    height of a spike. NaN for fewer than two means."""
    whole = len(losses) // RISE_ROWS
    means = np.reshape(losses[:whole * RISE_ROWS], (whole, RISE_ROWS)).mean(axis=1)
    return (means - np.minimum.accumulate(means)).max() if whole > 1 else math.nan


def training_seconds(rows, per_iter):
    """Return the time of all iterations, by the logged speeds, without evaluations and interruptions."""
    seconds, before = 0.0, -1
    for row in rows:
        per_s = row.get('tokens_per_s', row.get('images_per_s', 0))
        if per_s > 0:
            seconds, before = seconds + (row['iter'] - before) * per_iter / per_s, row['iter']
    return seconds


# ----------------------------------------------------------------------------- processes

def last_line(folder):
    """Return the last line that a run has printed."""
    with open(os.path.join(folder, 'output.txt'), encoding='utf-8', errors='replace') as f:
        return ([''] + [line.strip() for line in f if line.strip()])[-1]


def stop_all(processes):
    """Let each process finish its step and save, for a minute or until the next Ctrl-C."""
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


def interrupt(number, frame):
    raise KeyboardInterrupt


def duration(seconds):
    return f'{seconds:.0f} s' if seconds < 90 else f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} hours'


class Sweep:
    """Train planned rows into the csv. `keys` are those of lab.sweep. `origin`: the code and the version of PyTorch of all
    runs, each data set's fingerprint, and each dtype's precision."""

    def __init__(self, rows, keys):
        self.rows, self.out_dir, self.csv, self.jobs = rows, keys['out_dir'], keys['csv'], keys['jobs']
        self.script, self.rule = keys['script'], (keys['diverged_loss'], keys['diverged_rise'])
        self.threads = keys['threads']
        self.planned = {run['key']: run for row in rows for run in row.runs()}
        self.in_grid = {run['key'] for row in rows for rate in row.grid for run in row.rates[rate]}
        self.table = read_csv(self.csv)
        self.again = {*by_key(self.table[self.table.status == 'failed'])}      # failed runs are tried again
        self.origin = {}

    def folder(self, run):
        return os.path.join(self.out_dir, run['name'])

    def ended(self):
        """Return {key: run} for runs that are not to be tried again."""
        runs = by_key(runs_of(self.table, self.csv, *self.rule))
        return {key: run for key, run in runs.items() if key not in self.again}

    # ------------------------------------------------------------------------- checks

    def check(self):
        """Raise ValueError for runs that train.py would refuse, and for folders and rows of another grid or origin."""
        ended, code = self.ended(), code_hash(sources_of(self.script)[0])
        to_do = [run for key, run in self.planned.items() if key not in ended]
        for key, row in ended.items():
            run = self.planned.get(key)
            if run is None or row['code'] == code and row['keys'] != run['keys']:
                name = ', '.join(f'{axis}={label}' for axis, label in labels_of(row).items())
                why = 'which is not in this grid' if run is None else 'which had other keys'
                raise ValueError(f'{self.csv} has the run {name}, {why}: {ELSEWHERE}')
        for run in to_do:
            self.check_folder(run)
        for config in (run['config'] for run in to_do if run['key'] in self.in_grid and run['config']['init_from'] == 'scratch'):
            model_config = gpt_config(config, sources_of(self.script)[1])
            if self.script == 'train.py':
                for split in read_meta(config['dataset'])['tokens']:
                    Tokens(config['dataset'], split, model_config.block_size, model_config.vocab_size)
            self.origin['data', config['dataset']] = load_meta(config['dataset'])['fingerprint']
        if any(row.next(ended) for row in self.rows):
            self.origin |= {('code', ''): code, ('torch', ''): torch.__version__}
            for config in (run['config'] for run in to_do if not torch.cuda.is_available()):    # leave GPUs to the runs
                precision = pick_dtype(config['dtype'], pick_device(config['device']))
                self.origin['precision', config['dtype']] = str(precision).removeprefix('torch.')
            for key, row in ended.items():
                self.check_origin(self.planned[key], row, f'{self.csv}:', f'go on with the former, {ELSEWHERE}')

    def origins(self, run):
        """Return {name in ORIGIN: its key in `origin`} for a run."""
        return {what: (what, run['config'].get(dict(data='dataset', precision='dtype').get(what), '')) for what in ORIGIN}

    def check_origin(self, run, found, who, remedy):
        """Raise ValueError unless a run, with the origin `found`, agrees with the others in code, data, precision and
        PyTorch."""
        for what, key in self.origins(run).items():
            if found[what] != self.origin.setdefault(key, found[what]):
                commit = f', commit {found["commit"][:12]}' * (what == 'code')
                raise ValueError(f'{who} {run["name"]} has other {what} ({found[what]}{commit}) than the runs here '
                                 f'({self.origin[key]}): {remedy}')

    def check_folder(self, run):
        """Raise ValueError if the folder holds a run with another config."""
        folder, config = self.folder(run), run['config']
        held = read_json(os.path.join(folder, 'config.json'), f'remove {folder}') or {}
        of_model = asdict(gpt_config(config, sources_of(self.script)[1]))       # with the data's vocab_size
        config = {**config, **{key: value for key, value in of_model.items() if key in config}}
        of_pretrained = set() if config['init_from'] == 'scratch' else {*of_model}
        for key in held.keys() - {'out_dir', 'debug', 'overwrite'} - of_pretrained:
            if held[key] != config.get(key):
                raise ValueError(f'{folder} holds a run with {key}={held[key]} instead of {config.get(key)}: '
                                 f'choose another --out_dir, or remove it')

    # ------------------------------------------------------------------------- training

    def start(self, run, threads, gpu):
        """Start the script as a process. A stopped run continues from its checkpoint if its origin is the same."""
        folder, arguments = self.folder(run), [*run['arguments'], '--overwrite=True']   # replace a run killed before it saved
        os.makedirs(folder, exist_ok=True)
        if os.path.exists(os.path.join(folder, 'ckpt.pt')):
            found, here = origin_of(read_about(folder)), self.origins(run)
            changed = [what for what, key in here.items() if found[what] != self.origin.get(key, found[what])]
            if changed:
                say(f'{run["name"]} starts again: its {changed[0]} has changed since it was interrupted')
            else:
                arguments = [os.path.join(folder, 'config.json'), '--init_from=resume']
        env = {**os.environ, 'OMP_NUM_THREADS': str(threads), 'SWEEP_PID': str(os.getpid())}      # the run ends with this process
        if gpu:
            env['CUDA_VISIBLE_DEVICES'] = gpu
        command = [sources_of(self.script)[0]] if self.script.endswith('.py') else ['-m', self.script]
        with open(os.path.join(folder, 'output.txt'), 'w') as output:
            return subprocess.Popen([sys.executable, *command, *arguments, f'--out_dir={folder}'], env=env, stdout=output,
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def add(self, run, status):
        """Add the row of a run that has ended to the csv, in the plan's order, and return it. Others may have added rows to the
        csv in the meantime."""
        row = row_of_run(run, self.folder(run), status)
        if status != 'failed':
            self.check_origin(run, row, 'the run', 'undo the change and go on, or choose another --out_dir')
        order = {key: i for i, key in enumerate(self.planned)}
        rows = by_key(read_csv(self.csv)) | {run['key']: row}
        rows = [rows[key] for key in sorted(rows, key=lambda key: order.get(key, len(order)))]
        self.table = pd.DataFrame(rows).fillna('')
        self.again.discard(run['key'])
        write_csv(self.csv, self.table)
        return row

    def where_is(self, run):
        at = max(0, last_row(os.path.join(self.folder(run), 'log.jsonl'))['iter'])
        return f'{run["name"]} at iteration {at} of {run["config"]["max_iters"]}'

    def say_plan(self, ended, at_once):
        """Print which runs are left, and estimate their time from those that have ended."""
        left, took = runs_left(self.rows, ended), [run['seconds'] for run in ended.values() if run['status'] == 'done']
        time_left = f', about {duration(fmean(took) * left / at_once)}' if took else ', the first tells how long they take'
        say(f'{len(ended)} runs of {self.csv} are done, {left} to do, {at_once} at once' + time_left * (left > 0))
        for row in self.rows:
            rates, seeds = row.left(ended)
            parts = [f'seed {TUNING_SEED} at {LR}={",".join(rates)}' + ', more may follow' * (len(row.rates) > len(row.grid))]
            parts = parts * bool(rates) + [f'seed={",".join(seeds)}' + ' at the best rate' * (len(row.grid) > 1)] * bool(seeds)
            if parts:
                say(f'  {str(row) or "all"}: {"; ".join(parts)}')

    def train(self):
        """Train the runs that the planned rows ask for, several at once. The next call retries failed runs."""
        def to_do():
            return [run for row in self.rows for run in row.next(ended) if run['name'] not in names]

        ended, names = self.ended(), set()
        gpus = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(str(i) for i in range(torch.cuda.device_count()))
        gpus = gpus.split(',') if torch.cuda.is_available() else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        at_once = min(self.jobs or len(gpus) or cores, max(1, len(to_do())))
        gpus = [gpus[slot % len(gpus)] for slot in range(at_once)] if gpus else [''] * at_once
        self.say_plan(ended, at_once)

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, interrupt)
        running, took, said = {}, [], time.monotonic()
        try:
            while (waiting := to_do()) or running:
                for run in waiting[:len(gpus)]:
                    gpu = gpus.pop(0)
                    running[self.start(run, self.threads or max(1, cores // at_once), gpu)] = run, gpu, time.monotonic()
                    names.add(run['name'])
                time.sleep(0.1)
                if time.monotonic() - said >= STATUS_INTERVAL:
                    said = time.monotonic()
                    say('running:', '; '.join(self.where_is(run) for run, *_ in running.values()))
                for process in [process for process in running if process.poll() is not None]:
                    run, gpu, began = running.pop(process)
                    gpus.append(gpu)
                    took.append(time.monotonic() - began)
                    status = {0: 'done', 3: 'diverged'}.get(process.returncode, 'failed')
                    row = self.add(run, status)
                    ended = self.ended()
                    left = runs_left(self.rows, ended)
                    how = f'val loss {row["val_loss"]}' if status == 'done' else last_line(self.folder(run)) or status
                    say(f'[{len(took)}/{len(took) + left}] {run["name"]}: {how}; {took[-1]:.0f} s, '
                        f'{duration(fmean(took) * left / at_once)} left')
        except KeyboardInterrupt:
            say(f'stopped with {len(took)} of {len(took) + runs_left(self.rows, ended)} runs done; the same command goes on',
                to=sys.stderr)
            sys.exit(130)
        finally:
            stop_all(running)
