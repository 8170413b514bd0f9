"""
What the tests share: ways to run a script, small data to run it on, and what a run leaves behind.

    run_here        in this process, where nothing is imported again: a run takes a fraction of a second
    run_alone       in a process of its own, forked from one that has imported PyTorch: exit codes, signals, kills
    run_ranks       in several such processes, as torchrun starts them
    run_python      in a new interpreter, whose imports take seconds

Each returns (exit code, stdout, stderr). A script is 'train.py', a path, or a module such as 'lab.measure' of `python -m`.
"""
import configurator
from configurator import TRAIN

import contextlib
import fcntl
import functools
import io
import json
import multiprocessing
import multiprocessing.connection
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

from data.tokens import write_tokens
from model import GPTConfig

ROOT = Path(__file__).resolve().parents[1]
HANG = 400              # seconds until a process counts as hung; pyproject.toml has a longer limit for a whole test
# what a forked process need not import; PyTorch imports its _dynamo with the first optimizer
PRELOADED = ('helpers', 'optim', 'torch._dynamo', 'vision.data', 'engine.run', 'lab.convert.pretrained', 'lab.measure',
             'lab.sweep.__main__', 'data.text', 'torch.nn.parallel', 'torch.distributed.fsdp')
keys_in, keys_of_class = configurator.keys_in, functools.cache(configurator.keys_in)       # parsing a class takes 30 ms
configurator.keys_in = lambda source: (keys_in if isinstance(source, str) else keys_of_class)(source)
configurator.keys_of(TRAIN, GPTConfig)                  # now, so that forked processes know them


# ----------------------------------------------------------------------------- running a script

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
    out, err, before, locked, flock = io.StringIO(), io.StringIO(), os.getcwd(), [], fcntl.flock
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    random_state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    with (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(),
          mock.patch.dict(os.environ, env), mock.patch.object(sys, 'path', sys.path[:]),
          mock.patch.multiple(sys, argv=sys.argv, excepthook=sys.excepthook),
          mock.patch.object(fcntl, 'flock', lambda file, how: (flock(file, how), locked.append(file)))):
        warnings.showwarning = lambda *what: sys.stderr.write(warnings.formatwarning(*what[:4]))       # pytest would collect them
        for kind in DeprecationWarning, ImportWarning, ResourceWarning, RuntimeWarning:         # as Python does; runpy's
            warnings.simplefilter('ignore', kind)
        os.chdir(cwd)
        try:
            code = execute(script, arguments)
        finally:
            os.chdir(before)
    for file in locked:                                 # as the end of a process does
        if str(getattr(file, 'name', '')).endswith('.lock'):
            file.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_rng_state(random_state)
    torch.set_float32_matmul_precision(precision)
    return code, out.getvalue(), err.getvalue()


def run_python(*arguments, cwd='.', **env):
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONIOENCODING': 'utf-8', **env}
    found = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True,
                           encoding='utf-8', timeout=HANG)
    return found.returncode, found.stdout, found.stderr


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
    try:
        if through:
            function, *more = through
            function(*more)
        code = execute(script, arguments)
    except KeyboardInterrupt:                           # as the interpreter ends after Ctrl-C
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Alone:
    """A script in a process of its own, forked from one that has imported PRELOADED and leading a session."""

    def __init__(self, script, *arguments, cwd='.', through=(), **env):
        self.folder = tempfile.TemporaryDirectory()
        self.paths = [Path(self.folder.name, name) for name in ('out', 'err')]
        for path in self.paths:
            path.touch()
        context = multiprocessing.get_context('forkserver')
        context.set_forkserver_preload(list(PRELOADED))
        args = (script, arguments, os.path.abspath(cwd), {**os.environ, **env}, through, self.paths)
        with mock.patch.dict(os.environ, PYTHONPATH=f'{ROOT}{os.pathsep}{ROOT / "tests"}'):     # of the process that imports
            self.process = context.Process(target=become, args=args)
            self.process.start()
        self.pid = self.process.pid

    def out(self):
        return self.paths[0].read_text(encoding='utf-8')

    def err(self):
        return self.paths[1].read_text(encoding='utf-8')

    def end(self):
        self.process.join(HANG)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise TimeoutError(f'it hangs: {self.out()}{self.err()}')
        return self.process.exitcode, self.out(), self.err()


def run_alone(script, *arguments, **more):
    return Alone(script, *arguments, **more).end()


def new_store():
    """The store that torchrun gives its ranks to meet"""
    return dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)


def start_ranks(script, commands, store, **more):
    """Start a script once for each command, (folder, its arguments), as ranks that meet at a store → [Alone]"""
    env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(store.port), WORLD_SIZE=str(len(commands)),
               TORCHELASTIC_USE_AGENT_STORE='True')
    return [Alone(script, *arguments, cwd=cwd, RANK=str(i), **{'LOCAL_RANK': str(i), **more, **env})
            for i, (cwd, *arguments) in enumerate(commands)]


