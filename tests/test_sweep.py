"""lab/sweep with real runs: what they leave, and a sweep that is stopped. tests/test_sweep_plan.py has which runs come next."""
import json
import os
import signal
import time

import pytest
import torch
from helpers import ROOT, TINY, Alone, forks_its_runs, rows

from lab.sweep.run import is_dirty
from lab.sweep.table import read_csv

KEYS = {**TINY, 'n_layer': 1, 'n_head': 1, 'max_iters': 100, 'eval_interval': 50, 'lr_decay_iters': 100,
        'gradient_accumulation_steps': 1, 'warmup_iters': 0, 'min_lr': 0.0}


def launch(cwd, *arguments, hold=None, deaf=False):
    """A sweep as the leader of a group of processes"""
    return Alone('lab.sweep', *arguments, cwd=cwd, through=(forks_its_runs, hold, deaf), CUDA_VISIBLE_DEVICES='')


def ended(sweep, code=0):
    """What it printed, once it has left no process of its group behind"""
    found, out, err = sweep.end()
    with pytest.raises(ProcessLookupError):
        os.killpg(sweep.pid, 0)
    assert found == code and 'Traceback' not in out + err, out + err
    return out + err


@pytest.fixture(scope='module')
def swept(place):
    (place / 'base.json').write_text(json.dumps(KEYS))
    (place / 'grid.py').write_text("arguments, out_dir, seeds, jobs, extend = 'base.json', 'swept', 2, 2, 0\n"
                                   "grids = [dict(arch=['off'], learning_rate=[0.01, 1e30])]\n")
    out = ended(launch(place, 'grid.py'))
    assert out.startswith('0 runs of swept/runs.csv are done, 3 to do, 2 at once\n') and '0.01 (edge)' in out, 'the table'
    return place / 'swept'


def test_a_sweep(swept):
    """Of runs that end and diverge: what each leaves, and its numbers in runs.csv"""
    names = [f'arch=off,learning_rate={end}' for end in ('0.01,seed=1', '0.01,seed=2', '1e+30,seed=1')]     # seed 1 has chosen
    assert {path.name for path in swept.iterdir()} == {*names, 'runs.csv', 'runs.csv.lock'}
    assert 'diverged: the loss' in (swept / names[2] / 'output.txt').read_text()
    one, run, lost = read_csv(swept / 'runs.csv').sort_values(['learning_rate', 'seed']).to_dict('records')
    assert (one['status'], run['status'], lost['status']) == ('done', 'done', 'diverged') and one['val_loss'] != run['val_loss']
    about = json.loads((swept / names[1] / 'run.json').read_text())
    evaluations = [row for row in rows(swept / names[1]) if 'val_loss' in row]
    assert run['val_losses'] == ' '.join(f'{row["iter"]}:{row["val_loss"]:.6g}' for row in evaluations)
    assert run['val_loss'] == f'{evaluations[-1]["val_loss"]:.6g}' and run['test_loss'] == '' and float(run['seconds']) > 0
    wanted = dict(iterations='100', precision='float32', parameters=str(about['parameters']), torch=torch.__version__,
                  tokens_per_iteration=str(KEYS['batch_size'] * KEYS['block_size']), attention_kernel='',
                  commit=about['commit'] + '-dirty' * is_dirty(about['changed']),
                  **{key: about[key] for key in ('code', 'data', 'machine')})
    assert {key: run[key] for key in wanted} == wanted


def test_only_what_a_run_reads_makes_it_dirty():
    for line in ' M config/sweep/base.py', 'M  results/claims.py', ' M README.md', ' M lab/sweep/table.py':
        assert not is_dirty([line])
    for line in ' M model.py', ' M config/arch/pre.py', 'code.patch leaves out 2 new .py files, such as a.py':
        assert is_dirty([' M README.md', line])


@pytest.mark.long
def test_a_sweep_of_vits(tmp_path):
    keys = 'n_layer=1 n_head=1 n_embd=8 max_iters=1 eval_iters=1 compile=False seeds=1'
    ended(Alone('lab.sweep', 'config/train_quick_vision.py', '--script=vision.train', *(f'--{key}' for key in keys.split()),
                f'--out_dir={tmp_path}', cwd=ROOT))
    run, = read_csv(tmp_path / 'runs.csv').to_dict('records')
    assert run['status'] == 'done' and len(run['data']) == 32


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
    assert f'0 runs of {number.name}/runs.csv are done, 2 to do' in ended(launch(place, *command))
    for run in runs:
        assert 'iter 0:' not in (run / 'output.txt').read_text()
        assert rows(run) == rows(swept / f'arch=off,learning_rate=0.01,{run.name}')
