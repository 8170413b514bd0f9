"""
What a run leaves behind: the files of its folder, its lines on the terminal, and Weights & Biases.

    config.json     all keys; it is itself a config
    run.json        versions, machine, git commit, command; `starts` has a row for the first start and for each resumption
    code.patch      the code's differences from that commit; code-2.patch if the second start had others
    log.jsonl       a row per logged iteration and per evaluation
    measure.jsonl   a row per measurement of --measure_interval
    ckpt.pt         the latest checkpoint
    best.pt         the checkpoint of the lowest validation loss
    shards-…        the tensors of these two, with --save_shards
    old-run/        these files of the run that this one replaces, until this one has saved a checkpoint
"""
from engine.process import say

import ast
import functools
import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
import torch

from data.lock import lock_folder
from engine.checkpoint import link_or_copy, write_whole
from engine.device import vendors_peak
from engine.errors import last_row, read_json, read_rows

FILES = ('config.json', 'run.json', 'code.patch', 'log.jsonl', 'measure.jsonl', 'measure.json', 'ckpt.pt', 'best.pt')
LOCK_PATIENCE = 5.0         # seconds to wait for a lock: processes that a killed run has started may outlive it for so long
EVERY = 10.0                # seconds between two lines of `progress`, at least
MOST_NEW_FILES, MOST_NEW_BYTES, LEFT_OUT = 100, 2 ** 18, 'code.patch leaves out'       # see code_state
OF_EACH_RANK = ('device', 'out_dir', 'debug')          # keys that may differ between ranks
OF_A_START = ('init_from', 'overwrite', 'eval_only', 'out_dir', 'debug')        # keys that every start of a run may set anew
REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parts(folder):
    """The names of a run's files, and of its folders of shards, that exist."""
    return [name for name in os.listdir(folder)
            if name in FILES or name.startswith('shards-') or re.fullmatch(r'code-\d+\.patch', name)]


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


