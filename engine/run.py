"""
A run: its folder, its lines on the terminal, its checkpoints, and when it ends. One process at a time trains in a folder.

    config.json     all keys; it is itself a config
    run.json        versions, machine, git commit, command; `starts` has a row for the first start and for each resumption
    code.patch      the code's differences from that commit, at the latest start
    log.jsonl       a row per logged iteration and per evaluation
    measure.jsonl   a row per measurement of --measure_interval
    ckpt.pt         the latest checkpoint
    best.pt         the checkpoint of the lowest validation loss
    ckpt-….pt       the checkpoint of this iteration, with --keep_every
"""
from engine.process import ROOT, say

import copy
import hashlib
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from data.lock import lock_folder
from engine.checkpoint import (
    check_leaf,
    check_weights,
    checkpoint_hash,
    find_checkpoint,
    load_checkpoint,
    load_state,
    save,
    script_of,
    whole,
)
from engine.device import StopRequest, device_name, vendors_peak
from engine.files import last_row, map_leaves, open_rows, read_json, write_json, write_row, write_whole
from engine.stats import NEVER
from optim import lr_at

FILES = r'(config|run|measure)\.json|code\.patch|(log|measure)\.jsonl|(ckpt|best|ckpt-\d+)\.pt'
RANK_KEYS = ('device', 'out_dir', 'debug')              # may differ between ranks
RESETTABLE_KEYS = ('out_dir', 'debug', 'init_from', 'overwrite', 'eval_only', 'max_minutes')   # every start may change them
OTHER_SCRIPTS = ('bench.py', 'sample.py', 'test_model.py')
SETTINGS = ('config', 'about', 'best_val_loss')         # of a checkpoint; what else it holds is state
MAX_NEW_FILES = 100         # untracked .py files in a patch: more are likely an environment that git does not ignore


# ----------------------------------------------------------------------------- the code that runs

def script_path():
    return os.path.abspath(sys.modules['__main__'].__file__)


def script():
    """Return what follows `python` in the repository's root: 'train.py', or '-m FOLDER.train' for a module."""
    name = os.path.relpath(script_path(), ROOT)
    return f'-m {name[:-3].replace(os.sep, ".")}' if os.sep in name else name


def git(*arguments):
    """Return git's output, or b'' without git or a repository."""
    try:
        return subprocess.run(['git', *arguments], capture_output=True, cwd=ROOT, stdin=subprocess.DEVNULL).stdout
    except OSError:
        return b''


def code_state():
    """Return the git commit, the tracked files that differ from it, and a patch of the differences for `git apply`. The patch
    includes untracked .py files, at most MAX_NEW_FILES; print a line if there are more."""
    commit = git('rev-parse', 'HEAD').decode().strip()
    changed = git('status', '--porcelain', '--untracked-files=no').decode(errors='replace').splitlines()
    patch = git('diff', 'HEAD', '--binary')
    new = git('ls-files', '--others', '--exclude-standard', '-z', '--', '*.py').split(b'\0')[:-1]
    for file in new[:MAX_NEW_FILES]:
        patch += git('diff', '--no-index', '--binary', '--', os.devnull, os.fsdecode(file))
    if left_out := [os.fsdecode(file) for file in new[MAX_NEW_FILES:]]:
        changed.append(f'code.patch leaves out {len(left_out)} new .py files, such as {left_out[0]}')
        say(f'{changed[-1]}: list files that are not your code in .gitignore')
    return commit, changed, patch


def code_hashes(script):
    """Return {file: hash of its bytes} for the code that a training script runs: model.py and what stands beside it, engine/,
    data/, and the script's own folder. Leave out lab/, which reads runs, and the root's other scripts."""
    own = os.path.relpath(os.path.dirname(os.path.abspath(script)), ROOT)
    paths = {path for folder in ('.', 'engine', 'data', own) for path in Path(ROOT, folder).glob('*.py')}
    return {path.relative_to(ROOT).as_posix(): hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
            for path in sorted(paths) if path.relative_to(ROOT).as_posix() not in OTHER_SCRIPTS}


def code_hash(script):
    """Return one hash for all of code_hashes."""
    return hashlib.blake2b(repr(sorted(code_hashes(script).items())).encode(), digest_size=6).hexdigest()


# ----------------------------------------------------------------------------- the run

