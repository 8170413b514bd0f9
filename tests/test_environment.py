"""The packages, the terminal, the disk and the compiler: training outlives what is missing or breaks, and says so."""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder

import pytest
import torch
from helpers import ROOT, TINY, checkpoint, execute, flags, rows, run_alone, run_here, steps, train
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from engine.device import why_not_compile
from engine.files import open_rows, write_row
from engine.run import Run

KEYS = {**TINY, 'max_iters': 6, 'log_interval': 1}
# the modules of the packages that requirements files name
PACKAGES = {'PIL' if name == 'pillow' else name.replace('-', '_') for path in ROOT.glob('requirements*.txt')
            for name in re.findall(r'^([\w-]+)==', path.read_text(), re.MULTILINE)}


def without(packages, *commands):
    """Give this process no such packages, and run commands: our files are imported anew."""
    find, ours = PathFinder.find_spec, {path.stem for path in ROOT.glob('*')}
    for name in [name for name in sys.modules if name.partition('.')[0] in packages | ours]:
        del sys.modules[name]
    PathFinder.find_spec = lambda name, *where: None if name.partition('.')[0] in packages else find(name, *where)
    for script, *arguments in commands:
        assert execute(script, arguments) == 0, (script, *arguments)


def test_pytorch_and_numpy_are_enough(place):
    """To prepare text, train, sample and time; scipy is asked for in one line"""
    (place / 'text.txt').write_text('some text of my own\n' * 50)
    shutil.copy(ROOT / 'data' / 'prepare.py', place / 'data')
    commands = [('data/prepare.py', '--name=own', '--files=text.txt', '--tokenizer=char'),
                ('train.py', *flags(**{**KEYS, 'dataset': 'own', 'max_iters': 1}, out_dir='bare')),
                ('sample.py', '--out_dir=bare', '--max_new_tokens=5', '--device=cpu'),
                *((path, '--help') for path in sorted(ROOT.glob('data/*/prepare.py'))),
                ('bench.py', 'bare/config.json', '--bench_iters=1', '--bench_warmup=0')]
    code, out, err = run_alone('lab.sweep', '--help', cwd=place, through=(without, PACKAGES - {'torch', 'numpy'}, *commands))
    assert code == 1 and re.fullmatch(r'error: \w+ is not installed: pip install -r requirements(-lab)?\.txt\n', err), out + err


def test_torchrun_ends_with_our_line(place):
    """Which stands by itself behind torchrun's traceback"""
    code, _, err = run_here('train.py', '--n_head=5', cwd=place, RANK='0', LOCAL_RANK='0', WORLD_SIZE='1',
                            TORCHELASTIC_ERROR_FILE=str(place / 'error.json'))
    last = str(ChildFailedError('train.py', {0: ProcessFailure(0, 1, code, str(place / 'error.json'))})).splitlines()[-4:]
    assert [line.strip() for line in last if line.strip('= ')] == [err.strip()]


def nobody_reads_stdout():
    read, write = os.pipe()
    os.close(read)
    sys.stdout = open(write, 'w')


def test_training_needs_no_stdout(place):
    """Its log is complete, and one line tells that nothing more is printed"""
    _, err = train(place, *flags(**KEYS, out_dir='unread'), through=(nobody_reads_stdout,))
    assert len(steps(place / 'unread')) == 6 and checkpoint(place / 'unread')['iter'] == 6
    assert err.count('\n') == err.count('stdout takes no more lines') == 1


def test_rows_wait_for_room(tmp_path, capsys):
    """On a full disk, of which a limit on the size of files has the effect. They are complete when there is room again"""
    limits, path = resource.getrlimit(resource.RLIMIT_FSIZE), str(tmp_path / 'log.jsonl')
    with open_rows(path) as file:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
            for it in range(3):
                write_row(file, dict(iter=it))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert os.path.getsize(path) == 20 and capsys.readouterr().err.count('could not be written') == 1
        write_row(file, dict(iter=3))
    assert [row['iter'] for row in rows(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize('script, says', [('echo a warning >&2; echo fatal error: no headers >&2; exit 1', 'no headers'),
                                          ('exit 0', 'it writes nothing')])
def test_a_compiler_that_fails(tmp_path, monkeypatch, script, says):
    (tmp_path / 'mine').write_text(f'#!/bin/sh\n{script}\n')
    (tmp_path / 'mine').chmod(0o755)
    monkeypatch.setenv('CXX', str(tmp_path / 'mine'))
    why = why_not_compile(torch.device('cpu'))
    assert f'mine fails ({"fatal error: " * (says == "no headers")}{says})' in why and 'CXX' in why


def test_a_folder_that_the_locale_cannot_name(place):
    command = [sys.executable, ROOT / 'train.py', *flags(**KEYS, out_dir='é ü')]
    ascii_only = os.environ | dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
    found = subprocess.run(command, cwd=place, env=ascii_only, capture_output=True, text=True)
    assert found.returncode == 1 and found.stderr.startswith('error: out_dir=') and found.stderr.count('\n') == 1
    assert 'set PYTHONUTF8=1' in found.stderr and not (place / 'é ü').exists()
    assert subprocess.run(command, cwd=place, env=ascii_only | dict(PYTHONUTF8='1')).returncode == 0


def test_a_run_goes_on_without_wandb(capsys):
    run = Run.__new__(Run)
    run.wandb = object()            # whose log fails
    run.to_wandb(lambda wandb: wandb.log({}))
    assert run.wandb is None and 'the run goes on without' in capsys.readouterr().err


def test_without_a_compiler_and_in_another_dtype(place):
    """A run is not compiled, and says so in one line and in run.json. It goes on from float32 in float16, whose scaler starts
    anew, and back"""
    for dtype, until in ('float32', 2), ('float16', 4), ('float32', 6):
        keys = {**KEYS, 'dtype': dtype, 'max_iters': until, 'init_from': 'auto', 'eval_interval': 2, 'compile': True}
        out, err = train(place, *flags(**keys, out_dir='eager'), CXX='no-such-compiler')
        assert not err and out.count('this run is not compiled, and therefore slower: there is no C++ compiler') == 1
        assert json.loads((place / 'eager' / 'run.json').read_text())['compiled'] is False
        assert bool(checkpoint(place / 'eager')['scaler']) == (dtype == 'float16')
    assert len(steps(place / 'eager')) == 6
