"""
The folder of a run. One process at a time trains there.

    config.json     all keys; it is itself a config
    run.json        versions, machine, git commit, command; `starts` has a row for the first start and for each resumption
    code.patch      the code's differences from that commit; code-2.patch if they have changed by the second start
    log.jsonl       a row per logged iteration and per evaluation
    measure.jsonl   a row per measurement of --measure_interval
    ckpt.pt         the latest checkpoint
    best.pt         the checkpoint of the lowest validation loss
    ckpt-….pt       the checkpoint of this iteration, with --keep_every
    shards-…        the tensors of these, with --save_shards
    old-run/        these files of the run that this one replaces, until this one has saved a checkpoint
"""
from engine.process import say

import functools
import json
import math
import os
import platform
import re
import shutil
import time

import numpy as np
import torch

from data.lock import lock_folder
from engine.checkpoint import link_or_copy, write_whole
from engine.code import code_hashes, script
from engine.errors import last_row, parse_rows, read_json
from engine.log import environment, losses_text, open_rows

FILES = ('config.json', 'run.json', 'code.patch', 'log.jsonl', 'measure.jsonl', 'measure.json', 'ckpt.pt', 'best.pt')
LOCK_PATIENCE = 5.0         # seconds to wait for a lock: child processes of a killed run may outlive it for so long
RANK_KEYS = ('device', 'out_dir', 'debug')              # keys that may differ between ranks
RESETTABLE_KEYS = ('init_from', 'overwrite', 'eval_only', 'max_minutes', 'out_dir', 'debug')      # every start may change them
ENVIRONMENT = dict(dtype='precision', torch='PyTorch', machine='machine')           # names for Run.changes