class Run:
    """A run's folder, and how the run starts there.

    `init_from`: 'scratch', 'resume', or the weights to start from; 'auto' is resolved here. `start`: the first iteration. Raise
    ValueError if the folder holds another run. Write nothing before `begin`. Every rank has a Run and must call the same methods;
    only rank 0 writes files, and only if the run trains."""

    def __init__(self, config, machine):
        self.folder, self.config, self.machine, self.init_from = config['out_dir'], config, machine, config['init_from']
        self.start, self.best_val_loss, self.changes, self.wandb = 0, math.inf, [], None
        self.writes = machine.master and not config['eval_only']
        self.ckpt_mtime, files = self.last_save(), self.files()
        if self.init_from == 'auto':                    # a run that was killed before it saved starts again
            self.init_from = 'resume' if {'ckpt.pt', 'best.pt'} & {*files} else 'scratch'
        elif files and not (self.init_from == 'resume' or config['overwrite'] or config['eval_only']):
            raise ValueError(f'out_dir={self.folder} holds a run: choose another folder, continue the run by '
                             f'--init_from=resume, or replace it by --overwrite=True')

    def path(self, name):
        return os.path.join(self.folder, name)

    def files(self):
        """Return the names of a run's files in the folder, ckpt.pt first: without it, the rest is no run."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        return sorted(filter(re.compile(FILES).fullmatch, names), key=lambda name: name != 'ckpt.pt')

    def last_save(self):
        """Return the time when ckpt.pt was written, 0 if there is none."""
        return os.stat(self.path('ckpt.pt')).st_mtime_ns if os.path.exists(self.path('ckpt.pt')) else 0

    def say(self, *words):
        if self.machine.master:
            say(*words)

    # ------------------------------------------------------------------------- how it starts

    def find_checkpoint(self, Config, data):
        """Connect the ranks, and return the checkpoint to resume from, None for a new run. `data`: the data's fingerprint. End
        the process if a resumed run has nothing left to do."""
        machine, config, self.data, state = self.machine, self.config, data, None
        self.code, self.script = code_hashes(script_path()), script_of(Config)
        self.about = dict(dtype=str(machine.dtype), torch=str(torch.__version__), machine=device_name(machine.device))
        if self.init_from == 'resume':
            state = find_checkpoint(self.path('ckpt.pt'), config, Config, data)
            self.start, self.best_val_loss = state['iter'], state['best_val_loss']
            self.changes = self.changes_since(state)
        # so config.json repeats the whole run
        config['init_from'], config['overwrite'] = state['config']['init_from'] if state else self.init_from, False
        machine.connect(config['backend'], {
            **{key: value for key, value in config.items() if key not in RANK_KEYS},
            'iteration of the checkpoint in out_dir': self.start,
            'hash of this checkpoint': checkpoint_hash(self.path('ckpt.pt')) if state else '',
            'fingerprint of the data': data, **{f'code of {file}': digest for file, digest in self.code.items()},
            'Python': platform.python_version(), 'PyTorch': self.about['torch'], 'NumPy': np.__version__})
        row = last_row(self.path('log.jsonl'))
        # a kill may have come after the last evaluation and before its checkpoint, the best so far, was saved
        complete = (state and not config['eval_only'] and self.start == row['iter'] == config['max_iters']
                    and state['best_val_loss'] <= row.get('val_loss', -math.inf))
        if all(machine.gather(bool(complete))):         # on all ranks, or they go on together
            self.say(f'{self.folder} is complete: {self.start} iterations, {losses_text(row)}; --max_iters=… trains on')
            machine.shutdown(0)
        return state

    def changes_since(self, state):
        """Return lines such as 'dropout 0.0 → 0.1' for everything that has changed since the checkpoint was saved."""
        saved, before = state['config'], state['about']
        lines = [f'{key} {saved.get(key, "(not there)")} → {self.config.get(key, "(unknown here)")}'
                 for key in sorted({**saved, **self.config}.keys() - {*RESETTABLE_KEYS})
                 if saved.get(key) != self.config.get(key)]
        lines += [f'{dict(dtype="precision", torch="PyTorch").get(key, key)} {before[key]} → {value}'
                  for key, value in self.about.items() if before[key] != value]
        files = sorted(file for file in {**before['code'], **self.code} if before['code'].get(file) != self.code.get(file))
        return lines + ([f'code of {" ".join(files)}'] if files else [])

    def resume(self, state, optimizer, scaler):
        """Restore the optimizer's and the scaler's state from the checkpoint."""
        load_state(optimizer, state['optimizer'])
        if state['scaler']:                             # it has no state unless dtype=float16
            scaler.load_state_dict(state['scaler'])

    def begin(self, model, optimizer, amounts, notes=(), **about):
        """Lock the folder, write the files of this start, and print what the run is: `amounts`, the sizes of an iteration and an
        epoch; the optimizer's groups, each with its peak learning rate; and the lines of `notes`. `about`: more entries for
        run.json."""
        self.stop_request = StopRequest(self.config['max_minutes'] * self.machine.master)       # the clock of rank 0
        self.weights, self.settings, failure = model.state_dict(), copy.deepcopy(settings_of(optimizer)), None
        self.trains = {name: p.requires_grad for name, p in model.named_parameters()}
        self.model, self.optimizer, self.loose = model, optimizer, copy.deepcopy(loose_state(model, optimizer))
        try:
            if self.writes:
                self.open_files(parameters=model.num_params(), **about)
        except (ValueError, OSError) as error:
            failure = error
        self.machine.end_together(failure)
        if self.changes:
            self.say(f'changed since the checkpoint: {", ".join(self.changes)}')
        if not self.writes:
            return
        if self.init_from == 'resume':
            self.say(f'resumes {self.path("ckpt.pt")} at iteration {self.start}')
        self.say(f'{model.num_params():,} parameters on {self.machine.world_size} × {self.about["machine"]}, '
                 f'{str(self.machine.dtype)[6:]}; {amounts}; in {self.folder}')
        self.say(f'{"block type":12}{"tensors":>8}{"parameters":>15}{"LR ratio":>10}{"peak LR":>10}{"decay":>9}')
        last, low = self.config['max_iters'], {}
        for group in optimizer.param_groups:
            peak = group['lr_scale'] * max(lr_at(it, self.config, group['lr_ratio'])
                                           for it in range(0, max(1, last), max(1, last // 1000)))
            self.say(f'{group["block_type"]:12}{len(group["params"]):8}{sum(p.numel() for p in group["params"]):15,}'
                     f'{group["lr_ratio"]:10g}{peak:10.2e}{group["weight_decay"]:9.4g}')
            if peak < 0.99 * group['lr_scale'] * group['lr_ratio'] * self.config['learning_rate']:
                low[group['block_type']] = None
        if low and last:
            notes = [*notes, f'{", ".join(low)}: their learning rate never reaches its peak, because this run is too short '
                             f'for warmup_iters={self.config["warmup_iters"]} (with a large r_TYPE, try blockwise=peak)']
        for line in notes:
            self.say(line)

    def open_files(self, **about):
        """Lock the folder until this process ends, remove the files of a run that this one replaces, and write those of this
        start. Raise ValueError if another process trains there, or has saved there since __init__."""
        os.makedirs(self.folder, exist_ok=True)
        self.locked = lock_folder(self.folder, 'training')
        if self.last_save() != self.ckpt_mtime:
            raise ValueError(f'another process has just trained in {self.folder}: type the command again')
        resumes, (commit, changed, patch) = self.init_from == 'resume', code_state()
        command = f'{sys.executable} {script()} {shlex.join(sys.argv[1:])}'.strip()
        before = read_json(self.path('run.json'), 'remove it') or {} if resumes else {}
        starts, here = before.get('starts', []), os.path.realpath(self.folder)
        starts.append(dict(time=time.strftime('%Y-%m-%d %H:%M:%S %z'), iter=self.start, command=command, commit=commit,
                           changed=changed, code=self.code, **self.about, changes=self.changes))
        content = dict(command=command, ranks=self.machine.world_size, device=str(self.machine.device), **self.about,
                       platform=platform.platform(), python=platform.python_version(), numpy=np.__version__, commit=commit,
                       changed=changed, code=code_hash(script_path()), data=self.data, **about, starts=starts)
        content |= {key: before[key] for key in ('wandb', 'wandb_folder') if key in before}     # for a later start with wandb
        if self.config['wandb_log']:                    # before touching a file, because this may fail
            same = before.get('wandb_folder', here) == here         # a copied folder starts a run of its own there
            self.wandb = start_wandb(self.folder, self.config, content, before.get('wandb') if same else None)
            content['wandb_folder'] = here
            content['wandb'] = self.wandb.run.id        # a resumed run goes on there
        for name in [] if resumes else self.files():
            os.remove(self.path(name))
        self.log = self.continue_rows('log.jsonl')
        write_json(self.path('config.json'), self.config)
        write_json(self.path('run.json'), content)
        if commit:
            write_whole(self.path('code.patch'), lambda f: f.write(patch))
        if self.start:
            self.row(iter=self.start, start=len(starts), changes=self.changes)

    def continue_rows(self, name):
        """Open log.jsonl or measure.jsonl for appending, without the rows of iterations that will be repeated."""
        return open_rows(self.path(name), self.start)

    # ------------------------------------------------------------------------- what it says

    def row(self, **row):
        """Write a row to log.jsonl and to Weights & Biases, whose errors, such as a full disk, do not end the run."""
        if self.writes:
            write_row(self.log, row)
            self.to_wandb(lambda wandb: wandb.log(row, step=row['iter']))

    def to_wandb(self, call):
        """Run call(wandb) if the run logs to Weights & Biases. After an error go on without wandb."""
        try:
            if self.wandb:
                call(self.wandb)
        except Exception as error:                      # of many types
            self.wandb = None
            say(f'wandb: {type(error).__name__}: {" ".join(str(error).split())[:300]}; the run goes on without', to=sys.stderr)

    def log_evaluation(self, it, means, stats):
        self.say(f'iter {it}: {losses_text(means)}')
        self.row(iter=it, **means, **stats)

    def log_step(self, it, row):
        """Log the row of an iteration: the learning rate, and what StepStats.row and Speed.row say."""
        unit, = (name.removesuffix('_per_s') for name in row if name.endswith('_per_s'))
        self.say(f'iter {it}: loss {row["loss"]:.4f}, lr {row["lr"]:.2e}, {row[f"{unit}_per_s"]:,} {unit}/s'
                 + (f', MFU {row["mfu"]:.1%}' if 'mfu' in row else '') + f', {clock(row.pop("seconds_left"))} left')
        self.row(iter=it, **row)

    # ------------------------------------------------------------------------- its checkpoints

    def is_best(self, it, means):
        """Return whether these means of an evaluation have the lowest validation loss so far, and remember it."""
        best = it > 0 and means.get('val_loss', math.nan) <= self.best_val_loss
        self.best_val_loss = means['val_loss'] if best else self.best_val_loss
        return best

    def save(self, state, is_best=False):
        """Write ckpt.pt with this state before iteration state['iter']. With is_best write best.pt too, and every keep_every
        iterations ckpt-000500.pt or the like."""
        it = state['iter']
        self.compare_weights(state['model'])
        state = whole(state, keep=self.machine.master)
        state |= dict(config=self.config, best_val_loss=self.best_val_loss, data=self.data,
                      about={**self.about, 'code': self.code, 'script': self.script})
        if it == self.start + 1:
            self.check_resumable(state)
        every, failure = self.config['keep_every'], None
        kept = f'ckpt-{it:06}.pt' if every and it % every == 0 else ''
        try:
            if self.machine.master:
                self.check_folder()
                save([self.path(name) for name in ('best.pt' * is_best, kept, 'ckpt.pt') if name], state)
                if it == self.start + 1:
                    load_checkpoint(self.path('ckpt.pt'), mmap=True)
        except (ValueError, OSError) as error:
            failure = error
        self.machine.end_together(failure)

    def check_resumable(self, state):
        """End an edited run, after its first step and before hours are spent, if a checkpoint of this state could not be
        resumed."""
        failure = None
        try:
            check_weights(self.weights, self.model.state_dict())
            map_leaves({key: value for key, value in state.items() if key not in SETTINGS}, check_leaf)
            for before, now in zip(self.settings, settings_of(self.optimizer)):
                if changed := [key for key in now if key not in before or not equal(now[key], before[key])]:
                    raise ValueError(f'the optimizer has changed {changed[0]} in its groups, which hold settings: keep it in '
                                     f'state[p], with the state of a parameter')
        except Exception as error:                      # edited code may raise anything
            failure = ValueError(f'a checkpoint of this run could not be resumed: {error}')
        self.machine.end_together(failure)
        now = loose_state(self.model, self.optimizer)
        # a module may fill a table in its first forward pass; an optimizer that begins to keep something goes on with it
        begun = {name: [] for name in now.keys() - self.loose.keys() if name.startswith(type(self.optimizer).__name__)}
        if lost := [name for name, value in {**begun, **self.loose}.items() if not equal(value, now.get(name))]:
            more = f' and {len(lost) - 3} more' if len(lost) > 3 else ''
            self.say(f'{", ".join(lost[:3])}{more} changed in the first step, and no checkpoint holds it: a resumed run starts '
                     f'it anew; make it a buffer, or state of a parameter in the optimizer')

    def compare_weights(self, weights):
        """End the run if ranks that should hold the same weights and buffers do not: only rank 0's would be saved."""
        if not self.machine.distributed:
            return
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        digests = {name: t.contiguous().view(bits[t.element_size()]).sum(dtype=torch.int64).item()
                   for name, t in weights.items() if not hasattr(t, 'to_local') and t.numel() and not t.is_complex()}
        first = self.machine.gather(digests)[0]
        differ = [name for name in first if first[name] != digests.get(name)]
        differ = [name for names in self.machine.gather(differ) for name in names]
        thawed = [name for name, p in self.model.named_parameters() if p.requires_grad > self.trains.get(name, True)]
        if differ and thawed:
            raise ValueError(f'requires_grad of {", ".join(thawed[:3])} was False when DDP was built, which averages no gradient '
                             f'of it: leave it True, and set param.grad = None before steps that should not change it')
        if differ:
            raise ValueError(f'the ranks hold different values of {", ".join([*dict.fromkeys(differ)][:3])}, and a checkpoint '
                             f'holds only those of rank 0: change weights in the same way on all ranks, average a buffer in '
                             f'forward, or use register_buffer(…, persistent=False)')

    def check_folder(self):
        """Raise OSError if somebody has moved or removed the folder that this run has locked."""
        path = self.path('.lock')
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(self.locked.fileno())):
            raise OSError(f'{self.folder} has been moved or removed while this run trained there: it ends without saving there')

    # ------------------------------------------------------------------------- its end

    def raise_if_diverged(self, it, stats, scaler, losses=()):
        """End the process with code 3 if one of `losses` is not finite, or the loss or the gradient of an iteration before `it`.
        Call this before anything is logged or saved."""
        bad = stats.first_bad['loss']                   # with dtype=float16, the scaler handles gradients that overflow
        bad = bad.clone() if scaler.is_enabled() else torch.minimum(bad, stats.first_bad['gradient'])
        bad = int(self.machine.sum(bad, dist.ReduceOp.MIN).item())
        overflows = scaler.is_enabled() and scaler.get_scale() < 1      # halving the scale has not helped
        if bad == NEVER and not overflows and all(map(math.isfinite, losses)):
            return
        at = bad if bad < NEVER else max(0, it - 1)     # the previous step is the cause
        reason, path, lr = 'the loss or its gradient was not finite', self.path('ckpt.pt'), lr_at(at, self.config)
        self.row(iter=at, diverged=reason, lr=lr)
        if self.machine.master:
            saved = f'{path} holds the last good state' if os.path.exists(path) else 'no checkpoint was saved yet'
            say(f'diverged: {reason} at iteration {at}, learning rate {lr:.3e}; {saved}', to=sys.stderr)
        self.end(code=3)

    def stop_signal(self):
        """Return the number of the signal that asks all ranks to stop, 0 if there is none."""
        return self.machine.largest(self.stop_request.number)

    def end(self, it=0, stop=0, code=0):
        """End the process, before iteration `it`, because of the signal `stop` if it is not 0, or with an exit code."""
        code = 128 + stop if stop else code
        if stop:
            ranks, config = self.machine.world_size, shlex.quote(self.path('config.json'))
            one_node = os.environ.get('LOCAL_WORLD_SIZE', str(ranks)) == str(ranks)
            start_with = ('python' if not self.machine.distributed else
                          f'torchrun --nproc_per_node={ranks}' if one_node else 'torchrun …')
            self.say(f'stopped after iteration {it - 1}; to go on: {start_with} {script()} {config} --init_from=resume')
        self.to_wandb(lambda wandb: wandb.finish(exit_code=code))
        if self.writes:
            self.log.close()                            # raises OSError if the disk is still full
        self.machine.wait()                             # torchrun ends all ranks when one exits
        self.machine.shutdown(code)


