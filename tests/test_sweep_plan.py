"""lab/sweep: which runs it makes, chooses and goes on with, by runs that only write the losses that they are told."""
from configurator import defaults_of, parse_args

import itertools
import json
import math
import os
import random
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers import ROOT, run_here

from data.lock import lock_file
from engine.run import code_hash
from lab.sweep.plan import read_sweep, rows_of_file
from lab.sweep.table import Results, key_of, read_csv
from model import GPTConfig

SWEEP = defaults_of(str(ROOT / 'lab' / 'sweep' / '__main__.py'))
DEFAULTS = defaults_of(str(ROOT / 'train.py'), GPTConfig)
CODE = code_hash(str(ROOT / 'train.py'))


class Runs:
    """In the place of train.py: `loss`, a function of (learning rate, iteration, seed), makes the log; one that is not finite
    diverges. `code`: {seed: the exit code of its runs}. `legs`: (learning rate, seed, first iteration) of each start; `started`:
    its name, arguments, GPU and threads. The start of number `kill`, and all after it, are interrupted before their checkpoint
    reaches the disk."""

    def __init__(self, loss=lambda rate, it, seed: 1.0):
        self.loss, self.legs, self.started, self.kill, self.code = loss, [], [], math.inf, {}
        self.about = dict(code=CODE, data='da7a', torch=torch.__version__, dtype='torch.float32', tokens_per_iter=60)

    def start(self, command, env, **_):
        config = parse_args(command[2:], DEFAULTS)
        folder, rate, seed, rows, begin = Path(config['out_dir']), config['learning_rate'], config['seed'], [], 0
        if config['init_from'] == 'resume':
            begin = int((folder / 'ckpt.pt').read_text())
            rows = [row for row in map(json.loads, (folder / 'log.jsonl').read_text().splitlines()) if row['iter'] < begin]
        losses = [(it, self.loss(rate, it, seed)) for it in range(begin, config['max_iters'] + 1, config['eval_interval'])]
        good = [*itertools.takewhile(lambda pair: math.isfinite(pair[1]), losses)]
        rows += [dict(iter=it, val_loss=loss, tokens_per_s=100) for it, loss in good]
        if len(self.legs) >= self.kill:
            raise KeyboardInterrupt
        self.legs.append((rate, seed, begin))
        (folder / 'config.json').write_text(json.dumps({**config, 'init_from': 'scratch', 'overwrite': False}))
        (folder / 'run.json').write_text(json.dumps(self.about))
        (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        (folder / 'ckpt.pt').write_text(str(rows[-1]['iter'] if rows else 0))
        (folder / 'output.txt').write_text('')
        self.started.append(dict(name=folder.name, arguments=command[2:-1], gpu=env.get('CUDA_VISIBLE_DEVICES'),
                                 threads=env['OMP_NUM_THREADS']))
        code, process = self.code.get(seed, 3 * (len(good) < len(losses))), mock.Mock(returncode=None)
        looks = iter([None] * (len(self.legs) % 3))     # how often a look at the process finds that it runs
        process.poll = lambda: setattr(process, 'returncode', found := next(looks, code)) or found
        return process


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The Runs that a sweep starts in the current folder"""
    made = Runs()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, 'sleep', lambda _: None)
    monkeypatch.setattr('lab.sweep.run.read_meta', lambda name: dict(fingerprint='da7a'))
    monkeypatch.setattr(subprocess, 'Popen', made.start)
    return made


KEYS = ['--max_iters=100', '--eval_interval=5', '--min_lr=0', '--vocab_size=50304', '--dtype=float32', '--jobs=1',
        '--seeds=3', '--out_dir=out']
FOUR = '--learning_rate=0.1,0.2,0.4,0.8'


def call(*arguments, code=0):
    found, out, err = run_here('lab.sweep', *KEYS, *arguments)
    assert found == code and (code != 1 or err.count('\n') == 1), out + err
    return err if code else out


def table():
    return Results('out/runs.csv', SWEEP).tables()[0].to_dict('records')


def best_at(best):
    return lambda rate, it, seed: 1 + abs(math.log(rate / best)) + 0.001 * seed if it else 5.0


# ----------------------------------------------------------------------------- the plan

def planned(*grids, first=(), seeds=1):
    rows = rows_of_file({**SWEEP, 'grids': list(grids), 'seeds': seeds}, arguments=first)
    return {run['name']: run for row in rows for point in row.grid for run in (row.run_at(point, seed) for seed in row.seeds)}


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
    row, = rows_of_file(SWEEP | dict(grids=[dict(learning_rate=[0.2, 0.1, 0.4])]))
    assert row.ladder == dict(learning_rate=['0.025', '0.05', '0.1', '0.2', '0.4', '0.8', '1.6'])
    # what lacks an axis is named without it; names are safe for a file system, and arguments are split as a shell does
    runs = planned({'model': {'GPT-2, ½/3': '', 2: "--n_layer=3 --wandb_run_name='a b'"}}, dict(dropout=[0.5], seeds=2))
    assert list(runs) == ['model=GPT-2,_½_3,seed=1', 'model=2,seed=1', 'dropout=0.5,seed=1', 'dropout=0.5,seed=2']
    assert runs['model=2,seed=1']['config']['wandb_run_name'] == 'a b'


@pytest.mark.parametrize('grids, says', [
    ([dict(model={'a b': '--n_layer=1', 'a/b': '--n_layer=2'})], 'two rows are named model=a/b, or alike'),
    ([dict(dropout=['1e-1', '0.10'])], 'or alike'), ([dict(seed=[7])], 'seed=.* cannot be an axis'),
    ([dict(init_from=['auto'])], 'init_from=auto: a sweep starts and resumes its runs itself')])
def test_a_grid_that_is_none(grids, says):
    with pytest.raises(ValueError, match=says):
        planned(*grids)


@pytest.mark.parametrize('path', sorted((ROOT / 'config' / 'sweep').glob('*.py')), ids=lambda path: path.stem)
def test_a_sweep_of_the_repository(path, monkeypatch):
    """Its rows differ, and plan the rows of its csv, except for those of a screen"""
    monkeypatch.chdir(ROOT)
    rows, ended = rows_of_file(read_sweep(path)), read_csv(ROOT / 'results' / 'csv' / path.with_suffix('.csv').name)
    runs = [row.run_at(point, 1) for row in rows for point in row.grid]
    assert len({run['name'].lower() for run in runs}) == len({json.dumps(run['config']) for run in runs}) == len(runs)
    ended = {key_of(run): run for run in ended.to_dict('records')}
    found = sum(len(seeds) for row in rows for seeds in row.there(ended).values())
    assert found == len(ended) or path.stem == 'placements' and found >= 175


def test_the_command_line_wins_over_a_file(runs):
    """An axis replaces the file's of that name in every grid, or chooses among its labels. train.py's files come behind
    `arguments`"""
    started = runs.started
    Path('grid.py').write_text("arguments = '--n_layer=3'\ngrids = [dict(n_head=[1, 2], n_embd=[8], model={'a': '', 'b': "
                               "'--dropout=0.1'}), dict(n_head=[4], n_embd=[32])]\n")
    Path('base.py').write_text('n_layer = 2\n')
    assert 'model=c: choose among a, b' in call('grid.py', '--model=c', code=1)
    call('grid.py', '--n_head=2,4', '--model=b', '--batch_size=5', 'base.py', '--seeds=1')
    assert [run['name'] for run in started] == [
        f'n_head={n},n_embd={m},seed=1' for m in ('8,model=b', '32') for n in (2, 4)]
    assert [arg for arg in started[0]['arguments'] if arg not in KEYS] == [
        '--n_layer=3', 'base.py', '--dropout=0.1', '--n_head=2', '--n_embd=8', '--batch_size=5', '--seed=1', '--data_seed=1',
        '--overwrite=True']


@pytest.mark.parametrize('visible, jobs, wanted', [
    ('3,5', 4, ['3', '5', '3', '5']), ('', 0, ['0', '1', '2']), (None, 3, [None] * 3), (None, 0, [None] * 6)])
def test_runs_share_the_machine(runs, monkeypatch, visible, jobs, wanted):
    """Each GPU has one run at a time, or its part of as many as are wanted, and each run has its share of the cores"""
    monkeypatch.setattr('torch.cuda.is_available', lambda: visible is not None)
    monkeypatch.setattr('torch.cuda.device_count', lambda: 3)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(24)), raising=False)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible or '')
    started = runs.started
    call('--n_layer=1,2', f'--jobs={jobs}')
    assert len(started) == 6 and {run['threads'] for run in started} == {str(24 // len(wanted))}
    assert [run['gpu'] or None for run in started[:len(wanted)]] == wanted


# ----------------------------------------------------------------------------- which runs

def test_seed_1_chooses_and_the_others_train_at_its_rate(runs):
    """What has a row in runs.csv is not repeated. One sweep at a time adds rows"""
    runs.loss = best_at(0.4)
    with lock_file('x.csv.lock', 'x.csv', 'adding runs'):
        assert 'x.csv is in use: process ' in call(FOUR, '--csv=x.csv', code=1)
    assert call(FOUR).startswith('0 runs of out/runs.csv are done, 6 to do, 1 at once\n')
    assert runs.legs == [*((rate, 1, 0) for rate in (0.1, 0.2, 0.4, 0.8)), (0.4, 2, 0), (0.4, 3, 0)]
    line, = table()
    assert (line['learning_rate'], line['validation loss'], line['seeds']) == ('0.4', '1.002 ± 0.000', '2 to 3')
    assert call(FOUR).startswith('6 runs of out/runs.csv are done, 0 to do') and len(runs.legs) == 6
    assert '6 runs of out/runs.csv are done, 2 to do, 1 at once\n' in call(FOUR, '--seeds=5')


def test_runs_that_diverge_or_fail(runs):
    """Rates that diverge are the worst, and where all do, two lower ones follow. What fails has no row, and is tried again"""
    runs.loss, runs.code = lambda rate, it, seed: 2 + 10 * rate if rate < 0.4 or it < 10 else math.nan, {2: 1}
    assert '1 of the runs failed: see out/*/output.txt' in call(FOUR, '--seeds=2', '--extend=0', code=1)
    assert runs.legs[4:] == [(0.1, 2, 0)] and [*read_csv('out/runs.csv').status] == ['done', 'done', 'diverged', 'diverged']
    runs.code = {}
    call(FOUR, '--seeds=2', '--extend=0')
    assert len(runs.legs) == 6 and len(read_csv('out/runs.csv')) == 5
    runs.loss = lambda rate, it, seed: math.nan
    call(FOUR, '--out_dir=other')
    assert len(runs.legs) == 6 + 4 + 2


def test_a_sweep_is_of_one_code_data_precision_and_version(runs):
    """Else it ends with a line before it trains, and a run that has another one in the end gets no row. A spreadsheet may have
    saved its rows"""
    runs.loss, grid = best_at(0.2), '--learning_rate=0.1,0.2,0.4'
    call(grid, '--seeds=1')
    path, number = Path('out/runs.csv'), len(runs.legs)
    text = path.read_text()
    assert 'seed=1, which had other keys' in call(grid, '--beta2=0.5', code=1)
    for what, here in dict(code=CODE, data='da7a', torch=torch.__version__).items():
        path.write_text(text.replace(f',{here},', ',beef,'))
        err = call(grid, code=1)
        assert 'has runs of several' in err and 'beef' in err and here in err
    path.write_text(text.replace(f',{CODE},', ',beef,'))
    assert 'has runs of several codes' in call(grid, '--codes=beef,fade', code=1), 'by this code nothing was shown to repeat'
    assert len(runs.legs) == number
    call(grid, f'--codes=beef,{CODE}', '--seeds=2')
    assert runs.legs[number:] == [(0.2, 2, 0)] and {*read_csv(path).code} == {'beef', CODE}
    path.write_text(path.read_text().replace('0.1,1,', '1.00E-01,1,'))
    for what in 'code', 'data', 'dtype', 'torch':
        runs.about = {**Runs().about, what: 'fade'}
        assert 'has runs of several' in call(grid, f'--codes=beef,{CODE}', '--seeds=3', code=1) and len(read_csv(path)) == 4


def test_rows_that_another_process_adds_are_kept(runs):
    """Even on a disk without locks"""
    def loss(rate, it, seed):
        if (rate, it) == (0.4, 0):                      # while a run trains
            lines = Path('out/runs.csv').read_text().splitlines()
            Path('out/runs.csv').write_text('\n'.join([*lines, lines[1].replace('0.1,1,', '0.2,9,')]))
        return best_at(0.2)(rate, it, seed)

    runs.loss = loss
    call('--learning_rate=0.1,0.2,0.4', '--seeds=9')
    assert sorted(map(int, read_csv('out/runs.csv').seed)) == [1, 1, *range(1, 10)] and (0.2, 9, 0) not in runs.legs


# ----------------------------------------------------------------------------- two tuned keys, and three seeds that choose

DECAYS, RATES = [0.01, 0.03, 0.1, 0.3, 1.0], [0.05, 0.1, 0.2, 0.4, 0.8]


def by_hand(loss, seeds):
    """The seeds that train at each point, and the chosen one, by the rule in words: seed 1 at the grid, then at each neighbour of
    the best point; seeds 2 and 3 at what is within 0.01 of it; all neighbours of the chosen point; then the others there"""
    trained = {(decay, rate): {1} for decay in DECAYS[1:3] for rate in RATES[1:3]}
    while True:
        chosen = best = min(trained, key=lambda point: loss(*point, 1))
        near = [point for point in trained if loss(*point, 1) <= loss(*best, 1) + 0.01]
        if len(near) > 1 and all(trained[point] == {1, 2, 3} for point in near):
            chosen = min(near, key=lambda point: sum(loss(*point, seed) for seed in (1, 2, 3)))
        steps = {(DECAYS.index(point[0]) + i, RATES.index(point[1]) + j) for point in (best, chosen)
                 for i, j in ((-1, 0), (1, 0), (0, -1), (0, 1))}
        if new := {(DECAYS[i], RATES[j]) for i, j in steps if 0 <= i < len(DECAYS) and 0 <= j < len(RATES)} - trained.keys():
            trained |= {point: {1} for point in new}
        elif len(near) > 1 and any(trained[point] != {1, 2, 3} for point in near):
            trained |= dict.fromkeys(near, {1, 2, 3})
        else:
            return {**trained, chosen: trained[chosen] | {*range(4, seeds + 1)}}, chosen


@pytest.mark.parametrize('draw', range(9))
def test_a_landscape_of_two_keys(draw):
    """Rough ones, on which many points are close, and steep ones; rows of other seeds at the chosen point count"""
    noise, rough = random.Random(draw), (0.002, 0.01, 0.1)[draw % 3]
    bumps = {key: noise.gauss(0, rough) for key in itertools.product(DECAYS, RATES, range(1, 6))}
    peak = noise.choice(DECAYS), noise.choice(RATES)

    def loss(decay, rate, seed):
        return 1 + rough * (abs(math.log(decay / peak[0])) + abs(math.log(rate / peak[1]))) + bumps[decay, rate, seed]

    grid = dict(weight_decay=DECAYS[1:3], learning_rate=RATES[1:3], ladder=dict(weight_decay=DECAYS, learning_rate=RATES))
    row, = rows_of_file(SWEEP | dict(grids=[grid], seeds=5, tuning_seeds=3, tuned='weight_decay,learning_rate'))
    (wanted, best), ended, found = by_hand(loss, 5), {}, {}
    while to_do := row.next(ended):
        assert row.left(ended) >= len(to_do)
        for run in to_do:
            config = run['config']
            point, seed = (config['weight_decay'], config['learning_rate']), config['seed']
            found.setdefault(point, set()).add(seed)
            assert run['key'] not in ended
            ended[run['key']] = dict(status='done', seed=seed, val_loss=loss(*point, seed))
    assert found == wanted and row.left(ended) == 0
    others = {key: run for key, run in ended.items() if run['seed'] < 4}
    for seed in (1001, 77):
        others[row.run_at(tuple(map(repr, best)), seed)['key']] = dict(status='done', seed=seed, val_loss=1.0)
    assert row.next(others) == []


@pytest.mark.parametrize('limit, tried', [(0.1, 5), (0.05, 6), (0.01, 6)])
def test_lower_rates_follow_where_all_diverge(limit, tried):
    """Until one does not and its neighbours are known, or the ladder ends"""
    grid = dict(learning_rate=[0.2, 0.4, 0.8], ladder=dict(learning_rate=[0.025 * 2 ** i for i in range(7)]))
    (row,), ended = rows_of_file(SWEEP | dict(grids=[grid], seeds=2)), {}
    while to_do := row.next(ended):
        for run in to_do:
            rate, seed = run['config']['learning_rate'], run['config']['seed']
            status = 'done' if rate <= limit else 'diverged'
            ended[run['key']] = dict(status=status, seed=seed, val_loss=abs(math.log(rate / 0.1)))
    seeds = [run['seed'] for run in ended.values()]
    assert (seeds.count(1), seeds.count(2)) == (tried, int(limit >= 0.05))


def test_an_interrupted_sweep_goes_on(runs):
    """Before any start of a run: in the end the tables are those of a sweep that was not interrupted, and no run has trained an
    iteration twice. The curves cross, and some diverge"""
    draw = random.Random(0)
    curves = {key: (draw.uniform(1, 3), draw.uniform(0.5, 3), draw.choice([30, 60, 999, 999])) for key in itertools.product(
        [0.1, 0.2, 0.4, 0.8, 0.05, 1.6, 0.025, 3.2], (1, 2))}

    def loss(rate, it, seed):
        a, b, dies = curves[rate, seed]
        return a + 2 * math.exp(-b * it / 50) if it < dies else math.nan

    command = [FOUR, '--extend=2', '--seeds=2']
    runs.loss = loss
    call(*command)
    wanted, whole = read_csv('out/runs.csv'), [*runs.legs]
    Path('out').rename('whole')
    runs.legs.clear()
    for runs.kill in range(len(whole) + 1):
        call(*command, code=130 if runs.kill < len(whole) else 0)
    assert sorted(runs.legs) == sorted(whole) and read_csv('out/runs.csv').equals(wanted)
