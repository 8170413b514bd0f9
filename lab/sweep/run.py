"""Train the runs of a sweep, several at once, and add a row to runs.csv when a run ends."""
from engine.process import say

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from data.tokens import read_meta
from engine.files import read_json, read_rows, write_whole
from engine.run import code_hash
from lab.sweep.plan import sources_of
from lab.sweep.table import CELLS, axes_of, canonical, check_origin, key_of, read_csv, runs_of

RISE_ROWS = 5                   # logged losses per mean, for the largest rise
NOT_READ = ('config/sweep/', 'docs/', 'lab/', 'results/', 'tests/')     # folders that decide nothing about a run


def row_of_run(run, folder, status):
    """Return the runs.csv row, as texts, of a run that has ended in this folder."""
    about, rows = read_json(folder / 'run.json', 'remove it') or {}, read_rows(folder / 'log.jsonl')
    evaluations = [row for row in rows if math.isfinite(row.get('val_loss', math.nan))]
    last, per_iter = evaluations[-1] if status == 'done' else {}, about.get('tokens_per_iter', about.get('images_per_iter', 0))
    numbers = dict(seconds=training_seconds(rows, per_iter),
                   largest_rise=largest_rise([row['loss'] for row in rows if 'loss' in row]),
                   **{name: last.get(name, math.nan) for name in ('val_loss', 'test_loss')})
    return dict(
        run['labels'], status=status, iterations=str(rows[-1]['iter'] if rows else 0), keys=run['keys'], attention_kernel='',
        parameters=str(about.get('parameters', '')), tokens_per_iteration=str(per_iter),
        val_losses=' '.join(f'{row["iter"]}:{row["val_loss"]:.6g}' for row in evaluations),
        commit=about.get('commit', '') + '-dirty' * is_dirty(about.get('changed', ())),
        precision=about.get('dtype', '').removeprefix('torch.'),
        **{name: about.get(name, '') for name in ('machine', 'code', 'data', 'torch')},
        **{name: f'{x:.6g}' if math.isfinite(x) else '' for name, x in numbers.items()})


def is_dirty(changed):
    """Return whether the code or a config of a run differs from its commit. `changed`: the lines of `git status`."""
    return any(line.endswith('.py') and not line[3:].startswith(NOT_READ) for line in changed)


def largest_rise(losses):
    """Return how far the training loss, in means of RISE_ROWS logged values, rises at most above its lowest value so far."""
    whole = len(losses) // RISE_ROWS
    means = np.reshape(losses[:whole * RISE_ROWS], (whole, RISE_ROWS)).mean(axis=1)
    return (means - np.minimum.accumulate(means)).max() if whole > 1 else math.nan


def training_seconds(rows, per_iter):
    """Return the time of all iterations, by the logged speeds, without evaluations and interruptions."""
    seconds, before = 0.0, -1
    for row in rows:
        if (per_s := row.get('tokens_per_s', row.get('images_per_s', 0))) > 0:
            seconds, before = seconds + (row['iter'] - before) * per_iter / per_s, row['iter']
    return seconds


def stop_all(processes):
    """Let all processes finish their step and save, for a minute or until the next Ctrl-C."""
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait(60)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        for process in processes:
            process.kill()