def loose_state(model, optimizer):
    """Return {name: the tensors and numbers in it} of the attributes of modules and the optimizer that are in no state_dict."""
    numbers, several = (torch.Tensor, int, float, complex), (list, tuple, dict, deque, np.ndarray)

    def leaves(value):
        if isinstance(value, several):
            value = value.tolist() if isinstance(value, np.ndarray) else value.values() if isinstance(value, dict) else value
            return [leaf for inner in value for leaf in leaves(inner)]
        return [value] if isinstance(value, numbers) and not isinstance(value, nn.Parameter) else []

    found = {}
    for path, module in model.named_modules():
        found |= {f'{path}.{name}'.lstrip('.'): module.get_buffer(name) for name in module._non_persistent_buffers_set}
        found |= {f'{path}.{name}'.lstrip('.'): value for name, value in vars(module).items()}
    found |= {f'{type(optimizer).__name__}.{name}': value for name, value in vars(optimizer).items()}
    others = re.compile(r'(.*\.)?(_[^.]*|aux|logged|defaults|param_groups|state)')
    return {name: leaves(value) for name, value in found.items()
            if isinstance(value, (*numbers, *several)) and not others.fullmatch(name)}


def settings_of(optimizer):
    """Return the optimizer's groups without their parameters and learning rates."""
    return [{key: value for key, value in group.items() if key not in ('params', 'lr')} for group in optimizer.param_groups]