def run_files(folder):
    """Return the names of a run's files and shard folders in a folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in names if name in FILES or re.fullmatch(r'code-\d+\.patch|ckpt-\d+\.pt|shards-.*', name)]


class Run:
    """A run's folder, and how the run starts there.

    `path`: {file's name: its path}. `init_from`: 'scratch', 'resume', or the weights to start from; 'auto' is resolved here.
    train.py sets `data`, its data's fingerprint. For a resumption, find_checkpoint sets `start`, the first iteration;
    `ckpt_hash`; `ckpt_config`, the keys that the checkpoint was saved with; and `ckpt_start`, the number of the start that saved
    the checkpoint. Raise ValueError if the folder holds another run. Write nothing before `lock`.
    """

    def __init__(self, config):
        self.folder, self.init_from, self.start, self.data = config['out_dir'], config['init_from'], 0, ''
        self.ckpt_config, self.ckpt_hash, self.ckpt_start = {}, '', 0
        self.path = {name: os.path.join(self.folder, name) for name in FILES}
        self.old = os.path.join(self.folder, 'old-run')
        self.seen, files, is_auto = self.last_save(), run_files(self.folder), self.init_from == 'auto'
        if is_auto:                                     # a run that was killed before it saved starts again
            self.init_from = 'resume' if 'ckpt.pt' in files else 'scratch'
        if self.init_from == 'resume' or not files or config['overwrite'] or config['eval_only']:
            return
        if not is_auto:
            raise ValueError(f'out_dir={self.folder} holds a run: choose another folder, continue the run by '
                             f'--init_from=resume, or replace it by --overwrite=True')
        about = read_json(self.path['run.json'], 'remove it') or {}
        if about.get('saved', 'best.pt' in files):      # older versions did not note it
            raise ValueError(f'out_dir={self.folder} holds a run that has lost its ckpt.pt: put it back, or a copy of best.pt in '
                             f'its place, or choose another folder, or start again by --overwrite=True')

    # ------------------------------------------------------------------------- what a start has, and what a resumption changes

    @functools.cached_property
    def code(self):
        return code_hashes(script())

    def given(self, config):
        """Return {name: value} for everything that must be equal on all ranks."""
        keys = {key: value for key, value in config.items() if key not in RANK_KEYS}
        code = {f'code of {file}': digest for file, digest in self.code.items()}
        return {**keys, 'iteration of the checkpoint in out_dir': self.start, 'hash of this checkpoint': self.ckpt_hash,
                'fingerprint of the data': self.data, **code, 'Python': platform.python_version(), 'PyTorch': torch.__version__,
                'NumPy': np.__version__}

    def starts(self):
        """Return the rows of `starts` in a resumed run's run.json; older versions have none."""
        about = read_json(self.path['run.json'], 'remove it') if self.init_from == 'resume' else None
        return (about or {}).get('starts', [])

    def changes(self, config, machine):
        """Return lines such as 'dropout 0.0 → 0.1' for everything that has changed since the checkpoint was saved."""
        if not self.ckpt_config:
            return []
        starts = self.starts()                          # a start after the checkpoint's was killed before it saved
        saved, last = self.ckpt_config, (starts[:self.ckpt_start] or starts or [{}])[-1]
        keys = sorted(key for key in {**saved, **config}.keys() - {*RESETTABLE_KEYS} if saved.get(key) != config.get(key))
        lines = [f'{key} {saved.get(key, "(not there)")} → {config.get(key, "(unknown here)")}' for key in keys]
        for key, value in environment(machine).items():
            if last.get(key, value) != value:           # older versions did not note it
                lines.append(f'{ENVIRONMENT[key]} {last[key]} → {value}')
        code = last.get('code') or self.code
        files = sorted(file for file in {**code, **self.code} if code.get(file) != self.code.get(file))
        return lines + ([f'code of {" ".join(files)}'] if files else [])

    def leave_if_complete(self, checkpoint, config, machine):
        """End the process if a resumed run has nothing left to do."""
        row = last_row(self.path['log.jsonl'])
        # a kill may have come after the last evaluation and before its checkpoint, the best so far, was saved
        complete = (checkpoint and not config['eval_only'] and self.start == row['iter'] == config['max_iters']
                    and checkpoint['best_val_loss'] <= row.get('val_loss', -math.inf))
        if all(machine.gather(bool(complete))):         # on all ranks, or they go on together
            if machine.master:
                say(f'{self.folder} is complete: {config["max_iters"]} iterations, {losses_text(row)}; --max_iters=… trains on')
            machine.leave(0)

    # ------------------------------------------------------------------------- the lock

    def last_save(self):
        """Return the time when ckpt.pt was written, 0 if there is none."""
        return os.stat(self.path['ckpt.pt']).st_mtime_ns if os.path.exists(self.path['ckpt.pt']) else 0

    def lock(self):
        """Make the folder, and lock it until this process ends. Raise ValueError if another process trains there, or has saved
        there since __init__, for example as it was stopped."""
        os.makedirs(self.folder, exist_ok=True)
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                self.locked = lock_folder(self.folder, 'training')
                break
            except ValueError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        if self.last_save() != self.seen:
            raise ValueError(f'another process has just trained in {self.folder}: type the command again')

    def check_lock(self):
        """Raise OSError if somebody has moved or removed the folder that this run has locked."""
        path = os.path.join(self.folder, '.lock')
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(self.locked.fileno())):
            raise OSError(f'{self.folder} has been moved or removed while this run trained there: it ends without saving there')

    # ------------------------------------------------------------------------- its files

    def set_aside(self):
        """Move the files of a run that this one replaces to `old`. At any moment one of the two places has all of them. If `old`
        holds a run already, keep the run that has saved a checkpoint."""
        names = sorted(run_files(self.folder), key=lambda name: name != 'ckpt.pt')
        if 'ckpt.pt' in names or names and not os.path.exists(self.old):
            self.drop_old()
            shutil.copytree(self.folder, self.old + '.tmp', copy_function=link_or_copy,
                            ignore=lambda at, found: {*found} - {*names} if at == self.folder else ())
            os.replace(self.old + '.tmp', self.old)
        for path in (os.path.join(self.folder, name) for name in names):        # ckpt.pt first: without it, the rest is no run
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def drop_old(self):
        """Remove the files that `set_aside` has kept."""
        for folder in (self.old, self.old + '.tmp'):
            shutil.rmtree(folder, ignore_errors=True)

    def continue_rows(self, name):
        """Open log.jsonl or measure.jsonl for appending, without the rows of iterations that will be repeated. Keep lines that no
        run has written."""
        lines = [line for line, row in parse_rows(self.path[name]) if row is None or row['iter'] < self.start]
        write_whole(self.path[name], lambda f: f.writelines(lines))
        return open_rows(self.path[name])

    def write_json(self, name, value):
        write_whole(self.path[name], lambda f: f.write(json.dumps(value, indent=1).encode()))

    def note_saved(self):
        """Note in run.json that the run has a checkpoint."""
        if not self.about['saved']:
            self.about['saved'] = True
            self.write_json('run.json', self.about)
