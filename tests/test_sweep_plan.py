"""lab/sweep: which runs it makes, chooses and goes on with, by runs that only write the loss that they are told."""
from configurator import defaults_of, parse_args

import itertools
import json
import math
import random
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers import ROOT, run_here

from data.lock import lock_file
from engine.run import code_hash
from lab.sweep.plan import read_sweep, rows_of_file
from lab.sweep.table import key_of, read_csv
from model import GPTConfig

SWEEP = defaults_of(str(ROOT / 'lab' / 'sweep' / '__main__.py'))
DEFAULTS = defaults_of(str(ROOT / 'train.py'), GPTConfig)
CODE = code_hash(str(ROOT / 'train.py'))


class Runs:
    """In the place of train.py. Runs at a rate of 0.2 are the best, and higher rates diverge. `trouble`: {number of a start: how
    that one ends instead}. `about` is what run.json has."""

    def __init__(self):
        self.trouble, self.trained, self.commands = {}, [], []
        self.about = dict(code=CODE, data='da7a', torch=torch.__version__, dtype='torch.float32')

    def start(self, command, env, **_):
        config = parse_args(command[2:], DEFAULTS)
        folder, rate = Path(config['out_dir']), config['learning_rate']
        code = self.trouble.get(len(self.trained), 3 * (rate > 0.3))
        (folder / 'config.json').write_text(json.dumps({**config, 'init_from': 'scratch', 'overwrite': False}))
        (folder / 'run.json').write_text(json.dumps(self.about))
        (folder / 'log.jsonl').write_text(json.dumps(dict(iter=100, val_loss=0.2 / rate)))
        (folder / 'ckpt.pt').touch()
        self.trained.append((rate, config['seed'], config['init_from']))
        self.commands.append((command, env))
        return mock.Mock(returncode=code, poll=mock.Mock(side_effect=[code]))


@pytest.fixture
def runs(monkeypatch, tmp_path):
    made = Runs()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('time.sleep', lambda _: None)
    monkeypatch.setattr('lab.sweep.run.read_meta', lambda name: dict(fingerprint='da7a'))
    monkeypatch.setattr('subprocess.Popen', made.start)
    return made


KEYS = ['--min_lr=0', '--vocab_size=50304', '--dtype=float32', '--jobs=1', '--out_dir=out']
GRID = '--learning_rate=0.1,0.2,0.4'


def call(*arguments, code=0):
    found, out, err = run_here('lab.sweep', *KEYS, *arguments)
    assert found == code and (code != 1 or err.count('\n') == 1), out + err
    return err if code else out


def test_a_plan_is_the_product_of_axes_and_seeds():
    """Each run is named by its axes, and its config is what its labels say, on top of what all get first"""
    keys = SWEEP | dict(grids=[dict(optim=['sgdw', 'none'], n_layer=[1, 2], n_head=[4])])
    runs = [row.run_at((), seed) for row in rows_of_file(keys, ['--n_embd=8', '--n_layer=7']) for seed in row.seeds]
    assert [run['name'] for run in runs] == [f'optim={optim},n_layer={n},n_head=4,seed={seed}' for optim in ('sgdw', 'none')
                                             for n in (1, 2) for seed in (1, 2, 3)]
    for run in runs:
        config, labels = run['config'], dict(pair.split('=') for pair in run['name'].split(','))
        assert config['optimizer'] == ('adamw' if labels['optim'] == 'none' else 'sgdw')
        assert [config[key] for key in ('n_layer', 'n_head', 'n_embd')] == [int(labels['n_layer']), 4, 8]
        assert config['seed'] == config['data_seed'] == int(labels['seed'])
    row, = rows_of_file(SWEEP | dict(grids=[dict(learning_rate=[0.2, 0.1, 0.4])]))
    assert row.ladder == dict(learning_rate=['0.025', '0.05', '0.1', '0.2', '0.4', '0.8', '1.6'])
    for grid, says in ((dict(model={'a b': '--n_layer=1', 'a/b': '--n_layer=2'}), 'two rows are named model=a/b, or alike'),
                       (dict(seed=[7]), 'seed=.* cannot be an axis'), (dict(init_from=['auto']), 'starts and resumes its runs')):
        with pytest.raises(ValueError, match=says):
            rows_of_file(SWEEP | dict(grids=[grid]))


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