class Run:
    """The folder of a run, and how the run starts there.

    `path`: {file's name: its path}. `init_from`: 'scratch', 'resume', or the weights to start from; 'auto' is resolved here.
    train.py sets `data`, the fingerprint of its data, and when it resumes find_checkpoint sets `start`, the iteration to start
    with, and `ckpt_config`, the keys that the checkpoint was saved with. ValueError for a folder that holds another run. Nothing
    is written before `lock`.
    """

    def __init__(self, config):
        self.folder, self.init_from, self.start, self.data = config['out_dir'], config['init_from'], 0, ''
        self.ckpt_config, self.ckpt_hash = {}, ''
        self.path = {name: os.path.join(self.folder, name) for name in FILES}
        self.old = os.path.join(self.folder, 'old-run')
        self.seen, files, init_from = self.state(), self.there(), self.init_from
        if config['wandb_log'] and not config['eval_only']:
            with wandb_errors():
                import wandb  # noqa: F401, so that it fails before anything is touched
        if init_from == 'auto':                             # a run that was killed before it saved starts again
            self.init_from = 'resume' if 'ckpt.pt' in files else 'scratch'
        if self.init_from == 'resume' or not files or config['overwrite'] or config['eval_only']:
            return
        if init_from != 'auto':
            raise ValueError(f'out_dir={self.folder} holds a run: choose another folder, continue the run by '
                             f'--init_from=resume, or replace it by --overwrite=True')
        about = read_json(self.path['run.json'], 'remove it')         # written before the first checkpoint
        if 'best.pt' in files or about and about.get('saved', True):        # older versions did not note it
            raise ValueError(f'out_dir={self.folder} holds a run that has lost its ckpt.pt: put it back, or a copy of best.pt in '
                             f'its place, or choose another folder, or start again by --overwrite=True')

    @functools.cached_property
    def code(self):
        return code_hashes(script())

    def given(self, config):
        """{what: its value} of what all ranks of a run must have alike"""
        keys = {key: value for key, value in config.items() if key not in OF_EACH_RANK}
        code = {f'code of {file}': digest for file, digest in self.code.items()}
        return {**keys, 'iteration of the checkpoint in out_dir': self.start, 'hash of this checkpoint': self.ckpt_hash,
                'fingerprint of the data': self.data, **code,
                'Python': platform.python_version(), 'PyTorch': torch.__version__}

    def changes(self, config):
        """What a resumed run has changed since its checkpoint was saved, as lines such as 'dropout 0.0 → 0.1'"""
        if not self.ckpt_config:
            return []
        saved, starts = self.ckpt_config, self.starts()
        keys = sorted(key for key in {**saved, **config}.keys() - {*OF_A_START} if saved.get(key) != config.get(key))
        lines = [f'{key} {saved.get(key, "(not there)")} → {config.get(key, "(unknown here)")}' for key in keys]
        code = starts[-1]['code'] if starts else {}
        files = sorted(file for file in {**code, **self.code} if code.get(file) != self.code.get(file)) if code else []
        return lines + ([f'code of {" ".join(files)}'] if files else [])

    def starts(self):
        """The rows of `starts` in the run.json of a run that is resumed; older versions have one without a list."""
        about = read_json(self.path['run.json'], 'remove it') if self.init_from == 'resume' else None
        if about is None:
            return []
        return about.get('starts') or [dict(iter=0, patch='code.patch', code={},
                                            **{key: about.get(key) for key in ('command', 'commit')})]

    def holds(self, start, commit, patch):
        """Whether an earlier start had this commit, and the same patch in its file"""
        path = os.path.join(self.folder, start['patch'])
        if start['commit'] != commit or not os.path.isfile(path):
            return False
        with open(path, 'rb') as f:
            return f.read() == patch

    def check_lock(self):
        """OSError if the folder is no longer the one that this run has locked, because somebody has moved or removed it."""
        path = os.path.join(self.folder, '.lock')
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(self.locked.fileno())):
            raise OSError(f'{self.folder} has been moved or removed while this run trained there: it ends without saving there')

    def note_saved(self):
        """Notes in run.json that the run has a checkpoint."""
        if not self.about['saved']:
            self.about['saved'] = True
            self.write_json('run.json', self.about)

    def there(self):
        """The names of those FILES that exist."""
        return [name for name, file in self.path.items() if os.path.exists(file)]

    def state(self):
        """What changes if another process trains here."""
        files = [self.path[name] for name in ('ckpt.pt', 'best.pt', 'log.jsonl')]
        return [(os.stat(file).st_ino, os.stat(file).st_mtime_ns) for file in files if os.path.exists(file)]

    def lock(self):
        """Makes the folder, and locks it until this process ends. ValueError if another process trains there, or has trained
        there since this one looked."""
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
        if self.state() != self.seen:
            raise ValueError(f'another process has just trained in {self.folder}: type the command again')

    def set_aside(self):
        """Moves the files of a run that this one replaces to `old`. At any moment one of the two places has all of them. Of two
        runs, it keeps the one that has saved a checkpoint."""
        names = sorted(parts(self.folder), key=lambda name: name != 'ckpt.pt')
        if 'ckpt.pt' in names or names and not os.path.exists(self.old):
            self.drop_old()
            os.makedirs(self.old + '.tmp')
            for name in names:
                here, kept = os.path.join(self.folder, name), os.path.join(self.old + '.tmp', name)
                if os.path.isdir(here):
                    shutil.copytree(here, kept, copy_function=link_or_copy)
                else:
                    link_or_copy(here, kept)
            os.replace(self.old + '.tmp', self.old)
        for name in names:                              # ckpt.pt first: without it, what is left here is no run
            remove(os.path.join(self.folder, name))

    def drop_old(self):
        """Removes what `set_aside` has kept."""
        shutil.rmtree(self.old + '.tmp', ignore_errors=True)
        if os.path.isdir(self.old):
            for name in parts(self.old):
                remove(os.path.join(self.old, name))
            with suppress(OSError):                     # it holds somebody else's files too
                os.rmdir(self.old)

    def rows(self, name):
        """The rows of log.jsonl or measure.jsonl that a resumed run finds. ValueError if the file is damaged."""
        return read_rows(self.path[name]) if self.start else []

    def continue_rows(self, name):
        """Opens a file of JSON rows for appending (RowFile), without the rows of iterations that will be run again."""
        rows = [row for row in self.rows(name) if row['iter'] < self.start]
        write_whole(self.path[name], lambda f: f.writelines(as_line(row).encode() for row in rows))
        return RowFile(self.path[name])

    def finished_with(self, checkpoint, max_iters):
        """The last evaluation's row if this run, which resumes from a checkpoint, has nothing left to do, else None."""
        row, best = last_row(self.path['log.jsonl']) or {}, self.path['best.pt']
        if self.start < max_iters or row.get('iter') != max_iters or 'val_loss' not in row or not os.path.exists(best):
            return None
        # a kill may have left a best.pt that is older than the checkpoint that it should be
        is_best = row['val_loss'] == checkpoint['best_val_loss']
        return None if is_best and os.stat(best).st_mtime_ns < os.stat(self.path['ckpt.pt']).st_mtime_ns else row

    def leave_if_complete(self, checkpoint, config, machine):
        """Ends the process if this run, which resumes from a checkpoint, has nothing left to do."""
        row = self.finished_with(checkpoint, config['max_iters']) if checkpoint and not config['eval_only'] else None
        if all(machine.gather(row is not None)):        # on all ranks, or they go on together
            if machine.master:
                say(f'{self.folder} is complete: {config["max_iters"]} iterations, {losses_text(row)}; --max_iters=… trains on')
            machine.leave(0)

    def write_json(self, name, value):
        write_whole(self.path[name], lambda f: f.write(json.dumps(value, indent=1).encode()))


