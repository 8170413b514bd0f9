"""
lab/sweep/plan.py and run.py: which runs a sweep makes, which learning rates are added, and how an interrupted sweep goes on, with
runs that only write the losses that they are told.
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

import pytest
import torch
from helpers import ROOT, run_here

from engine.code import code_hash
from engine.device import pick_dtype
from lab.sweep.table import read_csv, read_runs
from model import GPTConfig

DEFAULTS = defaults_of(str(ROOT / 'train.py'), GPTConfig)
LAST, EVERY = 100, 5
CODE = code_hash(str(ROOT / 'train.py'))


class Runs:
    """In the place of train.py: `loss`, a function of (learning rate, iteration, seed), makes the log; one that is not finite
    diverges. `legs`: (learning rate, seed, first iteration, last iteration) of each start; `started`: its name, arguments, GPU
    and threads, and how many then run on that GPU. The start of number `kill`, and all after it, are interrupted before their
    checkpoint reaches the disk."""

    def __init__(self, loss):
        self.loss, self.legs, self.started, self.kill, self.code = loss, [], [], math.inf, 0
        self.processes, self.looks = [], itertools.cycle((3, 1, 2))
        self.about = dict(code=CODE, data='da7a', torch=torch.__version__)

    def start(self, command, env, **_):
        config, gpu = parse_args(command[2:], DEFAULTS), env.get('CUDA_VISIBLE_DEVICES')
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
        self.processes.append(Ended(code, gpu, next(self.looks)))
        at, = [i for i, arg in enumerate(command) if arg.startswith('--out_dir=')]
        self.started.append(dict(name=folder.name, arguments=command[2:at], gpu=gpu, threads=env['OMP_NUM_THREADS'],
                                 shared=sum(other.looks > 0 and other.gpu == gpu for other in self.processes)))
        return self.processes[-1]


class Ended:
    """A process that is over after some looks at it"""

    def __init__(self, code, gpu, looks):
        self.returncode, self.gpu, self.looks = code, gpu, looks

    def poll(self):
        self.looks -= 1
        return None if self.looks > 0 else self.returncode

    def terminate(self):
        pass

    kill = wait = lambda self, *_: 0


def fake_runs(monkeypatch, tmp_path):
    """A function from `loss` to the Runs that a sweep then starts in the current folder"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, 'sleep', lambda _: None)
    monkeypatch.setattr('lab.plot.draw', lambda *picture: None)
    monkeypatch.setattr('lab.sweep.run.read_meta', lambda name: dict(tokens={}))
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


def table():
    lines = Path('out/table.txt').read_text(encoding='utf-8').splitlines()
    return dict(zip(*(re.split(r'  +', line) for line in lines[:2])))


def best_at(best):
    return lambda rate, it, seed: 1 + abs(math.log(rate / best)) + 0.001 * seed if it else 5.0


# ----------------------------------------------------------------------------- which runs

def test_seed_1_chooses_and_the_others_train_at_its_rate(runs):
    """Every rate trains to the end, and what has a row in runs.csv is not repeated, also without its folder. What is to come is
    said before"""
    made = runs(best_at(0.4))
    out = call(FOUR)
    assert out.startswith('0 runs of out/runs.csv are done, 6 to do, 1 at once, the first tells how long they take\n'
                          '  all: seed 1 at learning_rate=0.1,0.2,0.4,0.8, more may follow; seed=2,3 at the best rate\n')
    assert made.legs == [*((rate, 1, 0, 100) for rate in (0.1, 0.2, 0.4, 0.8)), (0.4, 2, 0, 100), (0.4, 3, 0, 100)]
    assert table() == {'lr 0.1': '2.387', 'lr 0.2': '1.694', 'lr 0.4': '1.001 *', 'lr 0.8': '1.694',
                       'validation loss': '1.002 ± 0.000'}
    shutil.rmtree('out/learning_rate=0.4,seed=2')
    assert call(FOUR).startswith('6 runs of out/runs.csv are done, 0 to do') and len(made.legs) == 6
    assert '6 runs of out/runs.csv are done, 2 to do, 1 at once, about 3.4 hours\n' in call(FOUR, '--seeds=5')


def test_rates_that_diverge(runs):
    """They are the worst, and where all do, nothing is chosen"""
    made = runs(lambda rate, it, seed: 2 + 10 * rate if rate < 0.4 or it < 10 else math.nan)
    call(FOUR, '--seeds=2', '--extend=0')
    assert made.legs[4:] == [(0.1, 2, 0, 100)] and table()['lr 0.4'] == table()['lr 0.8'] == 'diverged 1/1'
    made = runs(lambda rate, it, seed: math.nan)
    call(FOUR, '--out_dir=other')
    assert len(made.legs) == 4


def test_a_sweep_is_of_one_grid_code_data_precision_and_version(runs):
    """Else it ends with a line before it trains. A spreadsheet may have saved its rows"""
    made, grid = runs(best_at(0.2)), '--learning_rate=0.1,0.2,0.4'
    call(grid, '--seeds=1')
    path, number = Path('out/runs.csv'), len(made.legs)
    text = path.read_text()
    err = call('--learning_rate=0.1,0.2', '--extend=0', code=1)
    assert 'has the run learning_rate=0.4, seed=1, which is not in this grid' in err
    assert 'seed=1, which had other keys' in call(grid, '--beta2=0.5', code=1)
    for what, here in dict(code=CODE, data='da7a', precision='float32', torch=torch.__version__).items():
        path.write_text(text.replace(f',{here},', ',beef,'))
        assert re.search(rf'0.1,seed=1 has other {what} \(beef.*\) than the runs here \({re.escape(here)}\)', call(grid, code=1))
        path.write_text(text.replace(f',{here},', ',beef,', 1))
        assert 'has runs of several' in call(grid, code=1)
    assert len(made.legs) == number
    path.write_text('\ufeff' + text.replace('0.1,1,', '1.00E-01,1,'))
    call(grid, '--seeds=2')
    assert made.legs[number:] == [(0.2, 2, 0, 100)] and '1.00E-01,1,' in path.read_text()


@pytest.mark.parametrize('what', ['code', 'data', 'dtype', 'torch'])
def test_an_edit_while_a_sweep_goes_on(runs, what):
    """The run that has it gets no row"""
    made = runs(best_at(0.2))
    call('--learning_rate=0.1,0.2', '--seeds=1', '--extend=0')
    made.about[what] = 'beef'
    err = call('--learning_rate=0.1,0.2,0.4', '--seeds=1', '--extend=0', code=1)
    assert re.search(r'the run learning_rate=0.4,seed=1 has other \w+ \(beef', err) and len(read_csv('out/runs.csv')) == 2


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
    assert whole == [4] and sorted(read_runs('out/runs.csv').seed) == [1, 1, *range(1, 10)]
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
    assert ('(edge)' in call(*arguments, '--select=best').splitlines()[-2]) == edge


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
    wanted = Path('out/table.txt').read_text(), sorted(whole.legs), sorted(p.name for p in Path('out').iterdir())
    Path('out').rename('whole')
    made = runs(drawn_losses())
    for kill in range(len(whole.legs) + 1):
        made.kill = kill
        call(*command, code=130 if kill < len(whole.legs) else 0)
    assert (Path('out/table.txt').read_text(), sorted(made.legs), sorted(p.name for p in Path('out').iterdir())) == wanted
