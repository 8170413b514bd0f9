"""
What the tests share: ways to run a script, small data to run it on, and what a run leaves behind.

    run_here        in this process, where nothing is imported again: a run takes a fraction of a second
    run_alone       in a process of its own, forked from one that has imported PyTorch: exit codes, signals, kills
    run_ranks       in several such processes, as torchrun starts them

Each returns (exit code, stdout, stderr). A script is 'train.py', a path, or a module such as 'lab.measure' of `python -m`.
"""
import configurator
from configurator import TRAIN

import contextlib
import fcntl
import functools
import io
import itertools
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from data.write import write_tokens
from model import GPTConfig

ROOT = Path(__file__).resolve().parents[1]
HANG = 400              # seconds until a process counts as hung; pyproject.toml has a longer limit for a whole test
# what a forked process need not import
PRELOADED = ('helpers', 'optim', 'torch._dynamo', 'vision.data', 'engine.run', 'lab.convert.pretrained', 'lab.measure',
             'lab.sweep.__main__', 'data.text', 'torch.nn.parallel', 'torch.distributed.fsdp')
keys_in, keys_of_class = configurator.keys_in, functools.cache(configurator.keys_in)       # parsing a class takes 30 ms
configurator.keys_in = lambda source: (keys_in if isinstance(source, str) else keys_of_class)(source)
configurator.keys_of(TRAIN, GPTConfig)                  # now, so that forked processes know them


def flags(**keys):
    return [f'--{key}={value}' for key, value in keys.items()]


def execute(script, arguments):
    """Run a script or a module as the main program, and return its exit code."""
    sys.argv = [str(script), *map(str, arguments)]
    try:
        if str(script).startswith(('lab.', 'vision.')):
            runpy.run_module(script, run_name='__main__', alter_sys=True)
        else:
            runpy.run_path(str(script if os.path.exists(script) else ROOT / script), run_name='__main__')
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return 1 if isinstance(end.code, str) else end.code or 0
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1


def run_here(script, *arguments, cwd='.', **env):
    """Run a script in this process, and leave the process as it was."""
    out, err, locked, flock = io.StringIO(), io.StringIO(), [], fcntl.flock
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    random_state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    with (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(),
          mock.patch.dict(os.environ, env), mock.patch.object(sys, 'path', sys.path[:]), pytest.MonkeyPatch.context() as patch,
          mock.patch.multiple(sys, argv=sys.argv, excepthook=sys.excepthook),
          mock.patch.object(fcntl, 'flock', lambda file, how: (flock(file, how), locked.append(file)))):
        warnings.showwarning = lambda *what: sys.stderr.write(warnings.formatwarning(*what[:4]))       # pytest would collect them
        for kind in DeprecationWarning, ImportWarning, ResourceWarning, RuntimeWarning:         # as Python does; runpy's
            warnings.simplefilter('ignore', kind)
        patch.chdir(cwd)
        code = execute(script, arguments)
    for file in locked:                                 # as the end of a process does
        if str(getattr(file, 'name', '')).endswith('.lock'):
            file.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_rng_state(random_state)
    torch.set_float32_matmul_precision(precision)
    return code, out.getvalue(), err.getvalue()


def call(script, *arguments, code=0, **more):
    """Run a script in this process to the exit code that is expected; return stdout, or stderr if it must fail."""
    found, out, err = run_here(script, *arguments, **more)
    assert found == code, out + err
    return err if code else out


# ----------------------------------------------------------------------------- processes of their own

def become(script, arguments, cwd, env, through, outputs, leads=True):
    """Live as a forked process, which may lead a session. `through`, (function, its arguments), is called before the script."""
    if leads:
        os.setsid()
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (open(number, 'w', encoding='utf-8', closefd=False) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)        # which a process in the background may ignore
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    subprocess.Popen = POPEN
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    warnings.filterwarnings('ignore', '.*found in sys.modules', RuntimeWarning)
    if through:
        function, *more = through
        function(*more)
    code = execute(script, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Alone:
    """A script in a process of its own, forked from one that has imported PRELOADED and leading a session."""

    def __init__(self, script, *arguments, cwd='.', through=(), **env):
        self.files = [tempfile.NamedTemporaryFile() for _ in ('stdout', 'stderr')]
        context = multiprocessing.get_context('forkserver')
        context.set_forkserver_preload(list(PRELOADED))
        args = (script, arguments, os.path.abspath(cwd), {**os.environ, **env}, through, [file.name for file in self.files])
        with mock.patch.dict(os.environ, PYTHONPATH=f'{ROOT}{os.pathsep}{ROOT / "tests"}'):     # of the process that imports
            self.process = context.Process(target=become, args=args)
            self.process.start()
        self.pid = self.process.pid

    def out(self):
        return Path(self.files[0].name).read_text(encoding='utf-8')

    def err(self):
        return Path(self.files[1].name).read_text(encoding='utf-8')

    def end(self):
        self.process.join(HANG)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f'it hangs: {self.out()}{self.err()}')
        return self.process.exitcode, self.out(), self.err()


def start_ranks(script, commands, store=None, **more):
    """Start a script once for each command, (folder, its arguments), as ranks that meet at a store → [Alone]"""
    store = store or dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)          # as torchrun has it
    env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(store.port), WORLD_SIZE=str(len(commands)),
               TORCHELASTIC_USE_AGENT_STORE='True')
    ranks = [Alone(script, *arguments, cwd=cwd, RANK=str(i), **{'LOCAL_RANK': str(i), **more, **env})
             for i, (cwd, *arguments) in enumerate(commands)]
    ranks[0].store = store                              # which ends with its last reference
    return ranks


