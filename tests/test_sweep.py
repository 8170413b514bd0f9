"""lab/sweep: the runs that it plans, starts, stops and goes on with. tests/test_sweep_plan.py has which of them come next."""
from configurator import defaults_of, parse_args

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, TINY, Alone, forks_its_runs, rows, run_here, write_walk
from test_sweep_plan import fake_runs

from data.lock import lock_file, lock_folder
from lab.sweep.plan import read_sweep, rows_of_file
from lab.sweep.table import Results, key_of, labels_of, make_tables, read_csv
from model import GPTConfig

DEFAULTS = defaults_of(str(ROOT / 'train.py'), GPTConfig)
SWEEP = defaults_of(str(ROOT / 'lab' / 'sweep' / '__main__.py'))
KEYS = {**TINY, 'n_layer': 1, 'n_head': 1, 'max_iters': 100, 'eval_interval': 50, 'lr_decay_iters': 100,
        'gradient_accumulation_steps': 1, 'warmup_iters': 0, 'min_lr': 0.0}
# two runs that end, one that diverges, two whose data is damaged
GRID = '''
arguments, out_dir, seeds, jobs, extend = 'base.json', 'swept', 2, 2, 0
grids = [dict(arch=['off'], learning_rate=[0.01, 1e30]), dict(arch=['off'], dataset=['late'], learning_rate=[0.01])]
'''

@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder to run in, with data/tiny, a walk over 13 tokens, and data/late, in which one of the training tokens is none."""
    folder = tmp_path_factory.mktemp('sweep')
    write_walk(folder)
    write_walk(folder, 'late')
    tokens = np.fromfile(folder / 'data' / 'late' / 'train.bin', np.uint16)
    tokens[165] = 60                                    # in a window that is read after the start
    tokens.tofile(folder / 'data' / 'late' / 'train.bin')
    meta = json.loads((folder / 'data' / 'late' / 'meta.json').read_text())
    del meta['samples']                                 # as in older data, or each start would notice it
    (folder / 'data' / 'late' / 'meta.json').write_text(json.dumps(meta))
    (folder / 'base.json').write_text(json.dumps(KEYS))
    (folder / 'grid.py').write_text(GRID)
    return folder


def launch(cwd, *arguments, hold=None, deaf=False, forks=True):
    """A sweep as the leader of a group of processes"""
    return Alone('lab.sweep', *arguments, cwd=cwd, through=(forks_its_runs, hold, deaf) if forks else (), CUDA_VISIBLE_DEVICES='')


def ended(sweep, code=0):
    """What it printed, once it has left no process of its group behind"""
    found, out, err = sweep.end()
    with pytest.raises(ProcessLookupError):
        os.killpg(sweep.pid, 0)
    assert found == code and 'Traceback' not in out + err, out + err
    return out + err


@pytest.fixture(scope='module')
def swept(place):
    assert ended(launch(place, 'grid.py')).startswith('0 runs of swept/runs.csv are done, 5 to do, 2 at once\n')
    return place / 'swept'


def call(*arguments, error=False):
    """A sweep in this process → what it prints; with `error`, the one line that it ends with"""
    code, out, err = run_here('lab.sweep', *arguments)
    assert code == error, err
    assert not error or err.startswith('error: ') and err.count('\n') == 1
    return err if error else out


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Runs that only write a log: how each was started"""
    return fake_runs(monkeypatch, tmp_path)(lambda rate, it, seed: 1.0).started


def planned(*grids, first=(), seeds=1):
    rows = rows_of_file({**SWEEP, 'grids': list(grids), 'seeds': seeds}, arguments=first)
    return {run['name']: run for row in rows for point in row.grid for run in (row.run_at(point, seed) for seed in row.seeds)}


# ----------------------------------------------------------------------------- the plan