def test_what_runs_are_started_with(runs, monkeypatch):
    """An axis on the command line replaces the file's of that name in every grid, or chooses among its labels. train.py's files
    come behind `arguments`. GPUs and cores are shared by as many runs as are wanted at once"""
    Path('grid.py').write_text("arguments = '--n_layer=3'\ngrids = [dict(n_head=[1, 2], n_embd=[8], model={'a': '', 'b': "
                               "'--dropout=0.1'}), dict(n_head=[4], n_embd=[32])]\n")
    Path('base.py').write_text('n_layer = 2\n')
    assert 'model=c: choose among a, b' in call('grid.py', '--model=c', code=1)
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    monkeypatch.setattr('os.sched_getaffinity', lambda _: set(range(24)), raising=False)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3,5')
    call('grid.py', '--n_head=2,4', '--model=b', '--batch_size=5', 'base.py', '--seeds=1', '--jobs=4')
    commands, environments = zip(*runs.commands)
    assert [command[-1] for command in commands] == [
        f'--out_dir=out/n_head={n},n_embd={m},seed=1' for m in ('8,model=b', '32') for n in (2, 4)]
    assert [arg for arg in commands[0][2:-1] if arg not in KEYS] == [
        '--n_layer=3', 'base.py', '--dropout=0.1', '--n_head=2', '--n_embd=8', '--batch_size=5', '--seed=1', '--data_seed=1',
        '--overwrite=True']
    assert [(env['CUDA_VISIBLE_DEVICES'], env['OMP_NUM_THREADS']) for env in environments] == [('3', '6'), ('5', '6')] * 2


def test_a_sweep_is_of_one_code_data_precision_and_version(runs):
    """Else it ends with a line before it trains, and a run that has another one in the end gets no row"""
    call(GRID, '--seeds=1')
    path = Path('out/runs.csv')
    text = path.read_text()
    assert 'seed=1, which had other keys' in call(GRID, '--beta2=0.5', code=1)
    for here in torch.__version__, 'da7a', CODE:
        path.write_text(text.replace(f',{here},', ',beef,'))
        assert 'has runs of several' in call(GRID, code=1)
    assert 'has runs of several codes' in call(GRID, '--codes=beef,fade', code=1), 'by this code nothing was shown to repeat'
    assert len(runs.trained) == 3
    call(GRID, f'--codes=beef,{CODE}', '--seeds=2')
    assert runs.trained[3:] == [(0.2, 2, 'scratch')] and {*read_csv(path).code} == {'beef', CODE}
    for what in 'code', 'data', 'dtype', 'torch':
        runs.about = {**Runs().about, what: 'fade'}
        assert 'has runs of several' in call(GRID, f'--codes=beef,{CODE}', '--seeds=3', code=1) and len(read_csv(path)) == 4


def test_a_sweep_that_is_interrupted_goes_on(runs):
    """It ends with the same rows, and repeats no run. What failed is tried again. One sweep at a time adds rows"""
    call(GRID, '--seeds=2', '--out_dir=whole')
    wanted, whole = read_csv('whole/runs.csv'), [*runs.trained]
    for i in range(len(whole)):
        runs.trouble = {len(whole) + 2 * i: KeyboardInterrupt}
        call(GRID, '--seeds=2', code=130)
    call(GRID, '--seeds=2')
    assert runs.trained == whole + [(rate, seed, how) for rate, seed, _ in whole for how in ('scratch', 'resume')]
    assert read_csv('out/runs.csv').equals(wanted) and {*wanted.status} == {'done', 'diverged'}
    runs.trouble = {len(runs.trained): 1}
    assert '1 of the runs failed: see out/*/output.txt' in call(GRID, '--seeds=3', code=1)
    call(GRID, '--seeds=3')
    assert runs.trained[-2:] == [(0.2, 3, 'scratch'), (0.2, 3, 'resume')]
    with lock_file('out/runs.csv.lock', 'out/runs.csv', 'adding runs'):
        assert 'out/runs.csv is in use: process ' in call(GRID, code=1)