def losses_text(means):
    """'train loss 1.2345, val loss 1.2345' of an evaluation, or of its row"""
    return ', '.join(f'{name.replace("_", " ")} {value:.4f}' for name, value in means.items()
                     if name.endswith(('_loss', '_top1', '_top5')))


class Log:
    """Writes a run's files, except checkpoints and measurements, and reports on the terminal. Ranks other than the first, and
    evaluations without training, write no file."""

    def __init__(self, run, config, machine, **about):
        self.run, self.config, self.machine = run, config, machine
        self.writes = machine.master and not config['eval_only']
        self.wandb, failure = None, None
        try:
            self.changes = run.changes(config) if machine.master else []
            if self.writes:
                self.begin(about)
        except (ValueError, OSError) as error:
            failure = error
        machine.end_together(failure)
        if self.changes:
            self.say(f'changed since the checkpoint: {", ".join(self.changes)}')

    def begin(self, about):
        """Locks the run's folder, and writes the files of a start. What another run has left there is set aside before."""
        run, config, machine = self.run, self.config, self.machine
        run.lock()
        commit, changed, patch = code_state()
        for line in changed:
            if line.startswith(LEFT_OUT):
                self.say(f'{line}: let .gitignore name what is no code of yours')
        starts = run.starts()
        patch_file = ('code.patch' if not starts else starts[-1]['patch'] if run.holds(starts[-1], commit, patch) else
                      f'code-{len(starts) + 1}.patch') if commit else ''
        starts.append(dict(time=time.strftime('%Y-%m-%d %H:%M:%S %z'), iter=run.start, command=command(), commit=commit,
                           patch=patch_file, code=run.code, changes=self.changes))
        self.about = dict(command=command(), ranks=machine.world_size, device=str(machine.device),
                          dtype=str(machine.dtype), machine=machine.name(), platform=platform.platform(),
                          python=platform.python_version(), torch=torch.__version__, numpy=np.__version__,
                          commit=commit, changed=changed, code=code_hash(script()), data=run.data,
                          saved=run.init_from == 'resume', **about, starts=starts)
        run.about = self.about
        if config['wandb_log']:                         # before a file is touched, because it may fail
            self.wandb = start_wandb(run, config, self.about)
        run.rows('measure.jsonl')                       # raises now if it is damaged
        if run.init_from != 'resume':
            run.set_aside()
            if os.path.exists(run.old):
                self.say(f'the run that was in {run.folder} is kept in {run.old} until this one has saved a checkpoint')
        self.file = run.continue_rows('log.jsonl')
        run.write_json('config.json', config)
        run.write_json('run.json', self.about)
        if commit:
            write_whole(os.path.join(run.folder, patch_file), lambda f: f.write(patch))
        if run.start:
            self.row(iter=run.start, start=len(starts), changes=self.changes)

    def say(self, *words):
        if self.machine.master:
            say(*words)

    def introduce(self, optimizer, rate, amounts, notes):
        """Prints what is trained: the `amounts` of an iteration and an epoch as text, the optimizer's groups of parameters with
        the highest learning rate of each, by rate(it, ratio), and the lines of `notes`."""
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

    def row(self, **row):
        """Writes a row of log.jsonl, and the same to Weights & Biases."""
        if self.writes:
            write_row(self.file, row)
            self.to_wandb(lambda wandb: wandb.log(row, step=row['iter']))

    def to_wandb(self, call):
        """Calls call(wandb) if the run logs there. After an error, such as a full disk, the run goes on without."""
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
        """Logs a row of an iteration, {name: number}, and the speed."""
        if not self.machine.master:
            return
        per_s, mfu, left = speed.since_last_line(row['iter'])
        unit = speed.unit
        self.row(**row, **{f'{unit}_per_s': round(per_s)}, **({'mfu': round(mfu, 4)} if mfu else {}))
        self.say(f'iter {row["iter"]}: loss {row["loss"]:.4f}, lr {row["lr"]:.2e}, {per_s:,.0f} {unit}/s'
                 + (f', MFU {mfu:.1%}' if mfu else '') + f', {left} left')

    def stopped(self, it, saved):
        """Prints how to continue a run that a signal has stopped, and waits for all ranks: torchrun ends all when one exits.
        `saved`: whether this iteration is in ckpt.pt; it is not while the loss is too high."""
        start_with = 'torchrun …' if self.machine.distributed else 'python'
        here, way = ('', 'resume') if saved else (', not saved because the loss is too high', 'auto')
        self.say(f'stopped after iteration {it}{here}; to go on{"" if saved else " from the last checkpoint, if there is one"}: '
                 f'{start_with} {script_as_typed()} {self.run.path["config.json"]} --init_from={way}')
        self.machine.wait()

    def close(self, code):
        self.to_wandb(lambda wandb: wandb.finish(exit_code=code))
        if self.writes and self.file.waiting:
            raise OSError(f'{self.file.path} lacks its last rows: the disk is full')