def run_ranks(count, script, *arguments, cwd='.', store=None, **more):
    """Run a script on ranks. If one fails, kill the others. Return the exit code of the first that failed, and all outputs."""
    if count == 1:
        return Alone(script, *arguments, cwd=cwd, **more).end()
    ranks, codes = start_ranks(script, [(cwd, *arguments)] * count, store, **more), []
    deadline = time.monotonic() + HANG
    while (running := [rank for rank in ranks if rank.process.exitcode is None]) and time.monotonic() < deadline:
        time.sleep(0.02)
        if not codes and any(rank.process.exitcode for rank in ranks):
            time.sleep(0.2)                             # a killed rank counts, and another may have noticed and ended before it
            codes = [rank.process.exitcode for rank in ranks if rank.process.exitcode]
            deadline = time.monotonic() + (HANG / 4 if min(codes) < 0 else 0)       # the others notice that a rank was killed
    for rank in ranks:
        rank.process.kill()
        rank.process.join()
    out, err = ''.join(rank.out() for rank in ranks), ''.join(rank.err() for rank in ranks)
    if running and not codes:
        raise TimeoutError(f'it hangs: {out}{err}')
    return min(codes, default=0), out, err


run_alone = functools.partial(run_ranks, 1)


# ----------------------------------------------------------------------------- what happens to a process, as `through`

def in_each_iteration(does):
    """Call does(iteration) in each iteration of train.py, behind its step."""
    from engine.run import Speed
    iteration = Speed.iteration
    Speed.iteration = lambda self, it: (does(it), iteration(self, it))


def waits(at):
    """In an iteration, until a signal comes"""
    def does(it):
        while it == at and not signal.getsignal(signal.SIGTERM).__self__.number:        # of engine/device.py's StopRequest
            time.sleep(0.005)

    in_each_iteration(does)


def interrupted(at):
    """Two signals in the middle of an iteration to a process and those it has started, from another process, as clusters send
    them; of several ranks to one"""
    signals = ['sh', '-c', f'for i in 1 2; do kill -TERM -{os.getpgrp()}; done']
    in_each_iteration(lambda it: subprocess.run(signals, start_new_session=True, check=True)
                      if it == at and os.environ.get('RANK', '1') == '1' else None)


def killed(moment):
    """SIGKILL at the moment of this number, of those in which a run writes files; a checkpoint is half written in one."""
    moments, save = itertools.count(), torch.save

    def now(before=lambda: None):
        if next(moments) >= moment:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(function):
        return lambda *args: (now(), function(*args))[1]

    for name in ('fsync', 'replace', 'link', 'remove'):
        setattr(os, name, deadly(getattr(os, name)))
    torch.save = lambda state, f: (now(lambda: (f.write(b'half a checkpoint'), f.flush())), save(state, f))


POPEN = subprocess.Popen


class Forked(multiprocessing.get_context('fork').Process):
    """In place of subprocess.Popen in lab/sweep: train.py in a fork of the sweep. If `hold` is an iteration, the run waits in it
    until a signal comes."""
    hold = None
    returncode = property(lambda self: self.exitcode)
    poll = property(lambda self: lambda: self.exitcode)

    def __init__(self, command, env, stdout, stderr, stdin):
        through = () if self.hold is None else (waits, self.hold)
        super().__init__(target=become, args=(command[1], command[2:], '.', env, through, [stdout.name] * 2, False))
        self.start()

    def wait(self, timeout=HANG):
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired('train.py', timeout)


def forks_its_runs(hold=None, deaf=False):
    """Fork the runs of a sweep. It may be deaf to Ctrl-C, as a command in the background is."""
    subprocess.Popen, Forked.hold = Forked, hold
    if deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


# ----------------------------------------------------------------------------- train.py

TINY = dict(dataset='tiny', vocab_size=13, block_size=16, n_layer=2, n_head=2, n_embd=16, batch_size=4, max_iters=20,
            gradient_accumulation_steps=4, eval_interval=5, eval_iters=3, warmup_iters=2, learning_rate=1e-2,
            min_lr=1e-3, lr_decay_iters=20, device='cpu', dtype='float32', compile=False)


def train(cwd, *arguments, code=0, ranks=1, through=(), script='train.py', **env):
    """Run train.py to the exit code that is expected, in this process unless `through`; return (stdout, stderr)."""
    run = functools.partial(run_ranks, ranks, through=through) if ranks > 1 or through else run_here
    found, out, err = run(script, *arguments, cwd=cwd, **env)
    assert found == code, out + err
    return out, err


def write_walk(folder, name='tiny', train=2000, val=500):
    """Write data/<name>: a walk over 13 tokens, which a small model learns to follow quickly."""
    at = Path(folder) / 'data' / name
    at.mkdir(parents=True)
    walk = np.cumsum(np.random.default_rng(0).integers(0, 3, train + val)) % 13
    write_tokens(at, {'train': [walk[:train]], 'val': [walk[train:]]}, 13, 'bytes')


def rows(run):
    """Return what a run logged, with keys such as grad_norms.qk, without what depends on the clock or on where it was resumed."""
    found = [spread('', json.loads(line)) for line in (Path(run) / 'log.jsonl').read_text(encoding='utf-8').splitlines()]
    return [{name: number for name, number in row.items() if not name.endswith('_per_s')} for row in found if 'start' not in row]


def spread(key, value):
    """Return {'layers.qk.0': number, …} of nested dicts and lists."""
    if not isinstance(value, (dict, list)):
        return {key: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: number for part, inner in parts for name, number in spread(f'{key}.{part}'.lstrip('.'), inner).items()}


def steps(run):
    return [row for row in rows(run) if 'loss' in row]


def evaluations(run):
    return [row for row in rows(run) if 'val_loss' in row]


def checkpoint(run, name='ckpt.pt'):
    return torch.load(Path(run) / name, weights_only=True)