def run_ranks(count, script, *arguments, cwd='.', store=None, **more):
    """Run a script on ranks. If one fails, kill the others. Return the exit code of the first that failed, and all outputs."""
    store = store or new_store()
    ranks = start_ranks(script, [(cwd, *arguments)] * count, store, **more)
    code, deadline = 0, time.monotonic() + HANG
    while (running := [rank.process.sentinel for rank in ranks if rank.process.exitcode is None]) and time.monotonic() < deadline:
        multiprocessing.connection.wait(running, 1)
        failed = [rank.process.exitcode for rank in ranks if rank.process.exitcode]
        if failed and not code:
            time.sleep(0.2)                             # a killed rank counts, and another may have noticed and ended before it
            code = min(0, *(rank.process.exitcode or 0 for rank in ranks)) or failed[0]
            deadline = time.monotonic() + (HANG / 4 if code < 0 else 0)     # the others notice that a rank was killed, and say so
    for rank in ranks:
        rank.process.kill()
        rank.process.join()
    out, err = ''.join(rank.out() for rank in ranks), ''.join(rank.err() for rank in ranks)
    if running and not code:
        raise TimeoutError(f'it hangs: {out}{err}')
    return code, out, err


# ----------------------------------------------------------------------------- what happens to a process, as `through`


def in_each_iteration(does):
    """Call does(iteration) in each iteration of train.py, behind its step."""
    from engine.run import Run
    note = Run.note
    Run.note = lambda self, it, *args: (does(it), note(self, it, *args))


def waits(at):
    """In an iteration, until a signal comes"""
    def does(it):
        while it == at and not signal.getsignal(signal.SIGTERM).__self__.number:        # of engine/device.py's StopRequest
            time.sleep(0.005)

    in_each_iteration(does)


def interrupted(at, number=signal.SIGTERM):
    """Two signals to itself in the middle of an iteration, as clusters send them; of several ranks to one."""
    in_each_iteration(lambda it: [os.kill(os.getpid(), number) for _ in range(2)]
                      if it == at and os.environ.get('RANK', '1') == '1' else None)


def killed(moment):
    """SIGKILL at the moment of this number, of those in which a run writes files; a checkpoint is half written in one."""
    left, save = [moment], torch.save

    def now():
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(function):
        return lambda *args: (now(), function(*args))[1]

    def save_in_halves(state, f):
        whole = io.BytesIO()
        save(state, whole)
        half = whole.tell() // 2
        f.write(whole.getvalue()[:half])
        f.flush()
        now()
        f.write(whole.getvalue()[half:])

    for name in ('fsync', 'replace', 'link', 'remove'):
        setattr(os, name, deadly(getattr(os, name)))
    torch.save = save_in_halves


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
    if ranks > 1:
        found, out, err = run_ranks(ranks, script, *arguments, cwd=cwd, through=through, **env)
    elif through:
        found, out, err = run_alone(script, *arguments, cwd=cwd, through=through, **env)
    else:
        found, out, err = run_here(script, *arguments, cwd=cwd, **env)
    assert found == code, out + err
    return out, err


def write_walk(folder, name='tiny', train=2000, val=500):
    """Write data/<name>: a walk over 13 tokens, which a small model learns to follow quickly."""
    at = Path(folder) / 'data' / name
    at.mkdir(parents=True)
    (at / 'prepare.py').touch()
    walk = np.cumsum(np.random.default_rng(0).integers(0, 3, train + val)) % 13
    write_tokens(at, {'train': [walk[:train]], 'val': [walk[train:]]}, 13, 'bytes')


def rows(run):
    """Return what a run logged, without what depends on the clock or on where it was resumed. The numbers of a dict or a
    list have keys such as grad_norms.qk."""
    found = [json.loads(line) for line in (Path(run) / 'log.jsonl').read_text(encoding='utf-8').splitlines()]
    return [{name: number for key, value in row.items() if not key.endswith('_per_s')
             for name, number in spread(key, value).items() if not name.startswith(('batches.', 'rows_before'))}
            for row in found if 'start' not in row]


def spread(key, value):
    """Return {'layers.qk.0': number, …} of nested dicts and lists, but for the names that an edit of the model gives."""
    if not isinstance(value, (dict, list)) or key in ('aux', 'logged'):
        return {key: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: number for part, inner in parts for name, number in spread(f'{key}.{part}', inner).items()}


def steps(run):
    return [row for row in rows(run) if 'loss' in row]


def evaluations(run):
    return [row for row in rows(run) if 'val_loss' in row]


def checkpoint(run, name='ckpt.pt'):
    return torch.load(Path(run) / name, weights_only=True)


def strict_json(text):
    """The value of JSON in which NaN and Infinity are an error, as most readers have it."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f'{constant} is no JSON'))