def test_a_plan_is_the_product_of_axes_and_seeds():
    """Each run is named by its axes, and its config is what its labels say, on top of what all get first"""
    runs = planned(dict(optim=['sgdw', 'none'], n_layer=[1, 2], n_head=[4]), first=['--n_embd=8', '--n_layer=7'], seeds=2)
    assert list(runs) == [f'optim={optim},n_layer={n},n_head=4,seed={seed}'
                          for optim in ('sgdw', 'none') for n in (1, 2) for seed in (1, 2)]
    for name, run in runs.items():
        config, labels = run['config'], run['labels']
        assert labels == dict(pair.split('=') for pair in name.split(',')) and config == parse_args(run['arguments'], DEFAULTS)
        assert config['optimizer'] == ('adamw' if labels['optim'] == 'none' else 'sgdw')
        assert [config[key] for key in ('n_layer', 'n_head', 'n_embd')] == [int(labels['n_layer']), 4, 8]
        assert config['seed'] == config['data_seed'] == int(labels['seed'])


def test_a_grid_may_have_its_own_number_of_seeds(faked):
    """And the command line has the last word. Labels may be numbers"""
    Path('grid.py').write_text("seeds = 1\ngrids = [dict(n_layer=[1], seeds=3), dict(n_layer={2: '--n_layer=2'})]\n")
    call('grid.py')
    assert [run['name'] for run in faked] == [f'n_layer={n},seed={seed}' for n, seed in ((1, 1), (1, 2), (1, 3), (2, 1))]
    call('grid.py', '--seeds=2', '--out_dir=two')
    assert len(faked) == 3 + 1 + 2 + 2


def test_several_grids():
    """What lacks an axis is named without it. Names are safe for a file system, and arguments are split as a shell does"""
    runs = planned({'model': {'GPT-2, ½/3': '', 'two words': "--n_layer=3 --wandb_run_name='a b'"}})
    assert list(runs)[0] == 'model=GPT-2,_½_3,seed=1' and runs['model=two_words,seed=1']['config']['wandb_run_name'] == 'a b'
    runs = planned(dict(arch=['pre'], n_layer=[1]), dict(arch=['pre'], n_layer=[1, 2], dropout=[0.5]))
    assert {name: run['config']['dropout'] for name, run in runs.items()} == {
        'arch=pre,n_layer=1,seed=1': 0, 'arch=pre,n_layer=1,dropout=0.5,seed=1': 0.5,
        'arch=pre,n_layer=2,dropout=0.5,seed=1': 0.5}


@pytest.mark.parametrize('grids, says', [
    ([dict(model={'a b': '--n_layer=1', 'a/b': '--n_layer=2'})], 'two rows are named model=a/b, or alike'),
    ([dict(dropout=['1e-1', '0.10'])], 'or alike'), ([dict(n_layer=[1])] * 2, 'two rows are named n_layer=1'),
    ([dict(seed=[7])], 'seed cannot be an axis')])
def test_a_grid_that_is_none(grids, says):
    with pytest.raises(ValueError, match=says):
        planned(*grids)


@pytest.mark.parametrize('path', sorted((ROOT / 'config' / 'sweep').glob('*.py')), ids=lambda path: path.stem)
def test_a_sweep_of_the_repository(path, monkeypatch):
    """It plans rows that differ into a folder of its own, its head says how, and the rows of its csv are among them, except for
    those of a screen"""
    monkeypatch.chdir(ROOT)
    text, file, own = path.read_text(encoding='utf-8'), read_sweep(path), ROOT / 'results' / 'csv' / f'{path.stem}.csv'
    assert file['out_dir'] == f'out-sweep/{path.stem}' and f'#     python -m lab.sweep config/sweep/{path.name}' in text
    assert file['csv'] == f'results/csv/{path.stem}.csv' or not file['csv'] and not own.exists()
    rows = rows_of_file(file)
    runs = [row.run_at(point, 1) for row in rows for point in row.grid]
    assert len({run['name'].lower() for run in runs}) == len({json.dumps(run['config']) for run in runs}) == len(runs)
    ended = {key_of(labels_of(run)): {**run, 'seed': int(run['seed'])} for run in read_csv(own).to_dict('records')}
    found = sum(len(seeds) for row in rows for seeds in row.there(ended).values())
    assert found == len(ended) or path.stem == 'placements' and found >= 175


