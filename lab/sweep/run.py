"""Train the runs of a sweep, several at once, and add a row to runs.csv when a run ends."""
from engine.process import say

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pandas as pd
import torch

from data.tokens import Tokens, load_meta, read_meta
from engine.device import pick_device, pick_dtype
from engine.files import last_row, read_json, read_rows
from engine.keys import gpt_config
from engine.run import code_hash
from lab.sweep.plan import sources_of
from lab.sweep.table import CELLS, ORIGIN, canonical, key_of, labels_of, name_of, read_csv, runs_of, write_csv

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


def sort_key(label):
    """Sort the numbers of a column by their values, and before them its texts, in one order."""
    try:
        return '1', float(label)
    except ValueError:
        return label, 0.0


class Sweep:
    """Train planned rows into the csv. `keys` are those of lab.sweep."""

    def __init__(self, rows, keys):
        self.rows, self.keys, self.csv, self.out_dir = rows, keys, keys['csv'], keys['out_dir']
        self.script = keys['script']
        self.table = read_csv(self.csv)
        self.again = {key_of(labels_of(row)) for row in self.table[self.table.status == 'failed'].to_dict('records')}

    def folder(self, run):
        return os.path.join(self.out_dir, run['name'])

    def ended(self):
        """Return {key: run} for runs that are not to be tried again."""
        runs = runs_of(self.table, self.csv, *(self.keys[key] for key in ('diverged_loss', 'diverged_rise', 'codes')))
        return {key: run for run in runs.to_dict('records') if (key := key_of(labels_of(run))) not in self.again}

    # ------------------------------------------------------------------------- checks

    def check(self):
        """Raise ValueError if the next runs cannot be in one table with the rows that there are, or would be slow."""
        ended = self.ended()
        to_do = [run for row in self.rows for run in row.next(ended)]
        for run in to_do:
            self.check_folder(run)
            self.check_speed(run['config'])
            if run['config']['init_from'] == 'scratch' and self.script == 'train.py':
                of_model = gpt_config(run['config'])
                for split in read_meta(run['config']['dataset'])['tokens']:
                    Tokens(run['config']['dataset'], split, of_model.block_size, of_model.vocab_size)
        if not to_do:
            return
        here = self.origin(to_do[0]['config'])
        for row in self.rows:
            for seeds in row.there(ended).values():
                for seed, run in seeds.items():
                    self.check_row(row, run, here)

    def origin(self, config):
        """Return {name in ORIGIN: its value} of a run that would begin now."""
        data = load_meta(config['dataset'])['fingerprint'] if config['init_from'] == 'scratch' else ''
        precision = '' if torch.cuda.is_available() else str(pick_dtype(config['dtype'], pick_device(config['device'])))
        return dict(code=code_hash(sources_of(self.script)[0]), torch=torch.__version__, data=data,
                    precision=precision.removeprefix('torch.'))

    def check_row(self, row, run, here):
        """Raise ValueError if a planned row's run in the csv has other keys, or another origin, than it would have now."""
        labels = labels_of(run)
        planned = row.run_at(tuple(canonical(labels[key]) for key in row.ladder), int(run['seed']))
        found = self.origin(planned['config'])
        named = self.keys['codes'].split(',')
        codes = {here['code'], *(named if here['code'] in named else ())}
        for what in ORIGIN:
            if found[what] and (run[what] not in codes if what == 'code' else run[what] != found[what]):
                commit = f', commit {run["commit"][:12]}' * (what == 'code')
                raise ValueError(f'{self.csv}: {name_of(labels)} has other {what} ({run[what]}{commit}) than the runs here '
                                 f'({found[what]}): go on with the former, or {ELSEWHERE}')
        if run['code'] == here['code'] and run['keys'] != planned['keys']:
            raise ValueError(f'{self.csv} has the run {name_of(labels)}, which had other keys: {ELSEWHERE}')

    def check_speed(self, config):
        """Raise ValueError for bf16 on a CPU that only emulates it, unless slow=True."""
        if torch.cuda.is_available() or self.keys['slow'] or config['dtype'] != 'bfloat16':     # leave GPUs to the runs
            return
        device = pick_device(config['device'])
        if device.type == 'cpu' and pick_dtype('auto', device) is torch.float32:
            raise ValueError('dtype=bfloat16: this CPU has no bf16 instructions, so that a step takes about seven times as long '
                             'as in fp32: choose another machine or --dtype, or give --slow=True')

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
            found, here = origin_of(read_about(folder)), self.origin(run['config'])
            changed = [what for what in ORIGIN if here[what] and found[what] != here[what]]
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
        csv in the meantime. Raise ValueError if its code or data changed while the sweep went on."""
        row, rows = row_of_run(run, self.folder(run), status), read_csv(self.csv).to_dict('records')
        table = pd.DataFrame([*(old for old in rows if key_of(labels_of(old)) != run['key']), row]).fillna('')
        if status != 'failed':
            runs_of(table, self.csv, codes=self.keys['codes'])
        axes = [name for name in table if name not in (*CELLS, 'seed')]
        order = {key_of(planned.labels): i for i, planned in enumerate(self.rows)}
        place = [next((i for labels, i in order.items() if labels <= key_of(labels_of(one))), len(order))
                 for one in table.to_dict('records')]
        table = table.assign(_place=place, _seed=pd.to_numeric(table.seed)).sort_values(
            ['_place', *axes, '_seed'], key=lambda x: x if x.name[0] == '_' else x.map(sort_key), kind='stable')
        self.table = table.drop(columns=['_place', '_seed']).reset_index(drop=True)
        self.again.discard(run['key'])
        write_csv(self.csv, self.table)
        return row

    def where_is(self, run):
        at = max(0, last_row(os.path.join(self.folder(run), 'log.jsonl'))['iter'])
        return f'{run["name"]} at iteration {at} of {run["config"]["max_iters"]}'

    def left(self, ended):
        return sum(row.left(ended) for row in self.rows)

    def train(self):
        """Train the runs that the planned rows ask for, several at once. The next call retries failed runs."""
        def to_do():
            return [run for row in self.rows for run in row.next(ended) if run['name'] not in names]

        ended, names = self.ended(), set()
        gpus = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(str(i) for i in range(torch.cuda.device_count()))
        gpus = gpus.split(',') if torch.cuda.is_available() else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        at_once = min(self.keys['jobs'] or len(gpus) or cores, max(1, len(to_do())))
        gpus = [gpus[slot % len(gpus)] for slot in range(at_once)] if gpus else [''] * at_once
        say(f'{len(ended)} runs of {self.csv} are done, {self.left(ended)} to do, {at_once} at once')

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, interrupt)
        running, said = {}, time.monotonic()
        try:
            while (waiting := to_do()) or running:
                for run in waiting[:len(gpus)]:
                    gpu = gpus.pop(0)
                    running[self.start(run, self.keys['threads'] or max(1, cores // at_once), gpu)] = run, gpu, time.monotonic()
                    names.add(run['name'])
                time.sleep(0.1)
                if time.monotonic() - said >= STATUS_INTERVAL:
                    said = time.monotonic()
                    say('running:', '; '.join(self.where_is(run) for run, *_ in running.values()))
                for process in [process for process in running if process.poll() is not None]:
                    run, gpu, began = running.pop(process)
                    gpus.append(gpu)
                    status = {0: 'done', 3: 'diverged'}.get(process.returncode, 'failed')
                    row = self.add(run, status)
                    ended = self.ended()
                    how = f'val loss {row["val_loss"]}' if status == 'done' else last_line(self.folder(run)) or status
                    say(f'{run["name"]}: {how}; {time.monotonic() - began:.0f} s; {self.left(ended)} runs left')
        except KeyboardInterrupt:
            say(f'stopped with {self.left(ended)} runs left; the same command goes on', to=sys.stderr)
            sys.exit(130)
        finally:
            stop_all(running)