def equal(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) and torch.is_tensor(b) else a == b


def losses_text(means):
    """Return 'train loss 1.2345, val loss 1.2345' for an evaluation or its row."""
    return ', '.join(f'{name.replace("_", " ")} {value:.4f}' for name, value in means.items() if isinstance(value, float))


def start_wandb(folder, config, about, run_id):
    """Start a run at Weights & Biases, and return the module wandb. Raise ValueError if that fails."""
    try:
        import wandb
        wandb.init(project=config['wandb_project'], dir=folder, config={**config, **about}, id=run_id, resume='allow',
                   settings=wandb.Settings(init_timeout=20),        # seconds, where there is no network
                   name=config['wandb_run_name'] or os.path.basename(os.path.normpath(folder)))
    except Exception as error:                          # of many types
        remedy = 'pip install -r requirements.txt' if isinstance(error, ImportError) else 'wandb login  or WANDB_MODE=offline'
        raise ValueError(f'wandb_log=True: {type(error).__name__}: {" ".join(str(error).split())[:300]}; '
                         f'try  {remedy}, or leave wandb_log out') from error
    return wandb


# ----------------------------------------------------------------------------- time

def working_time():
    """Return the seconds on a clock that stops while torch.compile compiles."""
    dynamo = sys.modules.get('torch._dynamo.utils')
    return time.monotonic() - (dynamo.calculate_time_spent()['total_wall_time'] if dynamo else 0.0)