class WorkingTime:
    """A clock, in seconds. After `skip_compiling` it stands still while torch.compile compiles."""

    def __init__(self):
        self.compiling, self.since = 0.0, None          # seconds in all; when the one that is not done has begun

    def __call__(self):
        return (time.monotonic() if self.since is None else self.since) - self.compiling

    def skip_compiling(self):
        torch._dynamo.on_compile_start(self.begin)
        torch._dynamo.on_compile_end(self.end)

    def begin(self, _):
        self.since = time.monotonic()

    def end(self, _):
        if self.since is not None:
            self.compiling, self.since = self.compiling + time.monotonic() - self.since, None


working_time = WorkingTime()


def add_scalars(totals, terms, divisor):
    """Add each scalar tensor of {name: scalar}, divided by `divisor`, to that name's total. ValueError for what is no scalar."""
    for name, term in terms.items():
        if not torch.is_tensor(term) or term.numel() != 1:
            shape = tuple(term.shape) if torch.is_tensor(term) else type(term).__name__
            raise ValueError(f'aux or logged: {name} is {shape}, wants a tensor of one number')
        totals[name] = totals.get(name, 0.0) + term.detach() / divisor


class Speed:
    """The speed of training, without the time spent in `paused` or compiling. MFU is the share of the GPUs' peak FLOP/s that the
    model's own FLOPs use."""

    def __init__(self, unit, per_iter, flops, machine, max_iters):
        self.unit, self.per_iter, self.flops, self.max_iters = unit, per_iter, flops, max_iters
        self.peak = machine.world_size * (vendors_peak(machine.device) or 0)
        working_time.skip_compiling()
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
        """Tokens or images per second, MFU (0 if unknown), and the time left as text."""
        now = working_time()
        per_s = self.lap_iters * self.per_iter / (now - self.lap)
        pace = (now - self.began) / (it - self.first) if it > self.first else now - self.lap
        self.lap, self.lap_iters = now, 0
        return per_s, per_s * self.flops / self.peak if self.peak else 0, clock(pace * (self.max_iters - it - 1))


@contextmanager
def wandb_errors():
    """A context in which any error becomes a ValueError about wandb_log."""
    try:
        yield
    except Exception as error:                          # of many types
        remedy = 'pip install wandb' if isinstance(error, ImportError) else 'wandb login  or WANDB_MODE=offline'
        raise ValueError(f'wandb_log=True: {type(error).__name__}: {" ".join(str(error).split())[:300]}; '
                         f'try  {remedy}, or leave wandb_log out') from error


def start_wandb(run, config, about):
    """The module wandb, with a run started there. ValueError if it cannot be."""
    with wandb_errors():
        import wandb
        wandb.init(project=config['wandb_project'], dir=run.folder, config={**config, **about},
                   settings=wandb.Settings(init_timeout=20),        # seconds, where there is no network
                   name=config['wandb_run_name'] or os.path.basename(os.path.normpath(run.folder)))
    return wandb


def progress(items, what, total=None, shown=True):
    """Yields the items, and prints to stderr how many of `total`, by default len(items), are done: a line now and then, which
    suits a log file too."""
    total = len(items) if total is None else total
    began = said = working_time()
    for done, item in enumerate(items):
        now = working_time()
        if shown and done and now - said >= EVERY:
            said = now
            say(f'{what}: {done} of {total}, {clock((now - began) / done * (total - done))} left', to=sys.stderr)
        yield item


def last_iter(path):
    """The iteration of the last whole row of a log.jsonl, -1 if there is none."""
    row = last_row(path)
    return row['iter'] if row else -1


