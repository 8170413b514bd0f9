"""The terminal, the disk and the compiler: training outlives what is missing or breaks, and says so."""
import errno
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from helpers import ROOT, TINY, checkpoint, flags, rows, run_python, steps, train

from engine.files import open_rows, write_row
from engine.run import Run

KEYS = {**TINY, 'max_iters': 6, 'log_interval': 1}


# ----------------------------------------------------------------------------- packages

BARE = '''
import importlib.machinery, runpy, shlex, sys
others, find = set({others!r}), importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda _, name, *where: None if name.split('.')[0] in others else find(name, *where))
for command in {commands!r}:
    sys.argv = shlex.split(command)
    run = runpy.run_path if sys.argv[0].endswith('.py') else runpy.run_module
    try:
        run(sys.argv[0], run_name='__main__')
    except SystemExit as end:
        assert not end.code, command
'''


def packages(files='requirements*.txt'):
    """The modules of the packages that requirements files name"""
    names = re.findall(r'^([\w-]+)==', ''.join(path.read_text() for path in ROOT.glob(files)), re.MULTILINE)
    return {'PIL' if name == 'pillow' else name.replace('-', '_') for name in names}


def test_pytorch_and_numpy_are_enough(place):
    """To prepare text, train, sample and time; and with matplotlib to draw the loss"""
    tiny = ' '.join(flags(**{**KEYS, 'dataset': 'own', 'max_iters': 1}, out_dir='bare'))
    (place / 'own').mkdir()
    (place / 'own' / 'text.txt').write_text('some text of my own\n' * 50)
    commands = [f'{ROOT}/data/textfiles/prepare.py --files=own/text.txt --tokenizer=char --folder=data/own',
                f'{ROOT}/train.py {tiny}', f'{ROOT}/sample.py --out_dir=bare --max_new_tokens=5 --device=cpu',
                f'{ROOT}/bench.py {place}/bare/config.json --bench_iters=1 --bench_warmup=0',
                *(f'{path} --help' for path in sorted(ROOT.glob('data/*/prepare.py')))]
    others = packages() - {'torch', 'numpy'}
    for without, run in ((others, commands), (others - {'matplotlib', 'PIL'}, ['lab.plot bare'])):
        code, out, err = run_python('-c', BARE.format(others=without, commands=run), cwd=place)
        assert code == 0, out + err


def test_a_package_that_is_not_installed(place):
    code, _, err = run_python('-c', BARE.format(others={'scipy'}, commands=['lab.sweep --help']), cwd=place)
    assert (code, err) == (1, 'error: scipy is not installed: pip install -r requirements-lab.txt\n')


# ----------------------------------------------------------------------------- the terminal

def stdout_to(kind):
    """Gives the process another stdout: a device, a pipe that nobody reads, or one that knows no more than ASCII."""
    if kind == 'ascii':
        sys.stdout.reconfigure(encoding='ascii', errors='strict')
    else:
        read, file = os.pipe() if kind == 'pipe' else (os.open(os.devnull, os.O_RDONLY), os.open(kind, os.O_WRONLY))
        os.close(read)
        os.dup2(file, 1)
        sys.stdout = open(1, 'w', encoding='utf-8', closefd=False)


@pytest.mark.parametrize('kind', ['pipe', *(pytest.param(kind, marks=pytest.mark.long) for kind in ('ascii', '/dev/full'))])
def test_training_needs_no_stdout(place, kind):
    """Its log is complete, and one line tells that nothing more is printed"""
    name = f'stdout-{Path(kind).name}'
    out, err = train(place, *flags(**KEYS, out_dir=name), through=(stdout_to, kind))
    assert len(steps(place / name)) == 6 and checkpoint(place / name)['iter'] == 6
    assert ('1 ? ' in out) == (kind == 'ascii') and (not out) == (kind != 'ascii')
    assert err.count('\n') == (kind != 'ascii') == err.count('stdout takes no more lines')


# ----------------------------------------------------------------------------- a full disk

class Full(io.RawIOBase):
    """A file on a disk that takes so many bytes"""
    name = 'log.jsonl'

    def __init__(self, room):
        self.room, self.content = room, b''

    def writable(self):
        return True

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, 'No space left on device')
        taken = bytes(data[:self.room])
        self.room -= len(taken)
        self.content += taken
        return len(taken)


def test_rows_wait_for_room(capsys):
    """And are complete when there is some again"""
    disk = Full(20)
    file = io.TextIOWrapper(io.BufferedWriter(disk))
    for it in range(3):
        write_row(file, dict(iter=it))
    assert disk.content == b'{"iter": 0}\n{"iter":'
    said = capsys.readouterr().err
    assert said.count('\n') == 1 and 'log.jsonl could not be written (No space left on device)' in said
    disk.room = 1000
    write_row(file, dict(iter=3))
    assert disk.content == b''.join(b'{"iter": %d}\n' % it for it in range(4))


def test_a_run_goes_on_without_wandb(tmp_path, capsys):
    class Breaks:
        def log(self, row, step):
            raise OSError(errno.ENOSPC, 'No space left on device')

    run = Run.__new__(Run)
    run.writes, run.wandb, run.log = True, Breaks(), open_rows(str(tmp_path / 'log.jsonl'))
    run.row(iter=0)
    run.row(iter=1)
    run.log.close()
    assert [row['iter'] for row in rows(tmp_path)] == [0, 1]
    assert 'the run goes on without' in capsys.readouterr().err


# ----------------------------------------------------------------------------- the compiler, dtypes and threads

def test_without_a_compiler(place):
    """A run is not compiled, and says so in one line and in run.json; its losses are those of compile=False"""
    out, err = train(place, *flags(**{**KEYS, 'compile': True, 'optimizer': 'sgdw'}, out_dir='eager'), CXX='no-such-compiler')
    assert not err and out.count('this run is not compiled, and therefore slower: there is no C++ compiler') == 1
    told, config = (json.loads((place / 'eager' / f'{name}.json').read_text()) for name in ('run', 'config'))
    assert told['compiled'] is False and config['compile'] is True
    out, _ = train(place, *flags(**KEYS, optimizer='sgdw', out_dir='plain'), CXX='no-such-compiler')
    assert 'not compiled' not in out and rows(place / 'plain') == rows(place / 'eager')


def test_a_run_goes_on_in_another_dtype(place):
    """From float32 to float16, whose scaler starts anew, and back"""
    for dtype, until in ('float32', 2), ('float16', 4), ('float32', 6):
        keys = {**KEYS, 'dtype': dtype, 'max_iters': until, 'init_from': 'auto', 'eval_interval': 2}
        train(place, *flags(**keys, out_dir='dtypes'))
        assert bool(checkpoint(place / 'dtypes')['scaler']) == (dtype == 'float16')
    assert len(steps(place / 'dtypes')) == 6
