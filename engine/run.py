"""
The folder of a run. One process at a time trains there.

    config.json     all keys; it is itself a config
    run.json        versions, machine, git commit, command; `starts` has a row for the first start and for each resumption
    code.patch      the code's differences from that commit, at the latest start
    log.jsonl       a row per logged iteration and per evaluation
    measure.jsonl   a row per measurement of --measure_interval
    ckpt.pt         the latest checkpoint
    best.pt         the checkpoint of the lowest validation loss
    ckpt-….pt       the checkpoint of this iteration, with --keep_every
"""
from engine.process import say

import functools
import json
import math
import os
import platform
import re

import numpy as np
import torch

from data.lock import lock_folder
from engine.checkpoint import write_whole
from engine.code import code_hashes, script
from engine.errors import last_row, parse_rows, read_json
from engine.log import environment, losses_text, open_rows

FILES = ('config.json', 'run.json', 'code.patch', 'log.jsonl', 'measure.jsonl', 'measure.json', 'ckpt.pt', 'best.pt')
RANK_KEYS = ('device', 'out_dir', 'debug')              # keys that may differ between ranks
RESETTABLE_KEYS = ('init_from', 'overwrite', 'eval_only', 'max_minutes', 'out_dir', 'debug')      # every start may change them
ENVIRONMENT = dict(dtype='precision', torch='PyTorch', machine='machine')           # names for Run.changes


def run_files(folder):
    """Return the names of a run's files in a folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in names if name in FILES or re.fullmatch(r'ckpt-\d+\.pt', name)]


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
        self.seen, files = self.last_save(), run_files(self.folder)
        if self.init_from == 'auto':                    # a run that was killed before it saved starts again
            self.init_from = 'resume' if {'ckpt.pt', 'best.pt'} & {*files} else 'scratch'
        elif files and not (self.init_from == 'resume' or config['overwrite'] or config['eval_only']):
            raise ValueError(f'out_dir={self.folder} holds a run: choose another folder, continue the run by '
                             f'--init_from=resume, or replace it by --overwrite=True')

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
        """Return the rows of `starts` in a resumed run's run.json."""
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
            if last.get(key, value) != value:
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
        self.locked = lock_folder(self.folder, 'training')
        if self.last_save() != self.seen:
            raise ValueError(f'another process has just trained in {self.folder}: type the command again')

    def check_lock(self):
        """Raise OSError if somebody has moved or removed the folder that this run has locked."""
        path = os.path.join(self.folder, '.lock')
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(self.locked.fileno())):
            raise OSError(f'{self.folder} has been moved or removed while this run trained there: it ends without saving there')

    # ------------------------------------------------------------------------- its files

    def remove_files(self):
        """Remove the files of a run that this one replaces, ckpt.pt first: without it, the rest is no run."""
        for name in sorted(run_files(self.folder), key=lambda name: name != 'ckpt.pt'):
            os.remove(os.path.join(self.folder, name))

    def continue_rows(self, name):
        """Open log.jsonl or measure.jsonl for appending, without the rows of iterations that will be repeated. Keep lines that no
        run has written."""
        lines = [line for line, row in parse_rows(self.path[name]) if row is None or row['iter'] < self.start]
        write_whole(self.path[name], lambda f: f.writelines(lines))
        return open_rows(self.path[name])

    def write_json(self, name, value):
        write_whole(self.path[name], lambda f: f.write(json.dumps(value, indent=1).encode()))