class Speed:
    """Measure the speed of training, without time in `paused` and compilation. MFU is the model's FLOP/s as a share of the GPUs'
    peak."""

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

    def row(self, it):
        """Return the units per second since the last call, MFU if it is known, and the seconds left."""
        now = working_time()
        per_s = self.lap_iters * self.per_iter / (now - self.lap)
        pace = (now - self.began) / (it - self.first) if it > self.first else now - self.lap
        self.lap, self.lap_iters = now, 0
        mfu = dict(mfu=round(per_s * self.flops / self.peak, 4)) if self.peak else {}
        return {f'{self.unit}_per_s': round(per_s), **mfu, 'seconds_left': pace * (self.max_iters - it - 1)}


def progress(items, what, total=None, shown=True):
    """Yield the items, and print to stderr how many of `total`, by default len(items), are done: a line every ten seconds, which
    suits a log file too."""
    total, began = len(items) if total is None else total, working_time()
    said = began
    for done, item in enumerate(items):
        now = working_time()
        if shown and done and now - said >= 10:
            said = now
            say(f'{what}: {done} of {total}, {clock((now - began) / done * (total - done))} left', to=sys.stderr)
        yield item


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f'{minutes // 60}h{minutes % 60:02d}m' if minutes >= 60 else f'{minutes}m{seconds:02d}s'