class RowFile:
    """A file to which rows are appended. A part of a row at its end, which a kill has left, is cut off. Rows that the disk does
    not take, because it is full, wait here for the next ones."""

    def __init__(self, path):
        self.path, self.file, self.waiting, self.told = path, open(path, 'ab+', buffering=0), b'', False
        tail, end = b'', self.file.seek(0, os.SEEK_END)
        while b'\n' not in tail and len(tail) < end:
            size = min(2 ** 16, end - len(tail))
            tail = os.pread(self.file.fileno(), size, end - len(tail) - size) + tail
        tail = tail.rpartition(b'\n')[2]
        row = None
        with suppress(ValueError, RecursionError):
            row = json.loads(tail)
        if isinstance(row, dict):
            self.waiting = b'\n'                        # some editor has left a whole row without the end of its line
        elif tail:
            self.file.truncate(end - len(tail))

    def write(self, text):
        self.waiting += text.encode()

    def flush(self):
        try:
            while self.waiting:
                self.waiting = self.waiting[self.file.write(self.waiting):]     # it may take a part of a row
            self.told = False
        except OSError as error:
            if not self.told:
                say(f'{self.path} could not be written ({error.strerror}): its rows wait until there is room', to=sys.stderr)
            self.told = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


def write_row(f, value):
    """Writes a line of JSON, in which null stands for a number that is not finite."""
    f.write(as_line(value))
    f.flush()


def as_line(value):
    return json.dumps(finite(value)) + '\n'


def finite(value):
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f'{minutes // 60}h{minutes % 60:02d}m' if minutes >= 60 else f'{minutes}m{seconds:02d}s'


def script():
    """The path of the script that runs"""
    return os.path.abspath(sys.modules['__main__'].__file__)


def script_as_typed():
    """'train.py' or '-m vision.train', from the root of the repository"""
    name = os.path.relpath(script(), REPOSITORY)
    return f'-m {name[:-3].replace(os.sep, ".")}' if os.sep in name else name


def command():
    """The command of this process, from the root of the repository"""
    return f'{sys.executable} {script_as_typed()} {shlex.join(sys.argv[1:])}'.strip()


def code_state():
    """The repository's git commit, the tracked files that differ from it, and a patch of the differences for `git apply`, with
    untracked .py files too: at most MOST_NEW_FILES, of at most MOST_NEW_BYTES each; `changed` says how many are left out. All are
    empty if git or the repository is missing."""
    commit = git('rev-parse', 'HEAD').decode().strip()
    changed = git('status', '--porcelain', '--untracked-files=no').decode(errors='replace').splitlines()
    patch = git('diff', 'HEAD', '--binary')
    listing = git('ls-files', '--others', '--exclude-standard', '-z', '--', '*.py')
    files = [os.fsdecode(file) for file in listing.split(b'\0')[:-1]]
    kept = [file for file in files if os.path.getsize(os.path.join(REPOSITORY, file)) <= MOST_NEW_BYTES][:MOST_NEW_FILES]
    for file in kept:
        patch += git('diff', '--no-index', '--binary', '--', os.devnull, file)
    if len(kept) < len(files):
        changed.append(f'{LEFT_OUT} {len(files) - len(kept)} new .py files, such as {sorted({*files} - {*kept})[0]}')
    return commit, changed, patch


def code_hash(script):
    """One hash of code_hashes"""
    return hashlib.blake2b(repr(sorted(code_hashes(script).items())).encode(), digest_size=6).hexdigest()


def code_hashes(script):
    """{file: the hash of its syntax tree} of a script and of our files that it imports, directly or through others. Comments,
    docstrings and the layout do not change it, nor does the version of Python. lab/ does not count: it reads runs."""
    todo, hashes = [os.path.relpath(script, REPOSITORY)], {}
    while todo:
        path = todo.pop()
        if path in hashes or path.startswith('lab' + os.sep) or not os.path.isfile(os.path.join(REPOSITORY, path)):
            continue
        with open(os.path.join(REPOSITORY, path), encoding='utf-8') as f:
            tree = ast.parse(f.read())
        hashes[path] = hashlib.blake2b(repr(content_of(tree)).encode(), digest_size=6).hexdigest()
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or '', *(f'{node.module}.{name}' for name in names)]
            todo += [os.path.join(*name.split('.')) + '.py' for name in names if name]
    return hashes


def content_of(node):
    """A syntax tree as nested tuples, without docstrings and empty fields"""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []) and name != 'kind')
        return type(node).__name__, *((name, content_of(value)) for name, value in fields)
    if isinstance(node, list):
        return [content_of(child) for child in node
                if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))]
    return repr(node)


def git(*arguments):
    try:
        return subprocess.run(['git', *arguments], capture_output=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL).stdout
    except OSError:
        return b''                                      # a machine without git
