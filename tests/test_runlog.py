"""engine/run.py: what a run leaves behind. test_train.py has it as a whole."""
import json
import math
import os
import shutil
import subprocess

import pytest

from engine import run as code
from engine.device import Machine
from engine.files import read_rows
from engine.run import Run, code_hash, code_state, write_row

CONFIG = dict(out_dir='run', init_from='scratch', overwrite=False, eval_only=False, wandb_log=False)


def test_rows_that_will_come_again_are_dropped(tmp_path, monkeypatch, capsys):
    """Those from the iteration on at which the run goes on, and a line that a kill cut short. What is not finite is written as
    null"""
    monkeypatch.chdir(tmp_path)
    os.mkdir('run')
    path = tmp_path / 'run' / 'log.jsonl'
    lines = ['{"iter": 0, "loss": 1}\n', '{"iter": 4, "loss": null}\n', '{"iter": 5}\n', '{"iter": 1']
    for start, kept in (5, 2), (4, 1), (9, 3):
        path.write_text(''.join(lines))
        run = Run({**CONFIG, 'init_from': 'resume'}, Machine('cpu', 'float32'))
        run.start = start
        with run.continue_rows('log.jsonl') as f:
            write_row(f, dict(iter=start, a=[1.5, math.nan, (math.inf, 7)], b=dict(c=-math.inf, d='nan')))
        written = path.read_text().removeprefix(''.join(lines[:kept]))
        assert json.loads(written) == dict(iter=start, a=[1.5, None, [None, 7]], b=dict(c=None, d='nan'))
    assert [row['iter'] for row in read_rows('run/log.jsonl')] == [0, 4, 5, 9]
    capsys.readouterr()
    path.write_text('[1]\n' + lines[0] + 'nonsense\n' + lines[2] + lines[3])
    assert [row['iter'] for row in read_rows('run/log.jsonl')] == [0, 5]
    assert capsys.readouterr().err == 'run/log.jsonl: passed over 3 lines that are no rows\n'


@pytest.mark.skipif(not shutil.which('git'), reason='it needs git')
def test_the_code_of_a_run_can_be_had_again(tmp_path, monkeypatch):
    """code.patch, on the commit that run.json names, gives the code that ran: what is changed, and what is new"""
    def git(*arguments):
        who = ['-c', 'user.name=somebody', '-c', 'user.email=somebody@example.com', '-C', str(tmp_path)]
        subprocess.run(['git', *who, *arguments], check=True, capture_output=True)

    monkeypatch.setattr(code, 'ROOT', str(tmp_path))
    (tmp_path / 'model.py').write_text('# model\n')
    git('init', '-q'), git('add', '.'), git('commit', '-q', '-m', 'first')
    assert code_state()[1:] == ([], b'')
    edits = {'model.py': '# another model, naïve\n', 'new.py': '# an ablation\n'}
    for name, text in {**edits, 'notes.txt': 'no code'}.items():
        (tmp_path / name).write_text(text, encoding='utf-8')
    commit, changed, patch = code_state()
    assert changed == [' M model.py']
    git('clean', '-qf'), git('checkout', '-q', '-f', commit)
    (tmp_path / 'code.patch').write_bytes(patch)
    git('apply', 'code.patch')
    assert {name: (tmp_path / name).read_text(encoding='utf-8') for name in edits} == edits
    assert not (tmp_path / 'notes.txt').exists()


def test_the_hash_of_the_code(tmp_path, monkeypatch):
    """Each byte of what a training script runs counts. lab/ and the root's other scripts do not"""
    monkeypatch.setattr('engine.run.ROOT', str(tmp_path))
    same, differ = ['lab/measure.py', 'bench.py', 'vision/vit.py'], ['train.py', 'model.py', 'data/tokens.py', 'engine/run.py']
    for name in (*same, *differ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before, of_vision = code_hash(str(tmp_path / 'train.py')), code_hash(str(tmp_path / 'vision' / 'train.py'))
    for name in (*same, *differ):
        (tmp_path / name).write_text(f'# {name}')
        assert (code_hash(str(tmp_path / 'train.py')) == before) == (name in same), name
        assert (code_hash(str(tmp_path / 'vision' / 'train.py')) == of_vision) == (name in same[:2]), name
        (tmp_path / name).write_text(name)