def test_an_axis_of_a_file_chooses_among_its_labels(faked):
    Path('grid.py').write_text("seeds = 1\ngrids = [dict(model={'a': '--n_layer=1', 'b': '--n_layer=2'}, n_head=[1, 2])]\n")
    call('grid.py', '--model=b', '--n_head=4')
    assert [run['name'] for run in faked] == ['model=b,seed=1'] and '--n_head=4' in faked[0]['arguments']
    assert 'model=c: choose among a, b' in call('grid.py', '--model=c', error=True)


# ----------------------------------------------------------------------------- the command line

def test_the_command_line_wins_over_a_file(faked):
    """An axis replaces the file's of that name in every grid, others are added; train.py's files come behind `arguments`"""
    Path('grid.py').write_text("arguments = '--n_layer=3 --dropout=0.1'\nseeds = 2\nout_dir = 'there'\n"
                               "grids = [dict(n_head=[1, 2], n_embd=[8]), dict(n_head=[4], n_embd=[32])]\n")
    Path('base.py').write_text('n_layer = 2\n')
    out = call('grid.py', '--n_head=2,4', '--batch_size=5', 'base.py', '--seeds=1')
    assert [run['name'] for run in faked] == [f'n_head={n},n_embd={m},seed=1' for m in (8, 32) for n in (2, 4)]
    assert out.startswith('0 runs of there/runs.csv are done, 4 to do')
    assert faked[0]['arguments'] == ['--n_layer=3', '--dropout=0.1', 'base.py', '--n_head=2', '--n_embd=8', '--batch_size=5',
                                     '--seed=1', '--data_seed=1', '--overwrite=True']


# ----------------------------------------------------------------------------- running

def test_a_sweep_whose_runs_all_failed(faked, monkeypatch):
    """It fails too"""
    monkeypatch.setattr(subprocess.Popen.__self__, 'code', 1)
    assert 'all 2 runs failed: see out-sweep/*/output.txt' in call('--n_layer=1,2', '--seeds=1', error=True)


def test_one_sweep_has_a_folder_and_a_csv(faked):
    """Another would start the same runs, or write the file at the same time"""
    Path('taken').mkdir()
    with lock_folder('taken', 'sweeping'):
        assert 'taken is in use: process ' in call('--n_layer=1,2', '--out_dir=taken', error=True)
    with lock_file('x.csv.lock', 'x.csv', 'adding runs'):
        assert 'x.csv is in use: process ' in call('--n_layer=1,2', '--csv=x.csv', error=True)
    assert not faked and not Path('taken', 'runs.csv').exists()
    call('--n_layer=1,2', '--out_dir=taken', '--csv=x.csv')


@pytest.mark.parametrize('visible, jobs, wanted', [
    ('3,5', 0, ['3', '5']), ('3,5', 4, ['3', '5', '3', '5']), ('3,5,7', 1, ['3']), ('', 0, ['0', '1', '2']),
    (None, 3, [None] * 3), (None, 0, [None] * 10), (None, 50, [None] * 10)])
