"""lab/runs.py: the table of runs, what differs between two, and a run in a notebook."""
import csv
import json
import math
import os

import pytest
import torch
from helpers import TINY, call, evaluations, flags, rows, run_alone, train

from data.lock import lock_folder
from lab.runs import load


def write_run(folder, losses=(3.0, 2.0), config={}, about={}, patch='', last={}):
    """A run of TINY whose validation losses are these, at iterations 0, 10, …"""
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps({**TINY, 'out_dir': str(folder), **config}))
    (folder / 'run.json').write_text(json.dumps(dict(commit='c0ffee', torch='2.13', data='da7a') | about))
    (folder / 'code.patch').write_text(patch)
    lines = [row for i, loss in enumerate(losses) for row in (
        dict(iter=10 * i, val_loss=loss), dict(iter=10 * i, loss=loss, tokens_per_s=1000 * (i + 1)))]
    (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in [*lines, *[last] * bool(last)]))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table(here):
    """By the last validation loss, with the keys that differ, those of the architecture first"""
    write_run(here / 'stopped', (3.0, 2.5), dict(n_layer=1, log_interval=5))
    write_run(here / 'done', (3.0, 1.5, 2.0), dict(max_iters=20))
    write_run(here / 'diverged', (3.0, 2.25), last=dict(iter=15, diverged='the loss'))
    write_run(here / 'running', ())
    lock = lock_folder(str(here / 'running'), 'training')
    out = call('lab.runs', *os.listdir(), '--csv=runs.csv')
    head, *lines = [line.split() for line in out.splitlines()[:5]]
    assert head[-2:] == ['n_layer', 'log_interval'] and 'means' not in out
    assert [line[:2] for line in lines] == [
        ['done', 'done'], ['diverged', 'diverged'], ['stopped', 'stopped'], ['running', 'running']]
    assert lines[0][2:6] == ['20/20', '2.0000', '1.5000', '2,000']
    with open('runs.csv', encoding='utf-8', newline='') as f:
        table = list(csv.DictReader(f))
    assert [row['iterations'] for row in table] == ['20/20', '15/20', '10/20', '0/20'] and table[3]['val loss'] == ''
    assert [row['n_layer'] for row in table] == ['2', '2', '1', '2']
    lock.close()
    assert 'running stopped' in ' '.join(call('lab.runs', 'running', '--keys=n_head').split())


def test_runs_that_differ_in_the_seed_have_a_mean(here):
    """With half the width of its 95% interval, of three 4.303 s/√3; those that are not done are left out, and repetitions too"""
    for seed, loss in enumerate((1.0, 2.0, 3.0, 9.0)):
        write_run(here / f'out-x-seed{seed}', [5.0, loss][:1 if seed == 3 else 2], dict(max_iters=10, seed=seed))
    write_run(here / 'zz-repeated', (5.0, 1.0), dict(max_iters=10, seed=0))
    out = call('lab.runs', *sorted(os.listdir()))
    half = 4.303 / math.sqrt(3)
    name, *rest, mean, interval = out.partition('means over seeds:')[2].splitlines()[-1].split()
    assert (name, ' '.join(rest), mean) == ('out-x', '3 of 4', '2.0000') and float(interval) == pytest.approx(half, abs=1e-3)


def test_folders_without_a_run_are_named_and_skipped(here):
    """And those whose files are garbled, whatever is in them"""
    write_run(here / 'good', (3.0, 2.5))
    deep = b'[' * 5000 + b']' * 5000
    for name, content in dict(text=b'{"n_layer": ', list=b'[1]', number=b'7', deep=deep, bytes=b'\xff\x00').items():
        write_run(here / name)
        (here / name / 'config.json').write_bytes(content)
    for name, content in dict(about=b'3', starts=b'{"starts": 3}', odd=b'{"starts": [3]}').items():
        write_run(here / name)
        (here / name / 'run.json').write_bytes(content)
    (here / 'other').mkdir()
    write_run(here / 'log', (2.0,), last=dict(iter='x', val_loss='y'))
    with open(here / 'log' / 'log.jsonl', 'ab') as f:
        f.write(b'[]\n{"iter": 3, "val_loss": "text", "tokens_per_s": []}\n\xff\n')
    code, out, err = run_alone('lab.runs', *sorted(os.listdir()))
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:3]] == ['log', 'good']
    skipped = [line.split()[1].split('/')[0] for line in err.splitlines() if line.startswith('skipped')]
    assert skipped == ['about', 'bytes', 'deep', 'list', 'number', 'odd', 'other', 'starts', 'text']


def test_two_runs(here):
    """Keys, files of code.patch, data and versions; run.json may be a list of starts, of which the last counts"""
    patch = 'diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-1\n+{1}\n'
    write_run(here / 'a', patch=patch.format('model.py', 1) + patch.format('optim.py', 1))
    about = dict(torch='2.10', starts=[dict(data='old'), dict(data='other')])
    other = patch.format('model.py', 2) + patch.format('lab/x.py', 1)
    write_run(here / 'b', config=dict(norm='rmsnorm'), about=about, patch=other)
    out = call('lab.runs', 'a', 'b')
    assert [line.split() for line in out.partition('differences:\n')[2].splitlines()] == [
        ['a', 'b'], ['key', 'norm', '–', 'rmsnorm'], ['code', 'model.py', 'edited', 'edited', 'differently'],
        ['code', 'optim.py', 'edited', '–'], ['code', 'lab/x.py', '–', 'edited'], ['data', 'fingerprint', 'da7a', 'other'],
        ['torch', '2.13', '2.10']]
    write_run(here / 'c', patch=patch.format('model.py', 1) + patch.format('optim.py', 1))
    assert 'none but the folder' in call('lab.runs', 'a', 'c')
    write_run(here / 'd')
    assert 'differences:' not in call('lab.runs', 'a', 'c', 'd')


def test_a_run_in_a_notebook(place):
    """The two lines of the documentation"""
    run = str(place / 'run')
    train(place, *flags(**{**TINY, 'max_iters': 5}, out_dir='run'))
    log, model = load(run)
    assert len(log) == len(rows(run)) and list(log['val_loss'].dropna()) == [row['val_loss'] for row in evaluations(run)]
    assert 'grad_norms.qk' in log and not model.training and model(torch.zeros(1, 3, dtype=torch.long))[0].shape == (1, 3, 13)
    os.remove(place / 'run' / 'best.pt')
    assert load(run)[1] is None and load(run, 'ckpt.pt')[1] is not None
    with pytest.raises(ValueError, match='nowhere is not the folder of a run'):
        load('nowhere')
