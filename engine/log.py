"""Log a run: lines on the terminal, rows of log.jsonl, Weights & Biases, and the speed."""
from engine.process import say

import json
import math
import os
import platform
import sys
import time
from contextlib import contextmanager

import numpy as np
import torch

from engine.checkpoint import write_whole
from engine.code import code_hash, code_state, command, script, script_as_typed
from engine.device import device_name, vendors_peak
from engine.errors import map_leaves, parse_row, say_once

PROGRESS_INTERVAL = 10.0    # at least so many seconds between two lines of `progress`


# ----------------------------------------------------------------------------- rows of JSON

def open_rows(path):
    """Open a file to append rows. Cut off a partial row at the end, left by a kill."""
    with open(path, 'ab+') as f:
        f.seek(0)
        tail = f.read().rpartition(b'\n')[2]
        if parse_row(tail) is None and tail.startswith(b'{'):
            f.truncate(f.tell() - len(tail))
        elif tail:                                      # an editor has dropped the last newline
            f.write(b'\n')
    return open(path, 'a', encoding='utf-8', buffering=2 ** 20)         # rows wait in its buffer while the disk is full


def write_row(f, value):
    """Write a line of JSON, with null for numbers that are not finite."""
    try:
        f.write(json.dumps(finite(value)) + '\n')
        f.flush()
    except OSError as error:
        say_once(f'{f.name} could not be written ({error.strerror}): its rows wait until there is room')