class Sweep:
    """Train planned rows into the csv. `keys` are those of lab.sweep."""

    def __init__(self, rows, keys):
        self.rows, self.keys, self.csv, self.script = rows, keys, keys['csv'], keys['script']
        self.code = code_hash(sources_of(self.script)[0])

    def folder(self, run):
        return Path(self.keys['out_dir'], run['name'])

    def ended(self):
        """Return {key: run} of the csv."""
        runs = runs_of(read_csv(self.csv), self.csv, **self.keys)
        return {key_of(run): run for run in runs.to_dict('records')}

    def check(self):
        """Raise ValueError if the next runs cannot be in one table with the rows that there are, or lie in folders of others."""
        ended = self.ended()
        if to_do := [run for row in self.rows for run in row.next(ended)]:
            table = pd.DataFrame([*ended.values(), *map(self.begin, to_do)])
            check_origin(table.fillna(dict.fromkeys(axes_of(table), '')), self.csv, self.keys['codes'])
        for row in self.rows if to_do else ():
            for seed, run in (pair for seeds in row.there(ended).values() for pair in seeds.items()):
                wanted = row.run_at(tuple(canonical(run[key]) for key in row.ladder), seed)
                if run['code'] == self.code and run['keys'] != wanted['keys']:
                    raise ValueError(f'{self.csv} has the run {wanted["name"]}, which had other keys: choose another --out_dir '
                                     'or --csv')

    def begin(self, run):
        """Return a row of the csv with the labels and the ORIGIN of a run that would begin now. None: only the run itself knows.
        Raise ValueError if the folder holds a run with another config, which this one would continue."""
        config, folder = run['config'], self.folder(run)
        held = read_json(folder / 'config.json', f'remove {folder}') or {}
        own = {'out_dir', 'debug', 'overwrite', 'vocab_size'}
        if config['init_from'] != 'scratch':
            own |= {field.name for field in fields(sources_of(self.script)[1])}
        for key in held.keys() - own:
            if held[key] != config.get(key):
                raise ValueError(f'{folder} holds a run with {key}={held[key]} instead of {config.get(key)}: '
                                 'choose another --out_dir, or remove it')
        knows_data = self.script == 'train.py' and config['init_from'] == 'scratch'
        data = read_meta(config['dataset'])['fingerprint'] if knows_data else None
        return {**run['labels'], 'code': self.code, 'torch': torch.__version__, 'data': data, 'precision': None}

    def start(self, run, threads, gpu):
        """Start the script as a process. A stopped run continues from its checkpoint if its code is the same."""
        folder, arguments = self.folder(run), [*run['arguments'], '--overwrite=True']   # replace a run killed before it saved
        folder.mkdir(parents=True, exist_ok=True)
        about = read_json(folder / 'run.json', 'remove it') or {}
        if (folder / 'ckpt.pt').exists() and about.get('code') == self.code:
            arguments = [str(folder / 'config.json'), '--init_from=resume']
        env = {**os.environ, 'OMP_NUM_THREADS': str(threads)} | ({'CUDA_VISIBLE_DEVICES': gpu} if gpu else {})
        command = [sources_of(self.script)[0]] if self.script.endswith('.py') else ['-m', self.script]
        with open(folder / 'output.txt', 'w') as output:
            return subprocess.Popen([sys.executable, *command, *arguments, f'--out_dir={folder}'], env=env, stdout=output,
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def add(self, row):
        """Add a row to the csv, to which others may have added rows. Raise ValueError if code or data changed meanwhile."""
        others = [old for old in read_csv(self.csv).to_dict('records') if key_of(old) != key_of(row)]
        table = pd.DataFrame([*others, row]).fillna('')
        runs_of(table, self.csv, **self.keys)
        text = table[[*axes_of(table), 'seed', *CELLS]].to_csv(index=False, lineterminator='\r\n')
        write_whole(self.csv, lambda f: f.write(text.encode()))

    def train(self):
        """Train the runs that the planned rows ask for, several at once, and return how many failed. These get no row, so that
        the next call tries them again."""
        def to_do():
            return [run for row in self.rows for run in row.next(ended) if run['name'] not in names]

        def left():
            return sum(row.left(ended) for row in self.rows)

        ended, names, running, failed = self.ended(), set(), {}, 0
        gpus = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(map(str, range(torch.cuda.device_count())))
        gpus = gpus.split(',') if torch.cuda.is_available() else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        at_once = min(self.keys['jobs'] or len(gpus) or cores, max(1, len(to_do())))
        threads = self.keys['threads'] or max(1, cores // at_once)
        gpus = [gpus[slot % len(gpus)] for slot in range(at_once)] if gpus else [''] * at_once
        say(f'{len(ended)} runs of {self.csv} are done, {left()} to do, {at_once} at once')
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        try:
            while (waiting := to_do()) or running:
                for run in waiting[:len(gpus)]:
                    gpu = gpus.pop(0)
                    running[self.start(run, threads, gpu)] = run, gpu, time.monotonic()
                    names.add(run['name'])
                time.sleep(0.1)
                for process in [process for process in running if process.poll() is not None]:
                    run, gpu, began = running.pop(process)
                    gpus.append(gpu)
                    status, folder = {0: 'done', 3: 'diverged'}.get(process.returncode, 'failed'), self.folder(run)
                    if status == 'failed':
                        failed += 1
                    else:
                        self.add(row := row_of_run(run, folder, status))
                        ended = self.ended()
                    printed = (folder / 'output.txt').read_text(errors='replace').split('\n')
                    how = f'val loss {row["val_loss"]}' if status == 'done' else [status, *filter(None, printed)][-1]
                    say(f'{run["name"]}: {how}; {time.monotonic() - began:.0f} s; {left()} runs left')
        except KeyboardInterrupt:
            say(f'stopped with {left()} runs left; the same command goes on', to=sys.stderr)
            sys.exit(130)
        finally:
            stop_all(running)
        return failed