DECAYS, RATES = [0.01, 0.03, 0.1, 0.3, 1.0], [0.05, 0.1, 0.2, 0.4, 0.8]


def by_hand(loss, tuning_seeds):
    """The seeds that train at each point, by the rule in words: seed 1 at the grid, then at each neighbour of the best point, or
    of the lowest one if all diverged; the other tuning seeds at what is within 0.01 of it; all neighbours of the chosen point;
    then the others of five seeds there. A point has its places on the two ladders"""
    choosing = {*range(1, tuning_seeds + 1)}
    trained = {point: {1} for point in itertools.product((1, 2), (1, 2))}
    while True:
        chosen = best = min(trained, key=lambda point: (loss(*point, 1), point))
        near = [point for point in trained if loss(*point, 1) <= loss(*best, 1) + 0.01 < math.inf]
        if len(near) > 1 and all(trained[point] == choosing for point in near):
            chosen = min(near, key=lambda point: sum(loss(*point, seed) for seed in choosing))
        beside = {(i, j) for i in range(5) for j in range(5) for a, b in (best, chosen) if abs(i - a) + abs(j - b) == 1}
        if new := beside - trained.keys():
            trained |= {point: {1} for point in new}
        elif len(near) > 1 and any(trained[point] != choosing for point in near):
            trained |= dict.fromkeys(near, choosing)
        else:
            return {**trained, chosen: trained[chosen] | ({1, 2, 3, 4, 5} - choosing if near else set())}


@pytest.mark.parametrize('tuning_seeds', [1, 3])
@pytest.mark.parametrize('draw', range(9))
def test_a_landscape_of_two_keys(draw, tuning_seeds):
    """Rough ones, on which many points are close, and steep ones, with rates that diverge; rows of other seeds count"""
    noise, rough, highest = random.Random(draw), (0.002, 0.01, 0.1)[draw % 3], (4, 2, 0, -1)[draw % 4]
    bumps = {key: noise.gauss(0, rough) for key in itertools.product(range(5), range(5), range(1, 6))}
    peak = noise.randrange(5), noise.randrange(5)

    def loss(i, j, seed):
        return 1 + rough * (abs(i - peak[0]) + abs(j - peak[1])) + bumps[i, j, seed] if j <= highest else math.inf

    ladder = dict(weight_decay=DECAYS, learning_rate=RATES)
    grid = dict(weight_decay=DECAYS[1:3], learning_rate=RATES[1:3], ladder=ladder)
    row, = rows_of_file(SWEEP | dict(grids=[grid], seeds=5, tuning_seeds=tuning_seeds, tuned='weight_decay,learning_rate'))
    ended, found = {}, {}
    while to_do := row.next(ended):
        for config in (run['config'] for run in to_do):
            point, seed = (config['weight_decay'], config['learning_rate']), config['seed']
            end = loss(DECAYS.index(point[0]), RATES.index(point[1]), seed)
            found.setdefault(point, set()).add(seed)
            there = seed if seed <= tuning_seeds else 1000 + seed
            ended[row.run_at(tuple(map(repr, point)), there)['key']] = dict(
                status='done' if end < math.inf else 'diverged', seed=there, val_loss=end)
    assert found == {(DECAYS[i], RATES[j]): seeds for (i, j), seeds in by_hand(loss, tuning_seeds).items()}
