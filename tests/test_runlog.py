"""engine/run.py, log.py and code.py: what a run leaves behind. test_train.py has it as a whole."""
import io
import math
import os
import shutil
import subprocess

import pytest
import torch
from helpers import strict_json

from engine import code
from engine.code import code_hash, code_state
from engine.device import Machine
from engine.errors import last_row, read_rows
from engine.log import Speed, clock, open_rows, progress, write_row
from engine.run import Run

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
        run = Run({**CONFIG, 'init_from': 'resume'})
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
    run = Run({**CONFIG, 'out_dir': str(tmp_path), 'init_from': 'resume'})
    run.start = 4
    run.continue_rows('log.jsonl')
    assert path.read_text() == ''.join(FOREIGN.splitlines(keepends=True)[:4])


def test_a_last_line_without_its_end(tmp_path):
    """Some editors leave the end out; of what a kill has cut, nothing stays"""
    path = tmp_path / 'rows.jsonl'
    for before, after in (('{"iter": 1}', '{"iter": 1}\n'), ('{"iter": 1}\n{"iter"', '{"iter": 1}\n'),
                          ('{"iter": 1}\nmy note', '{"iter": 1}\nmy note\n')):
        path.write_text(before)
        with open_rows(path) as f:
            write_row(f, dict(iter=2))
        assert path.read_text() == f'{after}{{"iter": 2}}\n'


def test_numbers_that_are_not_finite(tmp_path):
    """null, as our rows have it for them, is NaN where rows are read; a row that a kill has cut off is none"""
    path = tmp_path / 'a.jsonl'
    path.write_text('{"iter": 0, "x": null}\n{"iter": 1, "x": NaN}\n{"iter": "ten", "x": 1}\n{"iter": 2, "x": 2')
    rows = read_rows(str(path))
    assert len(rows) == 2 and all(row['x'] != row['x'] for row in rows)


@pytest.mark.parametrize('text, last', [
    ('', -1), ('{"iter": 3, "loss": 1}\n', 3), ('{"iter": 3}\n{"iter": 4', 3), ('no json\n', -1),
    ('{"iter": 1}\n' * 10 ** 5 + '{"iter": 7}\n[]\n{"note": 1}\n', 7)])
def test_the_last_iteration_of_a_log(tmp_path, text, last):
    assert last_row(tmp_path / 'nowhere')['iter'] == -1
    (tmp_path / 'log.jsonl').write_text(text)
    assert last_row(tmp_path / 'log.jsonl')['iter'] == last


def test_progress(monkeypatch, capsys):
    """A line at most every ten seconds, with what is done and what is left by the pace so far"""
    clock = iter([100, 100, 104, 112, 113, 125])
    monkeypatch.setattr('time.monotonic', lambda: next(clock))
    assert list(progress('abcde', 'letters')) == list('abcde')
    assert capsys.readouterr() == ('', 'letters: 2 of 5, 0m18s left\nletters: 4 of 5, 0m06s left\n')
    monkeypatch.undo()
    assert list(progress(iter(range(9)), 'numbers', 9)) == list(range(9)) and capsys.readouterr() == ('', '')


@pytest.mark.parametrize('start', [0, 7])
def test_the_time_left_does_not_count_compiling(start, monkeypatch, capsys):
    """Evaluations at 0, 10, … take 2 s, iterations 1 s; the first of each takes 100 s more, in which it compiles. So does
    iteration 12, which compiles once more. A run that a signal has stopped at 7 evaluates after it has trained."""
    now = [1000.0]

    def pass_by(seconds):
        now[0] += seconds

    def back_end(graph, inputs):
        pass_by(100)
        return graph.forward

    monkeypatch.setattr('time.monotonic', lambda: now[0])
    monkeypatch.setattr('time.time_ns', lambda: int(1e9 * now[0]))          # torch._dynamo's clock
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend=back_end, dynamic=False)
    speed, lines = Speed('tokens', 600, 0, Machine('cpu'), 30), {}
    for it in range(start, 30):
        if it % 10 == 0:
            with speed.paused():
                for _ in progress('ab', 'evaluation'):
                    compiled(torch.zeros(2, 1))
                    pass_by(1)
        compiled(torch.zeros(3 if it < 12 else 4, 1))
        pass_by(1)
        speed.iteration(it)
        lines[it] = speed.since_last_line(it)
    torch._dynamo.reset()
    assert now[0] == 1000 + 300 + (30 - start) + 2 * (3 if start == 0 else 2)
    assert {per_s for per_s, *_ in lines.values()} == {600}
    for it, (_, _, left) in lines.items():              # the pace so far, with evaluations behind the first iteration
        evaluations = 2 * len([i for i in (10, 20) if start < i <= it])
        pace = 1 + evaluations / (it - start) if it > start else 1
        assert left == clock(pace * (30 - it - 1)), it
    assert capsys.readouterr().err == ''                # nor that the first batch of an evaluation took long


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


@pytest.mark.skipif(not shutil.which('git'), reason='it needs git')
def test_thousands_of_new_files_are_left_out(tmp_path, monkeypatch, capsys):
    """Such as an environment that git does not ignore: a patch of each would take minutes"""
    subprocess.run(['git', 'init', '-q'], cwd=tmp_path, check=True)
    (tmp_path / 'environment').mkdir()
    for number in range(5000):
        (tmp_path / 'environment' / f'{number:04}.py').write_text('x = 1\n')
    (tmp_path / 'ablation.py').write_text('x = 2\n')
    monkeypatch.setattr(code, 'ROOT', str(tmp_path))
    _, changed, patch = code_state()
    assert changed == ['code.patch leaves out 4901 new .py files, such as environment/0099.py']
    assert capsys.readouterr().out.startswith(changed[0])
    assert patch.count(b'diff --git') == code.MAX_NEW_FILES and b'ablation.py' in patch


def test_the_hash_of_the_code(tmp_path, monkeypatch):
    """Comments, docstrings and layout do not change it; code does, in the script and in what it imports through others.
    What it does not import, and lab/, do not count"""
    monkeypatch.setattr('engine.code.ROOT', str(tmp_path))
    for folder in ('data', 'lab'):
        (tmp_path / folder).mkdir()
    files = {'train.py': 'from data.tokens import read\nif True:\n    from lab.measure import probe\nx = read(1)\n',
             'data/tokens.py': 'import model\n\n\ndef read(a):\n    """Reads."""\n    return a + 1\n',
             'model.py': 'import torch\nwidth = 3\n', 'lab/measure.py': 'probe = 1\n', 'other.py': 'y = 2\n'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = code_hash(str(tmp_path / 'train.py'))
    same = {'train.py': '# why\n' + files['train.py'], 'other.py': 'y = 3\n', 'lab/measure.py': 'probe = 2\n',
            'data/tokens.py': files['data/tokens.py'].replace('Reads.', 'It reads.').replace('a + 1', '(a\n            + 1)')}
    differ = {'train.py': files['train.py'] + 'y = 1\n', 'data/tokens.py': files['data/tokens.py'].replace('a + 1', 'a + 2'),
              'model.py': 'import torch\nwidth = 4\n'}
    for changes, wanted in (same, True), (differ, False):
        for name, text in changes.items():
            (tmp_path / name).write_text(text)
            assert (code_hash(str(tmp_path / 'train.py')) == before) == wanted, name
            (tmp_path / name).write_text(files[name])