def test_runs_share_the_machine(faked, monkeypatch, visible, jobs, wanted):
    """Each GPU has one run at a time, or its part of as many as are wanted, and each run has its share of the cores"""
    monkeypatch.setattr('torch.cuda.is_available', lambda: visible is not None)
    monkeypatch.setattr('torch.cuda.device_count', lambda: 3)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(24)), raising=False)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible or '')
    call('--n_layer=1,2', '--seeds=5', f'--jobs={jobs}')
    assert len(faked) == 10 and {run['threads'] for run in faked} == {str(24 // len(wanted))}
    assert [run['gpu'] or None for run in faked[:len(wanted)]] == wanted


def test_a_sweep(swept):
    """Of runs that end, diverge and fail: what each leaves, and the table"""
    ends = {'learning_rate=0.01': ('done', ''), 'learning_rate=1e+30': ('diverged', 'diverged: the loss'),
            'dataset=late,learning_rate=0.01': ('failed', 'beyond vocab_size=13')}
    runs = {f'arch=off,{name},seed={seed}': end for name, end in ends.items() for seed in (1, 2)}
    del runs['arch=off,learning_rate=1e+30,seed=2']     # seed 1 has chosen
    assert {path.name for path in swept.iterdir()} == {*runs, 'runs.csv', '.lock', 'runs.csv.lock'}
    for name, (status, says) in runs.items():
        assert (says or 'val loss') in (swept / name / 'output.txt').read_text()
    one, two = (rows(swept / f'arch=off,learning_rate=0.01,seed={seed}')[-1]['val_loss'] for seed in (1, 2))
    assert max(one, two) < 1.5 and one != two
    results = Results(swept / 'runs.csv', {**SWEEP, 'extend': 0})
    wanted, failed = make_tables(results)[1][0].to_dict('records')
    assert (wanted['dataset'], wanted['validation loss']) == ('', f'{two:.3f}')
    assert (failed['dataset'], failed['validation loss']) == ('late', 'failed 2/2')
    assert (wanted['seed 1 at 0.01'], wanted['seed 1 at 1e+30']) == (f'{one:.3f}', 'diverged 1/1')


def test_the_numbers_of_each_run(swept, tmp_path, monkeypatch):
    """runs.csv, and the same tables from a copy of it in a place without the runs"""
    with open(swept / 'runs.csv', encoding='utf-8', newline='') as f:
        found = {(run['learning_rate'], run['dataset'], run['seed']): run for run in csv.DictReader(f)}
    assert {key: run['status'] for key, run in found.items() if run['status'] != 'done'} == {
        ('1e+30', '', '1'): 'diverged', ('0.01', 'late', '1'): 'failed', ('0.01', 'late', '2'): 'failed'}
    name = 'arch=off,learning_rate=0.01,seed=2'
    run, about = found['0.01', '', '2'], json.loads((swept / name / 'run.json').read_text())
    evaluations = [row for row in rows(swept / name) if 'val_loss' in row]
    assert run['val_losses'] == ' '.join(f'{row["iter"]}:{row["val_loss"]:.6g}' for row in evaluations)
    assert run['val_loss'] == f'{evaluations[-1]["val_loss"]:.6g}' and run['test_loss'] == '' and float(run['seconds']) > 0
    wanted = dict(iterations='100', precision='float32', parameters=str(about['parameters']), torch=torch.__version__,
                  tokens_per_iteration=str(KEYS['batch_size'] * KEYS['block_size']), attention_kernel='',
                  commit=about['commit'] + ('-dirty' if about['changed'] else ''),
                  **{key: about[key] for key in ('code', 'data', 'machine')})
    assert {key: run[key] for key in wanted} == wanted
    monkeypatch.chdir(tmp_path)
    shutil.copy(swept / 'runs.csv', 'numbers.csv')
    printed, names = call('--csv=numbers.csv', '--report=True', '--against=arch=off,dataset=late'), set(Path().rglob('*'))
    assert f'{float(run["val_loss"]):.3f}' in printed and names == {Path('numbers.csv')}


@pytest.mark.long
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_goes_on(place, swept, number):
    """Ctrl-C, which all processes get, and SIGTERM to the sweep alone, where SIGINT is ignored: runs save and end, and then go on
    as if nothing had happened"""
    command = ['base.json', '--arch=off', '--learning_rate=0.01', '--seeds=2', '--jobs=2', f'--out_dir={number.name}']
    runs = [place / number.name / f'seed={seed}' for seed in (1, 2)]
    process, logs = launch(place, *command, hold=20, deaf=number == signal.SIGTERM), [run / 'log.jsonl' for run in runs]
    while process.process.exitcode is None and not all(log.exists() and log.read_text().count('\n') > 10 for log in logs):
        time.sleep(0.01)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert 'stopped with 2 runs left; the same command goes on' in ended(process, 130)
    for run in runs:
        assert 'stopped after iteration' in (run / 'output.txt').read_text(), 'it could save'
        assert rows(run)[-1]['iter'] <= 20
    assert f'0 runs of {number.name}/runs.csv are done, 2 to do' in ended(launch(place, *command))
    for run in runs:
        assert 'iter 0:' not in (run / 'output.txt').read_text()
        assert rows(run) == rows(swept / f'arch=off,learning_rate=0.01,{run.name}')