def finite(value):
    """Copy nested values, replacing numbers that are not finite by None."""
    return map_leaves(value, lambda name, leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


# ----------------------------------------------------------------------------- the log

def losses_text(means):
    """Return 'train loss 1.2345, val loss 1.2345' for an evaluation or its row."""
    return ', '.join(f'{name.replace("_", " ")} {value:.4f}' for name, value in means.items()
                     if name.endswith(('_loss', '_top1', '_top5')))


class Log:
    """Write config.json, run.json, code.patch and log.jsonl, and report on the terminal. Only rank 0 writes files, and only if
    the run trains. `about`: more entries for run.json."""

    def __init__(self, run, config, machine, **about):
        self.run, self.config, self.machine = run, config, machine
        self.writes = machine.master and not config['eval_only']
        self.wandb, failure = None, None
        try:
            self.changes = run.changes(config, machine) if machine.master else []
            if self.writes:
                self.begin(about)
        except (ValueError, OSError) as error:
            failure = error
        machine.end_together(failure)
        if self.changes:
            self.say(f'changed since the checkpoint: {", ".join(self.changes)}')

    def begin(self, about):
        """Lock the run's folder, set aside an older run in it, and write the files for this start."""
        run, config, machine = self.run, self.config, self.machine
        run.lock()
        commit, changed, patch = code_state()
        starts = run.starts()
        starts.append(dict(time=time.strftime('%Y-%m-%d %H:%M:%S %z'), iter=run.start, command=command(), commit=commit,
                           changed=changed, code=run.code, **environment(machine), changes=self.changes))
        run.about = self.about = dict(
            command=command(), ranks=machine.world_size, device=str(machine.device), **environment(machine),
            platform=platform.platform(), python=platform.python_version(), numpy=np.__version__, commit=commit, changed=changed,
            code=code_hash(script()), data=run.data, **about, starts=starts)
        if config['wandb_log']:                         # before touching a file, because this may fail
            self.wandb = start_wandb(run, config, self.about)
        if run.init_from != 'resume':
            run.remove_files()
        self.file = run.continue_rows('log.jsonl')
        run.write_json('config.json', config)
        run.write_json('run.json', self.about)
        if commit:
            write_whole(run.path['code.patch'], lambda f: f.write(patch))
        if run.start:
            self.row(iter=run.start, start=len(starts), changes=self.changes)

    def say(self, *words):
        if self.machine.master:
            say(*words)

    def introduce(self, optimizer, rate, amounts, notes):
        """Print `amounts`, the sizes of an iteration and an epoch; the optimizer's groups, each with its peak learning rate by
        rate(it, ratio); the lines of `notes`; and a warning if the warm-up is longer than the run."""
        if not self.writes:
            return
        if self.run.init_from == 'resume':
            self.say(f'resumes {self.run.path["ckpt.pt"]} at iteration {self.run.start}')
        self.say(f'{self.about["parameters"]:,} parameters on {self.machine.world_size} × {self.about["machine"]}, '
                 f'{str(self.machine.dtype)[6:]}; {amounts}; in {self.run.folder}')
        self.say(f'{"block type":12}{"tensors":>8}{"parameters":>15}{"LR ratio":>10}{"peak LR":>10}{"decay":>9}')
        last = self.config['max_iters']
        for group in optimizer.param_groups:
            peak = group['lr_scale'] * max(rate(it, group['lr_ratio']) for it in range(0, last + 1, max(1, last // 1000)))
            self.say(f'{group["block_type"]:12}{len(group["params"]):8}{sum(p.numel() for p in group["params"]):15,}'
                     f'{group["lr_ratio"]:10g}{peak:10.2e}{group["weight_decay"]:9.4g}')
        for line in notes:
            self.say(line)
        if self.config['warmup_iters'] > last > 0:
            self.say(f'warmup_iters={self.config["warmup_iters"]} is longer than this run of max_iters={last}: the learning rate '
                     f'rises to its end and never reaches {self.config["learning_rate"]:g}')

    def row(self, **row):
        """Write a row to log.jsonl and to Weights & Biases."""
        if self.writes:
            write_row(self.file, row)
            self.to_wandb(lambda wandb: wandb.log(row, step=row['iter']))

    def to_wandb(self, call):
        """Run call(wandb) if the run logs to Weights & Biases. After an error, such as a full disk, go on without wandb."""
        try:
            if self.wandb:
                call(self.wandb)
        except Exception as error:                      # of many types
            self.wandb = None
            say(f'wandb: {type(error).__name__}: {" ".join(str(error).split())[:300]}; the run goes on without', to=sys.stderr)

    def evaluation(self, it, means, health):
        self.say(f'iter {it}: {losses_text(means)}')
        self.row(iter=it, **means, **health)

    def step(self, row, speed):
        """Log an iteration's row, {name: number}, and the speed."""
        if not self.machine.master:
            return
        per_s, mfu, left = speed.since_last_line(row['iter'])
        unit = speed.unit
        self.row(**row, **{f'{unit}_per_s': round(per_s)}, **({'mfu': round(mfu, 4)} if mfu else {}))
        self.say(f'iter {row["iter"]}: loss {row["loss"]:.4f}, lr {row["lr"]:.2e}, {per_s:,.0f} {unit}/s'
                 + (f', MFU {mfu:.1%}' if mfu else '') + f', {left} left')

    def stopped(self, it):
        """Print how to resume a run that a signal has stopped. Wait for all ranks: torchrun ends all when one exits."""
        start_with = 'torchrun …' if self.machine.distributed else 'python'
        self.say(f'stopped after iteration {it}; to go on: {start_with} {script_as_typed()} {self.run.path["config.json"]} '
                 f'--init_from=resume')
        self.machine.wait()

    def close(self, code):
        self.to_wandb(lambda wandb: wandb.finish(exit_code=code))
        if self.writes:
            self.file.close()                           # raises OSError if the disk is still full


def environment(machine):
    """Return what affects a run's numbers besides its keys, code and data."""
    return dict(dtype=str(machine.dtype), torch=torch.__version__, machine=device_name(machine.device))


def start_wandb(run, config, about):
    """Start a run at Weights & Biases, and return the module wandb. Raise ValueError if that fails."""
    try:
        import wandb
        wandb.init(project=config['wandb_project'], dir=run.folder, config={**config, **about},
                   settings=wandb.Settings(init_timeout=20),        # seconds, where there is no network
                   name=config['wandb_run_name'] or os.path.basename(os.path.normpath(run.folder)))
    except Exception as error:                          # of many types
        remedy = 'pip install wandb' if isinstance(error, ImportError) else 'wandb login  or WANDB_MODE=offline'
        raise ValueError(f'wandb_log=True: {type(error).__name__}: {" ".join(str(error).split())[:300]}; '
                         f'try  {remedy}, or leave wandb_log out') from error
    return wandb


def add_scalars(totals, terms, divisor):
    """Add each scalar tensor of {name: scalar}, divided by `divisor`, to that name's total. Raise ValueError for other values."""
    for name, term in terms.items():
        if not torch.is_tensor(term) or term.numel() != 1:
            shape = tuple(term.shape) if torch.is_tensor(term) else type(term).__name__
            raise ValueError(f'aux or logged: {name} is {shape}, wants a tensor of one number')
        totals[name] = totals.get(name, 0.0) + term.detach() / divisor


# ----------------------------------------------------------------------------- time

def working_time():
    """Return the seconds on a clock that stops while torch.compile compiles."""
    dynamo = sys.modules.get('torch._dynamo.utils')
    return time.monotonic() - (dynamo.calculate_time_spent()['total_wall_time'] if dynamo else 0.0)


class Speed:
    """Measure the speed of training, excluding time in `paused` and compilation. MFU is the model's FLOP/s as a share of the
    GPUs' peak."""

    def __init__(self, unit, per_iter, flops, machine, max_iters):
        self.unit, self.per_iter, self.flops, self.max_iters = unit, per_iter, flops, max_iters
        self.peak = machine.world_size * (vendors_peak(machine.device) or 0)
        self.began = self.lap = working_time()
        self.first, self.lap_iters = None, 0

    @contextmanager
    def paused(self):
        t = working_time()
        yield
        self.lap += working_time() - t

    def iteration(self, it):
        self.lap_iters += 1
        if self.first is None:                          # the first iteration is not typical
            self.first, self.began = it, working_time()

    def since_last_line(self, it):
        """Return tokens or images per second, MFU (0 if unknown), and the time left as text."""
        now = working_time()
        per_s = self.lap_iters * self.per_iter / (now - self.lap)
        pace = (now - self.began) / (it - self.first) if it > self.first else now - self.lap
        self.lap, self.lap_iters = now, 0
        return per_s, per_s * self.flops / self.peak if self.peak else 0, clock(pace * (self.max_iters - it - 1))


def progress(items, what, total=None, shown=True):
    """Yield the items, and print to stderr how many of `total`, by default len(items), are done: a line now and then, which
    suits a log file too."""
    total = len(items) if total is None else total
    began = said = working_time()
    for done, item in enumerate(items):
        now = working_time()
        if shown and done and now - said >= PROGRESS_INTERVAL:
            said = now
            say(f'{what}: {done} of {total}, {clock((now - began) / done * (total - done))} left', to=sys.stderr)
        yield item


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f'{minutes // 60}h{minutes % 60:02d}m' if minutes >= 60 else f'{minutes}m{seconds:02d}s'
