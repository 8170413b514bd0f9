"""engine/run.py: what a run leaves behind. test_train.py has it as a whole."""
import io
import math
import os
import shutil
import subprocess

import pytest
from helpers import strict_json

from engine import run as code
from engine.device import Machine
from engine.files import read_rows
from engine.run import Run, code_hash, code_state, write_row

CONFIG = dict(out_dir='run', init_from='scratch', overwrite=False, eval_only=False, wandb_log=False)


def test_what_is_not_finite_is_written_as_null():
    value = dict(a=[1.5, math.nan, (math.inf, -math.inf)], b=dict(c=math.nan, d='nan', e=None, f=True, g=7), h=0.0)
    expected = dict(a=[1.5, None, [None, None]], b=dict(c=None, d='nan', e=None, f=True, g=7), h=0.0)
    written = io.StringIO()
    write_row(written, value)
    assert written.getvalue().count('\n') == 1 and written.getvalue().endswith('}\n')
    assert strict_json(written.getvalue()) == expected


def test_rows_that_will_come_again_are_dropped(tmp_path, monkeypatch):
    """Those from the iteration on at which the run goes on, and a line that a kill cut short"""
    monkeypatch.chdir(tmp_path)
    os.mkdir('run')
    lines = ['{"iter": 0, "loss": 1}\n', '{"iter": 4, "val_loss": 1}\n', '{"iter": 5, "loss": 1}\n', '{"iter": 1']
    for start, kept in (5, 2), (1, 1), (0, 0), (9, 3):
        (tmp_path / 'run' / 'log.jsonl').write_text(''.join(lines))
        run = Run({**CONFIG, 'init_from': 'resume'}, Machine('cpu', 'float32'))
        run.start = start
        with run.continue_rows('log.jsonl') as f:
            write_row(f, dict(iter=start))
        assert (tmp_path / 'run' / 'log.jsonl').read_text() == ''.join(lines[:kept]) + f'{{"iter": {start}}}\n'


FOREIGN = '{"iter": 0, "loss": 1}\n{"note": "here I changed the rate"}\nbroken}\n[1]\n{"iter": 4, "loss": null}\n{"iter": 5, "lo'


def test_lines_that_a_person_has_written(tmp_path, capsys, monkeypatch):
    """They are passed over, with one line that says so once, and a resumed run keeps them"""
    path = tmp_path / 'log.jsonl'
    path.write_text(FOREIGN)
    for _ in range(2):
        first, second = read_rows(str(path))
        assert (first, second['iter']) == (dict(iter=0, loss=1), 4) and math.isnan(second['loss'])
    assert capsys.readouterr() == ('', f'{path}: passes over line 2 and others, which no run has written\n')
    run = Run({**CONFIG, 'out_dir': str(tmp_path), 'init_from': 'resume'}, Machine('cpu', 'float32'))
    run.start = 4
    run.continue_rows('log.jsonl')
    assert path.read_text() == ''.join(FOREIGN.splitlines(keepends=True)[:4])


@pytest.mark.skipif(not shutil.which('git'), reason='it needs git')
def test_the_code_of_a_run_can_be_had_again(tmp_path, monkeypatch):
    """code.patch, on the commit that run.json names, gives the code that ran: what is changed, and what is new"""
    def git(*arguments, cwd='here'):
        who = ['-c', 'user.name=somebody', '-c', 'user.email=somebody@example.com']
        return subprocess.run(['git', *who, *arguments], cwd=tmp_path / cwd, check=True, capture_output=True, text=True).stdout

    here, there = tmp_path / 'here', tmp_path / 'there'
    here.mkdir()
    git('init', '-q')
    for name in ('model.py', 'train.py'):
        (here / name).write_text(f'# {name}\n')
    git('add', '.')
    git('commit', '-q', '-m', 'first')
    monkeypatch.setattr(code, 'ROOT', str(here))
    commit, changed, patch = code_state()
    assert commit == git('rev-parse', 'HEAD').strip() and (changed, patch) == ([], b'')
    (here / 'model.py').write_text('# another model, naïve\n')
    (here / 'lab').mkdir()
    (here / 'lab' / 'new.py').write_text('# an ablation\n')
    (here / 'notes.txt').write_text('no code')
    commit, changed, patch = code_state()
    assert changed == [' M model.py']
    git('clone', '-q', str(here), str(there), cwd='.')
    git('checkout', '-q', commit, cwd='there')
    (tmp_path / 'code.patch').write_bytes(patch)
    git('apply', str(tmp_path / 'code.patch'), cwd='there')
    for path in [*here.rglob('*.py')]:
        assert (there / path.relative_to(here)).read_text() == path.read_text()
    assert not (there / 'notes.txt').exists()


def test_the_hash_of_the_code(tmp_path, monkeypatch):
    """Each byte of what a training script runs counts. lab/ and the root's other scripts do not"""
    monkeypatch.setattr('engine.run.ROOT', str(tmp_path))
    same, differ = ['lab/measure.py', 'bench.py', 'vision/vit.py'], ['train.py', 'model.py', 'data/tokens.py', 'engine/run.py']
    for name in (*same, *differ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / 'data').rename(tmp_path / 'elsewhere')              # a link to a large disk
    (tmp_path / 'data').symlink_to(tmp_path / 'elsewhere')
    before, of_vision = code_hash(str(tmp_path / 'train.py')), code_hash(str(tmp_path / 'vision' / 'train.py'))
    for name in (*same, *differ):
        (tmp_path / name).write_text(f'# {name}')
        assert (code_hash(str(tmp_path / 'train.py')) == before) == (name in same), name
        assert (code_hash(str(tmp_path / 'vision' / 'train.py')) == of_vision) == (name in same[:2]), name
        (tmp_path / name).write_text(name)
