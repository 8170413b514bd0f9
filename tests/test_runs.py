"""lab/runs.py: the table of runs, what differs between two, and a run in a notebook."""
import json
import math
import os

import pytest
import torch
from helpers import TINY, call, evaluations, flags, rows, run_alone, train

from data.lock import lock_folder
from lab.runs import load


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Write a run of TINY whose validation losses are these, at iterations 0, 10, …, into a folder of the current one"""
    def write(folder, losses=(3.0, 2.0), config={}, about={}, last={}):
        path = tmp_path / folder
        path.mkdir()
        (path / 'config.json').write_text(json.dumps({**TINY, 'log_interval': 1, **config}))
        (path / 'run.json').write_text(json.dumps(about))
        rows = [dict(iter=10 * i, val_loss=loss) for i, loss in enumerate(losses)] + [last] * bool(last)
        (path / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        return path
    monkeypatch.chdir(tmp_path)
    return write


def test_the_table(write_run):
    """By the last validation loss, with the keys that differ, those of the architecture first"""
    write_run('stopped', (3.0, 2.5), dict(n_layer=1, log_interval=5))
    write_run('done', (3.0, 1.5, 2.0), dict(max_iters=20))
    write_run('diverged', (3.0, 2.25), last=dict(iter=15, diverged='the loss'))
    write_run('running', ())
    with lock_folder('running', 'training'):
        lines = [line.split() for line in call('lab.runs', *os.listdir()).splitlines()]
    assert lines == [
        ['run', 'status', 'iterations', 'val', 'loss', 'best', 'n_layer', 'log_interval'],
        ['done', 'done', '20/20', '2.0000', '1.5000', '2', '1'], ['diverged', 'diverged', '15/20', '2.2500', '2.2500', '2', '1'],
        ['stopped', 'stopped', '10/20', '2.5000', '2.5000', '1', '5'], ['running', 'running', '0/20', '2', '1']]
    assert call('lab.runs', 'running', '--keys=n_head').split()[-4:] == ['running', 'stopped', '0/20', str(TINY['n_head'])]


def test_runs_that_differ_in_the_seed_have_a_mean(write_run):
    """With half the width of its 95% interval, of three 4.303 s/√3; those that are not done are left out, and repetitions too"""
    for seed, loss in enumerate((1.0, 2.0, 3.0, 9.0)):
        write_run(f'out-x-seed{seed}', [5.0, loss][:1 if seed == 3 else 2], dict(max_iters=10, seed=seed))
    write_run('zz-repeated', (5.0, 1.0), dict(max_iters=10, seed=0))
    name, *done, mean, half = call('lab.runs', *sorted(os.listdir())).splitlines()[-1].split()
    assert (name, ' '.join(done), mean) == ('out-x', '3 of 4', '2.0000')
    assert float(half) == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)


def test_folders_without_a_run_are_named_and_skipped(write_run):
    """And those whose files are garbled, whatever is in them"""
    os.mkdir('other')
    for name, content in dict(text=b'{"n_layer": ', list=b'[1]', deep=b'[' * 5000 + b']' * 5000, bytes=b'\xff').items():
        (write_run(name) / 'config.json').write_bytes(content)
    for name, content in dict(about=b'3', starts=b'{"starts": 3}', odd=b'{"starts": [3]}').items():
        (write_run(name) / 'run.json').write_bytes(content)
    with open(write_run('log', (2.0,), last=dict(iter='x', val_loss='y')) / 'log.jsonl', 'ab') as f:
        f.write(b'[]\n{"iter": 3, "val_loss": "text"}\n\xff\n')
    code, out, err = run_alone('lab.runs', *sorted(os.listdir()))
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ['run', 'log']
    skipped = [line.split()[1] for line in err.splitlines() if line.startswith('skipped')]
    assert skipped == ['about:', 'bytes:', 'deep:', 'list:', 'odd:', 'other:', 'starts:', 'text:']


def test_two_runs(write_run):
    """Line by line; also the files and versions of their last starts"""
    write_run('a', about=dict(torch='2.13', starts=[dict(code={}), dict(code={'model.py': 'a0', 'optim.py': 'b0'})]))
    write_run('b', (3.0, 1.0), dict(norm='rmsnorm'), dict(torch='2.10', starts=[dict(code={'model.py': 'a1', 'optim.py': 'b0'})]))
    assert [line.split() for line in call('lab.runs', 'a', 'b').splitlines()[-3:]] == [
        ['norm', 'rmsnorm'], ['torch', '2.10', '2.13'], ['model.py', 'a1', 'a0']]


def test_a_run_in_a_notebook(place):
    """The two lines of the documentation"""
    run = str(place / 'run')
    train(place, *flags(**{**TINY, 'max_iters': 5}, out_dir='run'))
    log, model = load(run)
    assert len(log) == len(rows(run)) and list(log['val_loss'].dropna()) == [row['val_loss'] for row in evaluations(run)]
    assert 'grad_norms.qk' in log and not model.training and model(torch.zeros(1, 3, dtype=torch.long))[0].shape == (1, 3, 13)
    os.remove(place / 'run' / 'best.pt')
    assert load(run)[1] is None and load(run, 'ckpt.pt')[1] is not None
