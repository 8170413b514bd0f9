"""
lab/sweep_plan.py: which runs halving stops, which learning rates are added, and how an interrupted sweep goes on, with runs that
only write the losses that they are told.
"""
from configurator import keys_of, settle

import itertools
import json
import math
import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from helpers import ROOT, run_here

from lab import sweep
from lab.sweep_table import read_runs
from model import GPTConfig
from vit import ViTConfig

DEFAULTS, _ = keys_of(str(ROOT / 'train.py'), GPTConfig, ViTConfig)
LAST, EVERY = 100, 5


class Runs:
    """In the place of train.py: `loss`, a function of (learning rate, iteration, seed), makes the log; one that is not finite
    diverges. `legs`: (learning rate, seed, first iteration, last iteration) of each start. The start of number `kill`, and all
    after it, are interrupted before their checkpoint reaches the disk."""

    def __init__(self, loss):
        self.loss, self.legs, self.kill, self.codes = loss, [], math.inf, []

    def start(self, command, env, **_):
        config = settle(command[2:], DEFAULTS)
        folder = Path(config['out_dir'])
        assert (config['lr_decay_iters'] or config['max_iters']) == LAST, 'the schedule is that of the whole run'
        resumes, rows, begin, code = config['init_from'] == 'resume', [], 0, 0
        if resumes:
            begin = int((folder / 'ckpt.pt').read_text())
            rows = [json.loads(line) for line in (folder / 'log.jsonl').read_text().splitlines()]
            rows = [row for row in rows if row['iter'] < begin]
        rate, seed, end = config['learning_rate'], config['seed'], config['max_iters']
        assert begin <= end
        for it in range(begin, end + 1, EVERY):
            if not math.isfinite(loss := self.loss(rate, it, seed)):
                code = 3
                break
            rows.append(dict(iter=it, val_loss=loss))
        if len(self.legs) >= self.kill:
            raise KeyboardInterrupt
        self.legs.append((rate, seed, begin, end))
        (folder / 'config.json').write_text(json.dumps({**config, 'init_from': 'scratch', 'overwrite': False}))
        (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        (folder / 'ckpt.pt').write_text(str(rows[-1]['iter'] if rows else 0))
        return Ended(code)


class Ended:
    def __init__(self, code):
        self.returncode, self.looks = code, 2

    def poll(self):
        self.looks -= 1
        return None if self.looks > 0 else self.returncode

    def terminate(self):
        pass

    kill = wait = lambda self, *_: 0


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """runs(loss) → Runs, in the current folder"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, 'sleep', lambda _: None)
    monkeypatch.setattr('lab.plot.draw', lambda *picture: None)
    monkeypatch.setattr('engine.task.TextTask.splits', lambda task: {})       # there is no data

    def install(loss):
        made = Runs(loss)
        monkeypatch.setattr(subprocess, 'Popen', made.start)
        return made

    return install


KEYS = [f'--max_iters={LAST}', f'--eval_interval={EVERY}', '--min_lr=0', '--vocab_size=50304', '--jobs=1', '--seeds=3',
        '--out_dir=out']


def call(*arguments, code=0):
    found, out, err = run_here('lab.sweep', *KEYS, *arguments)
    assert found == code, out + err
    return err if code else out


def table():
    lines = Path('out/table.txt').read_text(encoding='utf-8').splitlines()
    return {name.split()[-1]: cell for name, cell in zip(*(
        [part.strip() for part in line.split('  ') if part.strip()] for line in lines[:2]))}


def straight(final, start=5.0):
    """Curves from `start` to the final losses, {rate: loss}"""
    return lambda rate, it, seed: start + (final[rate] - start) * it / LAST + 0.001 * seed


FOUR, HALVING = '--learning_rate=0.1,0.2,0.4,0.8', '--halving=0.25,0.5'


# ----------------------------------------------------------------------------- halving

def test_halving(runs):
    """Two of four rates stop at 25 iterations, one of two at 50; only the best gets more seeds; what goes on is not repeated"""
    made = runs(straight({0.1: 3.0, 0.2: 2.0, 0.4: 1.0, 0.8: 4.0}))
    assert '; more may follow' in call(FOUR, HALVING)
    assert made.legs == [*((rate, 1, 0, 25) for rate in (0.1, 0.2, 0.4, 0.8)), (0.2, 1, 25, 50), (0.4, 1, 25, 50),
                         (0.4, 1, 50, 100), (0.4, 2, 0, 100), (0.4, 3, 0, 100)]
    assert table() == {'0.1': 'stopped at 25: 4.501', '0.2': 'stopped at 50: 3.501', '0.4': '1.002 ± 0.001 *',
                       '0.8': 'stopped at 25: 4.751'}
    config = json.loads(Path('out/learning_rate=0.4,seed=1/config.json').read_text())
    assert config['max_iters'] == LAST and config['lr_decay_iters'] == 0
    found = {(run['labels']['learning_rate'], run['seed']): run['status'] for run in read_runs('out/runs.csv')}
    assert found == {('0.1', '1'): 'stopped', ('0.2', '1'): 'stopped', ('0.8', '1'): 'stopped',
                     **{('0.4', seed): 'done' for seed in '123'}}
    before = list(made.legs)
    assert call(FOUR, HALVING).startswith('6 runs in out, 0 to do') and made.legs == before


def test_halving_looks_at_the_losses_of_its_iteration(runs):
    """What would have won in the end stops, if it was worse than the half at 25"""
    made = runs(lambda rate, it, seed: 5 - it * (0.01 if it <= 25 and rate == 0.1 else rate / 10))
    call('--learning_rate=0.1,0.2', '--halving=0.25')
    assert made.legs[:3] == [(0.1, 1, 0, 25), (0.2, 1, 0, 25), (0.2, 1, 25, 100)]


@pytest.mark.parametrize('excess, stops', [(0.0, False), (0.9, False), (1.1, True)])
def test_nearly_equal_rates_go_on(runs, excess, stops):
    """Within one percent of the last one of the better half"""
    made = runs(lambda rate, it, seed: 2.0 if rate == 0.1 else 2.0 + 0.02 * excess)
    call('--learning_rate=0.1,0.2', '--halving=0.5', '--seeds=1')
    assert ((0.2, 1, 50, 100) in made.legs) == (not stops)


def test_diverged_rates_are_the_worst(runs):
    """Of four, two that diverged are the worse half, however bad the third is; a sweep in which all diverge ends too"""
    made = runs(lambda rate, it, seed: 2 + 10 * rate if rate < 0.4 or it < 10 else math.nan)
    call(FOUR, HALVING, '--seeds=2')
    assert made.legs[4:] == [(0.1, 1, 25, 50), (0.2, 1, 25, 50), (0.1, 1, 50, 100), (0.1, 2, 0, 100)]
    assert table()['0.4'] == table()['0.8'] == 'diverged 1/1'


def test_all_rates_diverge(runs):
    made = runs(lambda rate, it, seed: math.nan)
    call(FOUR, HALVING)
    assert len(made.legs) == 4 and set(table().values()) == {'diverged 1/1'}


def test_what_was_stopped_goes_on_if_all_others_diverge_later(runs):
    made = runs(lambda rate, it, seed: (3.0 + rate if rate < 0.4 else 2.0 + rate if it < 75 else math.nan))
    call(FOUR, '--halving=0.5', '--seeds=2')
    assert made.legs[4:] == [(0.4, 1, 50, 100), (0.8, 1, 50, 100), (0.1, 1, 50, 100), (0.1, 2, 0, 100)]
    assert table() == {'0.1': '3.100 ± 0.000 *', '0.2': 'stopped at 50: 3.200', '0.4': 'diverged 1/1', '0.8': 'diverged 1/1'}


def test_halving_of_several_rows(runs):
    """Each row by itself; several at once"""
    made = runs(lambda rate, it, seed: 2 + rate)
    call('--n_layer=1,2', '--learning_rate=0.1,0.5', '--halving=0.5', '--jobs=4', '--seeds=2')
    assert sorted(made.legs) == sorted(2 * [(0.1, 1, 0, 50), (0.5, 1, 0, 50), (0.1, 1, 50, 100), (0.1, 2, 0, 100)])


def test_without_halving_stopped_runs_go_on(runs):
    """The same sweep without the key trains all to the end, and repeats nothing"""
    made = runs(straight({0.1: 3.0, 0.2: 1.0}))
    call('--learning_rate=0.1,0.2', '--halving=0.5', '--seeds=1')
    made.legs.clear()
    assert call('--learning_rate=0.1,0.2', '--seeds=1').startswith('2 runs in out, 1 to do, 1 at once\n')
    assert made.legs == [(0.1, 1, 50, 100)] and table() == {'0.1': '3.001', '0.2': '1.001 *'}


def test_another_halving_knows_what_was_trained(runs):
    """Runs that are beyond its rung already are compared by their logs"""
    made = runs(straight({0.1: 3.0, 0.2: 2.0, 0.4: 1.0, 0.8: 4.0}))
    call(FOUR, '--halving=0.5', '--seeds=1')
    made.legs.clear()
    assert call(FOUR, '--halving=0.25', '--seeds=1').startswith('4 runs in out, 0 to do') and not made.legs


def test_a_sweep_that_was_killed_after_a_run_had_stopped(runs):
    """Before it noted that: the run is not trained again, and is not missing"""
    made = runs(straight({0.1: 3.0, 0.2: 1.0}))
    call('--learning_rate=0.1,0.2', '--halving=0.5', '--seeds=1')
    wanted = Path('out/table.txt').read_text(), list(made.legs)
    for folder in Path('out').glob('*,seed=1'):
        (folder / 'result.json').unlink()
    call('--learning_rate=0.1,0.2', '--halving=0.5', '--seeds=1')
    assert made.legs[:3] == wanted[1] and made.legs[3:] == [(0.2, 1, 100, 100)] and Path('out/table.txt').read_text() == wanted[0]


def test_the_hours_of_a_run_are_those_of_all_its_legs(runs, monkeypatch):
    made = runs(straight({0.1: 3.0, 0.2: 1.0}))
    clock = itertools.count(0, 10)
    monkeypatch.setattr(time, 'monotonic', lambda: next(clock))
    call('--learning_rate=0.1,0.2', '--halving=0.5', '--seeds=1')
    seconds = {run['labels']['learning_rate']: run['seconds'] for run in read_runs('out/runs.csv')}
    assert len(made.legs) == 3 and seconds['0.2'] == 2 * seconds['0.1'] > 0


# ----------------------------------------------------------------------------- extension

def best_at(best):
    return lambda rate, it, seed: 1 + abs(math.log(rate / best)) if it else 5.0


@pytest.mark.parametrize('best, extend, tried', [
    (0.2, 2, []), (0.4, 0, []), (0.4, 1, ['0.8']), (0.8, 3, ['0.8', '1.6']), (9, 3, ['0.8', '1.6', '3.2']), (0.1, 1, ['0.05']),
    (0.001, 2, ['0.025', '0.05'])])
def test_extension(runs, best, extend, tried):
    """Only while the best rate is at the edge, so many times, each with all seeds"""
    made = runs(best_at(best))
    call('--learning_rate=0.2,0.1,0.4', f'--extend={extend}', '--seeds=2')
    found = {run['labels']['learning_rate'] for run in read_runs('out/runs.csv')}
    assert found == {'0.1', '0.2', '0.4', *tried} and len(made.legs) == len(set(made.legs)) == 2 * len(found)
    edge = min(found, key=lambda rate: abs(math.log(float(rate) / best))) in (min(found, key=float), max(found, key=float))
    assert ('(edge)' in call('--learning_rate=0.2,0.1,0.4', f'--extend={extend}', '--seeds=2', '--select=best').splitlines()[-2]
            ) == edge


def test_extension_by_the_last_ratio_of_each_side(runs):
    made = runs(lambda rate, it, seed: rate if rate < 0.05 else 1.0 / rate)     # 10 is best, and then all below 0.05
    call('--learning_rate=0.1,1,3', '--extend=2', '--seeds=1')
    assert [leg[0] for leg in made.legs] == [0.1, 1, 3, 9, 27]


def test_extension_with_halving(runs):
    """The rate that is added competes with the best one, by the rungs that all have passed; the winner gets the other seeds"""
    made = runs(best_at(0.8))
    call('--learning_rate=0.1,0.2,0.4', HALVING, '--extend=3', '--seeds=2')
    assert made.legs == [(0.1, 1, 0, 25), (0.2, 1, 0, 25), (0.4, 1, 0, 25), (0.2, 1, 25, 50), (0.4, 1, 25, 50), (0.4, 1, 50, 100),
                         (0.8, 1, 0, 25), (0.8, 1, 25, 100), (1.6, 1, 0, 25), (0.8, 2, 0, 100)]


# ----------------------------------------------------------------------------- interruptions

def drawn_losses(number):
    """Curves that cross, with noise over seeds; some diverge."""
    draw = random.Random(number)
    curves = {}

    def loss(rate, it, seed):
        a, b, dies = curves.setdefault((rate, seed), (draw.uniform(1, 3), draw.uniform(0.5, 3), draw.choice([30, 60, 999, 999])))
        return a + 2 * math.exp(-b * it / 50) if it < dies else math.nan

    for rate, seed in itertools.product([0.1, 0.2, 0.4, 0.8, 0.05, 1.6, 0.025, 3.2], (1, 2)):
        loss(rate, 0, seed)
    return loss


@pytest.mark.parametrize('number', [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 6))])
def test_an_interrupted_sweep_goes_on(runs, number):
    """Before any start of a run: in the end the tables are those of a sweep that was not interrupted, and no run has trained an
    iteration twice"""
    command = [FOUR, HALVING, '--extend=2', '--seeds=2']
    whole = runs(drawn_losses(number))
    call(*command)
    wanted = Path('out/table.txt').read_text(), sorted(whole.legs), sorted(p.name for p in Path('out').iterdir())
    Path('out').rename('whole')
    made = runs(drawn_losses(number))
    for kill in range(len(whole.legs) + 1):
        made.kill = kill
        if kill < len(whole.legs):
            assert 'the same command goes on' in call(*command, code=130)
            assert run_here('lab.sweep', '--report=out')[0] == 0
        else:
            call(*command)
    assert (Path('out/table.txt').read_text(), sorted(made.legs), sorted(p.name for p in Path('out').iterdir())) == wanted


@pytest.mark.parametrize('number', range(6, 9))
def test_what_halving_and_extension_promise(runs, number):
    """Whatever the losses: the best rate has all seeds, each other one a single seed, and is at the edge only after all
    extensions at that side or if all others have diverged"""
    made = runs(drawn_losses(number))
    call(FOUR, HALVING, '--extend=2', '--seeds=2')
    found = {}
    for run in read_runs('out/runs.csv'):
        found.setdefault(float(run['labels']['learning_rate']), []).append(run)
    firsts = {rate: of[0]['val_loss'] for rate, of in found.items() if of[0]['status'] == 'done'}
    best, order = min(firsts, key=firsts.get, default=None), sorted(found)
    assert [rate for rate, of in found.items() if len(of) == 2] == [best] * (best is not None)
    assert best is None or best not in (order[0], order[-1]) or best in (0.025, 3.2)
    assert len(made.legs) == len(set(made.legs))


# ----------------------------------------------------------------------------- bad input

@pytest.mark.parametrize('arguments, says', [
    (['--halving=half'], "halving='half': wants rising shares of max_iters between 0 and 1, as in '0.25,0.5'"),
    (['--halving=0.5,0.25'], "halving='0.5,0.25': wants rising shares"), (['--halving=1'], "halving='1': wants rising shares"),
    (['--halving=0'], "halving='0': wants rising shares"), (['--halving=nan'], "halving='nan': wants rising shares"),
    (['--halving=0.5', '--eval_interval=100'], 'with eval_interval=100 these are the evaluations 100; choose a smaller'),
    (['--halving=0.5,0.51'], 'with eval_interval=5 these are the evaluations 50, 50; choose'),
    (['--extend=-1'], 'extend=-1: wants at least 0'),
    (['--extend=1', '--learning_rate=0.1'], 'give several values of learning_rate, or leave them out'),
    (['--halving=0.5', '--learning_rate=0.1'], 'give several values of learning_rate, or leave them out'),
    (['--extend=2', '--min_lr=0.05'], 'extend would add learning_rate=0.025 to learning_rate=0.1,seed=1: '),
    (['--extend=1', '--learning_rate=0,0.1'], 'learning_rate=0.1 and 0 want rates above 0'),
    (['grid.py', '--extend=1'], 'learning_rate=0.2 and 0.1 want rates above 0, and no other difference')])
def test_an_error_comes_before_anything_runs(runs, arguments, says):
    made = runs(best_at(0.1))
    Path('grid.py').write_text("grids = [dict(learning_rate={0.1: '--learning_rate=0.1 --min_lr=0.01',\n"
                               "                            0.2: '--learning_rate=0.2 --min_lr=0.02'})]\n")
    err = call(*([] if 'grid.py' in arguments else [FOUR]), *arguments, code=1)
    assert says in err and err.count('\n') == 1 and not made.legs and not os.path.exists('out')


def test_a_run_of_another_schedule_is_not_one_that_was_stopped(runs):
    """A folder with a run of half the iterations whose rate has fallen to its end, with one that is done, or with a longer one"""
    made = runs(straight({0.1: 3.0, 0.2: 1.0}))
    call('--learning_rate=0.1,0.2', '--seeds=1', '--halving=0.5')
    folder, number = Path('out/learning_rate=0.1,seed=1'), len(made.legs)
    keys, result = (json.loads((folder / name).read_text()) for name in ('config.json', 'result.json'))
    assert (keys['max_iters'], keys['lr_decay_iters'], result['status']) == (50, 100, 'stopped')
    for other_keys, status in (dict(lr_decay_iters=0), 'stopped'), ({}, 'done'), (dict(max_iters=150), 'stopped'):
        (folder / 'config.json').write_text(json.dumps({**keys, **other_keys}))
        (folder / 'result.json').write_text(json.dumps({**result, 'status': status}))
        assert 'out/learning_rate=0.1,seed=1 holds a run with ' in call('--learning_rate=0.1,0.2', '--seeds=1', code=1)
    assert len(made.legs) == number
    assert sweep.leg_of(dict(config=dict(max_iters=9, lr_decay_iters=7)), 4) == dict(max_iters=4, lr_decay_iters=7)
