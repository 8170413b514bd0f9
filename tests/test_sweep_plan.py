"""
lab/sweep/plan.py and run.py: which runs a sweep makes, which points are added, what chooses, and how an interrupted sweep goes
on, with runs that only write the losses that they are told.
"""
from configurator import defaults_of, parse_args

import itertools
import json
import math
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT, run_here

from engine.device import pick_dtype
from engine.run import code_hash
from lab.sweep.plan import rows_of_file
from lab.sweep.table import read_csv
from model import GPTConfig

DEFAULTS = defaults_of(str(ROOT / 'train.py'), GPTConfig)
LAST, EVERY = 100, 5
CODE = code_hash(str(ROOT / 'train.py'))


class Process(SimpleNamespace):
    __hash__ = object.__hash__


class Runs:
    """In the place of train.py: `loss`, a function of (learning rate, iteration, seed), makes the log; one that is not finite
    diverges. `legs`: (learning rate, seed, first iteration, last iteration) of each start; `started`: its name, arguments, GPU
    and threads. The start of number `kill`, and all after it, are interrupted before their checkpoint reaches the disk."""

    def __init__(self, loss):
        self.loss, self.legs, self.started, self.kill, self.code = loss, [], [], math.inf, 0
        self.about = dict(code=CODE, data='da7a', torch=torch.__version__)

    def start(self, command, env, **_):
        config = parse_args(command[2:], DEFAULTS)
        folder = Path(config['out_dir'])
        rows, begin, code = [], 0, self.code
        if config['init_from'] == 'resume':
            begin = int((folder / 'ckpt.pt').read_text())
            rows = [json.loads(line) for line in (folder / 'log.jsonl').read_text().splitlines()]
            rows = [row for row in rows if row['iter'] < begin]
        rate, seed, end = config['learning_rate'], config['seed'], config['max_iters']
        for it in range(begin, end + 1, config['eval_interval']):
            if not math.isfinite(loss := self.loss(rate, it, seed)):
                code = 3
                break
            rows.append(dict(iter=it, val_loss=loss, tokens_per_s=100))
        if len(self.legs) >= self.kill:
            raise KeyboardInterrupt
        self.legs.append((rate, seed, begin, end))
        (folder / 'config.json').write_text(json.dumps({**config, 'init_from': 'scratch', 'overwrite': False}))
        about = dict(dtype=str(pick_dtype(config['dtype'], torch.device('cpu'))), tokens_per_iter=60 * 100)     # for a minute
        (folder / 'run.json').write_text(json.dumps({**about, **self.about}))
        (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        (folder / 'ckpt.pt').write_text(str(rows[-1]['iter'] if rows else 0))
        self.started.append(dict(name=folder.name, arguments=command[2:-1], gpu=env.get('CUDA_VISIBLE_DEVICES'),
                                 threads=env['OMP_NUM_THREADS']))
        looks = iter([None] * (len(self.legs) % 3))     # how often a look at the process finds that it runs
        return Process(returncode=code, poll=lambda: next(looks, code), terminate=int, kill=int, wait=lambda *_: 0)


def fake_runs(monkeypatch, tmp_path):
    """A function from `loss` to the Runs that a sweep then starts in the current folder"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, 'sleep', lambda _: None)
    monkeypatch.setattr('lab.sweep.run.load_meta', lambda name: dict(fingerprint='da7a'))

    def install(loss):
        made = Runs(loss)
        monkeypatch.setattr(subprocess, 'Popen', made.start)
        return made

    return install


@pytest.fixture
def runs(monkeypatch, tmp_path):
    return fake_runs(monkeypatch, tmp_path)


KEYS = [f'--max_iters={LAST}', f'--eval_interval={EVERY}', '--min_lr=0', '--vocab_size=50304', '--dtype=float32', '--jobs=1',
        '--seeds=3', '--out_dir=out']
FOUR = '--learning_rate=0.1,0.2,0.4,0.8'


def call(*arguments, code=0):
    found, out, err = run_here('lab.sweep', *KEYS, *arguments)
    assert found == code and (code != 1 or err.count('\n') == 1), out + err
    return err if code else out


def chosen(out):
    """The last line of the printed table"""
    return out.strip().splitlines()[-1]


def best_at(best):
    return lambda rate, it, seed: 1 + abs(math.log(rate / best)) + 0.001 * seed if it else 5.0


# ----------------------------------------------------------------------------- which runs

def test_seed_1_chooses_and_the_others_train_at_its_rate(runs):
    """Every rate trains to the end, and what has a row in runs.csv is not repeated, also without its folder"""
    made = runs(best_at(0.4))
    out = call(FOUR)
    assert out.startswith('0 runs of out/runs.csv are done, 6 to do, 1 at once\n')
    assert made.legs == [*((rate, 1, 0, 100) for rate in (0.1, 0.2, 0.4, 0.8)), (0.4, 2, 0, 100), (0.4, 3, 0, 100)]
    assert re.split('  +', chosen(out))[:7] == [
        '2.387', '1.694', '1.001', '1.694', '0.4', '1.002 ± 0.000', '2 to 3']
    shutil.rmtree('out/learning_rate=0.4,seed=2')
    assert call(FOUR).startswith('6 runs of out/runs.csv are done, 0 to do') and len(made.legs) == 6
    assert '6 runs of out/runs.csv are done, 2 to do, 1 at once\n' in call(FOUR, '--seeds=5')


def test_rates_that_diverge(runs):
    """They are the worst, and where all do, nothing is chosen"""
    made = runs(lambda rate, it, seed: 2 + 10 * rate if rate < 0.4 or it < 10 else math.nan)
    assert chosen(call(FOUR, '--seeds=2', '--extend=0')).count('diverged 1/1') == 2
    assert made.legs[4:] == [(0.1, 2, 0, 100)]
    made = runs(lambda rate, it, seed: math.nan)
    call(FOUR, '--out_dir=other')
    assert len(made.legs) == 4


def test_a_sweep_is_of_one_code_data_precision_and_version(runs):
    """Else it ends with a line before it trains. A spreadsheet may have saved its rows"""
    made, grid = runs(best_at(0.2)), '--learning_rate=0.1,0.2,0.4'
    call(grid, '--seeds=1')
    path, number = Path('out/runs.csv'), len(made.legs)
    text = path.read_text()
    assert 'seed=1, which had other keys' in call(grid, '--beta2=0.5', code=1)
    for what, here in dict(code=CODE, data='da7a', precision='float32', torch=torch.__version__).items():
        path.write_text(text.replace(f',{here},', ',beef,'))
        err = call(grid, code=1)
        assert 'has runs of several' in err and 'beef' in err and here in err
        path.write_text(text.replace(f',{here},', ',beef,', 1))
        assert 'has runs of several' in call(grid, code=1)
    path.write_text(text.replace(f',{CODE},', ',beef,'))
    assert 'has runs of several codes' in call(grid, '--codes=beef,fade', code=1), 'by this code nothing was shown to repeat'
    assert len(made.legs) == number
    call(grid, f'--codes=beef,{CODE}', '--seeds=2')
    assert made.legs[number:] == [(0.2, 2, 0, 100)] and {*read_csv(path).code} == {'beef', CODE}
    path.write_text(text.replace('0.1,1,', '1.00E-01,1,'))
    call(grid, '--seeds=2')
    assert [leg[:2] for leg in made.legs[number + 1:]] == [(0.2, 2)] and '1.00E-01,1,' in path.read_text()


@pytest.mark.parametrize('what', ['code', 'data', 'dtype', 'torch'])
def test_an_edit_while_a_sweep_goes_on(runs, what):
    """The run that has it gets no row"""
    made = runs(best_at(0.2))
    call('--learning_rate=0.1,0.2', '--seeds=1', '--extend=0')
    made.about[what] = 'beef'
    err = call('--learning_rate=0.1,0.2,0.4', '--seeds=1', '--extend=0', code=1)
    assert 'has runs of several' in err and 'beef' in err and len(read_csv('out/runs.csv')) == 2


def test_rows_that_another_process_adds_are_kept(runs):
    """Even on a disk without locks"""
    made, whole = runs(best_at(0.2)), []

    def loss(rate, it, seed):
        if (rate, it) == (0.4, 0):                      # while a run trains
            lines = Path('out/runs.csv').read_text().splitlines()
            Path('out/runs.csv').write_text('\n'.join([*lines, lines[1].replace('0.1,1,', '0.2,9,')]))
            whole.append(len(lines) + 1)
        return best_at(0.2)(rate, it, seed)

    made.loss = loss
    call('--learning_rate=0.1,0.2,0.4', '--seeds=9')
    assert whole == [4] and sorted(map(int, read_csv('out/runs.csv').seed)) == [1, 1, *range(1, 10)]
    assert (0.2, 9, 0, 100) not in made.legs


# ----------------------------------------------------------------------------- extension

@pytest.mark.parametrize('best, extend, tried', [
    (0.2, 2, []), (0.4, 0, []), (0.4, 1, ['0.8']), (0.8, 3, ['0.8', '1.6']), (0.001, 2, ['0.025', '0.05'])])
def test_extension(runs, best, extend, tried):
    """Only while the best rate is at the edge, so many times; then the best one has all seeds"""
    made, arguments = runs(best_at(best)), ['--learning_rate=0.2,0.1,0.4', f'--extend={extend}', '--seeds=2']
    call(*arguments)
    found = {run['learning_rate'] for run in read_csv('out/runs.csv').to_dict('records')}
    assert found == {'0.1', '0.2', '0.4', *tried} and len(made.legs) == len(set(made.legs)) == len(found) + 1
    edge = min(found, key=lambda rate: abs(math.log(float(rate) / best))) in (min(found, key=float), max(found, key=float))
    assert ('(edge)' in chosen(call(*arguments))) == edge


# ----------------------------------------------------------------------------- two tuned keys, and three seeds that choose

DECAYS, RATES = [0.01, 0.03, 0.1, 0.3, 1.0], [0.05, 0.1, 0.2, 0.4, 0.8]


def by_hand(loss, seeds):
    """The seeds that train at each point, and the chosen one, by the rule in words: seed 1 at the grid, then at each neighbour of
    the best point; seeds 2 and 3 at what is within 0.01 of it; all neighbours of the chosen point; then the others there"""
    def beside(point):
        i, j = DECAYS.index(point[0]), RATES.index(point[1])
        return [(DECAYS[a], RATES[b]) for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1))
                if 0 <= a < len(DECAYS) and 0 <= b < len(RATES)]

    trained = {(decay, rate): {1} for decay in DECAYS[1:3] for rate in RATES[1:3]}
    while True:
        best = min(trained, key=lambda point: loss(*point, 1))
        near = [point for point in trained if loss(*point, 1) <= loss(*best, 1) + 0.01]
        if len(near) > 1 and all(trained[point] == {1, 2, 3} for point in near):
            chosen = min(near, key=lambda point: sum(loss(*point, seed) for seed in (1, 2, 3)))
        else:
            chosen = best
        if new := [point for point in beside(best) + beside(chosen) if point not in trained]:
            trained |= {point: {1} for point in new}
        elif len(near) > 1 and any(trained[point] != {1, 2, 3} for point in near):
            trained |= dict.fromkeys(near, {1, 2, 3})
        else:
            return {**trained, chosen: trained[chosen] | {*range(4, seeds + 1)}}, chosen


@pytest.mark.parametrize('draw', range(12))
def test_a_landscape_of_two_keys(draw):
    """Rough ones, on which many points are close, and steep ones; rows of other seeds at the chosen point count"""
    noise, rough = random.Random(draw), (0.002, 0.01, 0.1)[draw % 3]
    bumps = {key: noise.gauss(0, rough) for key in itertools.product(DECAYS, RATES, range(1, 6))}
    peak = noise.choice(DECAYS), noise.choice(RATES)

    def loss(decay, rate, seed):
        return 1 + rough * (abs(math.log(decay / peak[0])) + abs(math.log(rate / peak[1]))) + bumps[decay, rate, seed]

    grid = dict(weight_decay=DECAYS[1:3], learning_rate=RATES[1:3], ladder=dict(weight_decay=DECAYS, learning_rate=RATES))
    defaults = defaults_of(str(ROOT / 'lab' / 'sweep' / '__main__.py'))
    row, = rows_of_file(defaults | dict(grids=[grid], seeds=5, tuning_seeds=3, tuned='weight_decay,learning_rate',
                                        arguments='--dataset=x'))
    wanted, best = by_hand(loss, 5)
    ended = {}
    while to_do := row.next(ended):
        assert row.left(ended) >= len(to_do)
        for run in to_do:
            assert run['key'] not in ended
            point = float(run['config']['weight_decay']), run['config']['learning_rate'], run['config']['seed']
            ended[run['key']] = dict(status='done', seed=point[2], val_loss=loss(*point))
    found = {}
    for key, run in ended.items():
        labels = dict(key)
        found.setdefault((float(labels['weight_decay']), float(labels['learning_rate'])), set()).add(run['seed'])
    assert found == wanted and row.left(ended) == 0
    others = {key: run for key, run in ended.items() if run['seed'] < 4}
    for seed in (1001, 77):
        others[row.run_at(tuple(map(repr, best)), seed)['key']] = dict(status='done', seed=seed, val_loss=1.0)
    assert row.next(others) == []


# ----------------------------------------------------------------------------- interruptions

def drawn_losses():
    """Curves that cross, with noise over seeds; some diverge."""
    draw = random.Random(0)
    curves = {key: (draw.uniform(1, 3), draw.uniform(0.5, 3), draw.choice([30, 60, 999, 999])) for key in itertools.product(
        [0.1, 0.2, 0.4, 0.8, 0.05, 1.6, 0.025, 3.2], (1, 2))}

    def loss(rate, it, seed):
        a, b, dies = curves[rate, seed]
        return a + 2 * math.exp(-b * it / 50) if it < dies else math.nan

    return loss


def test_an_interrupted_sweep_goes_on(runs):
    """Before any start of a run: in the end the tables are those of a sweep that was not interrupted, and no run has trained an
    iteration twice"""
    command = [FOUR, '--extend=2', '--seeds=2']
    whole = runs(drawn_losses())
    call(*command)
    wanted = read_csv('out/runs.csv'), sorted(whole.legs), sorted(p.name for p in Path('out').iterdir())
    Path('out').rename('whole')
    made = runs(drawn_losses())
    for kill in range(len(whole.legs) + 1):
        made.kill = kill
        call(*command, code=130 if kill < len(whole.legs) else 0)
    assert (sorted(made.legs), sorted(p.name for p in Path('out').iterdir())) == wanted[1:]
    assert read_csv('out/runs.csv').equals(wanted[0])
