"""
What a sweep runs: the grid of its runs, and with halving and extension which of them are worth their time.

Everything here follows from the runs' states alone, so that an interrupted sweep goes on as if it had not been.
"""
from configurator import ALIASES, ROOT, TRAIN, keys_of, known, settle

import itertools
import math
import os
import re
import shlex

from engine.keys import check_keys
from engine.task import config_of
from lab.sweep_table import COLUMNS, LR, rank
from model import GPTConfig
from vit import ViTConfig

NEARLY = 0.01               # halving: a rate whose loss is at most this share above the last one that goes on goes on too


# ----------------------------------------------------------------------------- the grid

def words(key, text):
    """Splits the value of a key that holds arguments in one string → a list of them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f'{key}={text!r} is no list of arguments: {error}') from error


def options(axis, values, defaults):
    """{label: arguments of train.py} for the values of an axis."""
    labelled = isinstance(values, dict) and all(isinstance(text, str) for text in values.values())
    if not isinstance(axis, str) or not values or not (labelled or isinstance(values, list)):
        raise ValueError(f'{axis}={values!r} in grids: wants a list of values, or {{label: arguments of train.py}}')
    if axis in ('seed', 'data_seed', 'eval_only', 'overwrite'):
        raise ValueError(f'{axis} cannot be an axis: seeds=N gives seed and data_seed 1 to N, and all runs train')
    if axis in COLUMNS:
        raise ValueError(f'{axis} cannot be an axis: runs.csv and table.csv have a column of this name, choose another')
    if labelled:
        return {str(label): words(axis, text) for label, text in values.items()}
    folder = os.path.join(ROOT, 'config', axis)
    if os.path.isdir(folder):
        return {value: [] if value == 'none' else [os.path.relpath(os.path.join(folder, f'{value}.py'))] for value in values}
    known(ALIASES.get(axis, (axis,))[0], defaults, 'the grid')
    return {str(value): [f'--{axis}={value}'] for value in values}


def make_run(labels, arguments, defaults):
    """A run: the folder's name as `name`, its place on the axes as `labels`, its `arguments`, and the `config` that results from
    them. ValueError if train.py would refuse them."""
    name = re.sub(r'[^\w.,=+-]', '_', ','.join(f'{axis}={label}' for axis, label in labels.items()))
    config = settle(arguments, defaults)
    check_keys(config)                                  # raises ValueError for a bad value
    config_of({**config})
    if config['init_from'] in ('resume', 'auto'):
        raise ValueError(f'init_from={config["init_from"]}: a sweep starts and resumes its runs itself, leave this key out')
    return dict(name=name, labels=labels, arguments=arguments, config=config)


def plan(grids, first, more={}, seeds=3):
    """The runs of all grids, each with the axes `more` too: a list of those of make_run, whose arguments start with `first`.
    A grid may say how many `seeds` it has itself."""
    defaults, _ = keys_of(TRAIN, GPTConfig, ViTConfig)
    points = []
    for grid in grids:
        if not isinstance(grid, dict):
            raise ValueError(f'{grid!r} in grids: wants a dict from an axis to its values')
        grid = {**grid, **more}
        number = grid.pop('seeds', seeds)
        if not isinstance(number, int) or number < 1:
            raise ValueError(f'seeds={number!r} in grids: wants a number of seeds, at least 1')
        axes = {axis: options(axis, values, defaults) for axis, values in grid.items()}
        axes['seed'] = {str(seed): [f'--seed={seed}', f'--data_seed={seed}'] for seed in range(1, number + 1)}
        # files first, so that no file overrides a key of the grid
        in_order = sorted(axes, key=lambda axis: axis in {*defaults, *ALIASES} and isinstance(grid.get(axis, []), list))
        for labels in itertools.product(*axes.values()):
            labels = dict(zip(axes, labels))
            points.append((labels, [*first, *itertools.chain(*(axes[axis][labels[axis]] for axis in in_order))]))
    if len({LR in labels for labels, _ in points}) > 1:
        raise ValueError(f'{LR} is an axis of some grids and not of others: give it to all')
    axes = list(dict.fromkeys(axis for labels, _ in points for axis in labels))
    varies = [axis for axis in axes if axis == 'seed' or len({labels.get(axis) for labels, _ in points}) > 1]
    runs = {}
    for labels, args in points:
        run = make_run({axis: labels[axis] for axis in varies if axis in labels}, args, defaults)
        if runs.setdefault(run['name'], run)['config'] != run['config']:
            raise ValueError(f'two runs of the grid are named {run["name"]}, and differ: give the axes other labels')
    return list(runs.values())


# ----------------------------------------------------------------------------- what is worth its time

def read_shares(halving):
    """'0.25,0.5' → [0.25, 0.5]"""
    try:
        shares = [float(share) for share in halving.split(',')] if halving else []
    except ValueError:
        shares = [math.nan]
    if not all(low < high for low, high in zip([0, *shares], [*shares, 1])):
        raise ValueError(f"halving={halving!r}: wants rising shares of max_iters between 0 and 1, as in '0.25,0.5'")
    return shares


def rungs_of(run, shares):
    """The iterations at which halving compares: shares of max_iters, moved to the nearest evaluation of the run. ValueError if
    two are the same, or one is the end."""
    every, last = run['config']['eval_interval'], run['config']['max_iters']
    rungs = [max(1, round(share * last / every)) * every for share in shares]
    if not all(low < high for low, high in zip(rungs, [*rungs[1:], last])):
        raise ValueError(f'halving={",".join(map(str, shares))}: of {last} iterations with eval_interval={every} these are the '
                         f'evaluations {", ".join(map(str, rungs))}; choose a smaller eval_interval, or other shares')
    return rungs


class Row:
    """The runs of a row of the table, which differ in learning rate and seed: `rates`, {label: its runs, by their seeds}, from
    the lowest to the highest: those of the `grid`, and `extend` more at each side."""

    def __init__(self, runs, shares, extend):
        self.rungs = rungs_of(runs[0], shares)
        self.rates = {}
        for run in sorted(runs, key=lambda run: float(run['labels'].get(LR, 0))):
            self.rates.setdefault(run['labels'].get(LR, ''), []).append(run)
        self.grid = list(self.rates)
        if extend and len(self.grid) > 1:
            low, high = ([self.further(self.grid[at], self.grid[near], k) for k in range(1, extend + 1)]
                         for at, near in ((0, 1), (-1, -2)))
            self.rates = {**dict(reversed(low)), **self.rates, **dict(high)}

    def further(self, edge, near, k):
        """The rate k ratios beyond the edge of the grid, of three digits, and its runs."""
        def at(rate, run):
            return [f'--{LR}={rate}' if arg == f'--{LR}={edge}' else arg for arg in run['arguments']]

        pairs = zip(self.rates[edge], self.rates[near])
        if min(float(edge), float(near)) <= 0 or any(at(near, run) != other['arguments'] for run, other in pairs):
            raise ValueError(f'extend: the runs with {LR}={near} and {edge} want rates above 0, and no other difference')
        rate = f'{float(edge) * (float(edge) / float(near)) ** k:.3g}'
        runs, defaults = [], keys_of(TRAIN, GPTConfig, ViTConfig)[0]
        for run in self.rates[edge]:
            try:
                runs.append(make_run({**run['labels'], LR: rate}, at(rate, run), defaults))
            except ValueError as error:
                raise ValueError(f'extend would add {LR}={rate} to {run["name"]}: {error}') from error
        return rate, runs

    def next(self, states):
        """The runs of the row that have been wanted so far, and what is to do now: [(run, the iteration to which it shall go)],
        empty at the end. `states`: {name: what read_state says of the run}.

        With halving, the first seeds of all rates of the grid go to the first rung. The better half of them goes on to the next
        one, with all rates whose loss is above that of the last in this half by at most NEARLY of it. If all that go on diverge
        before the end, the others go on too. In the end the best rate gets the other seeds. Without halving, all seeds of all
        rates go to the end. While the best rate is at the edge, the next one beyond competes with it in the same way."""
        wanted = {}

        def first(rate):
            return self.rates[rate][:1] if self.rungs else self.rates[rate]

        def to_do(runs, it):
            wanted.update((run['name'], run) for run in runs)
            return [(run, it) for run in runs if not reached(run, states[run['name']], it)]

        def last(runs):
            return runs[0]['config']['max_iters']

        def rank_of(rate):
            return rank([states[run['name']] for run in first(rate)])

        def compete(rates):
            alive = rates
            for rung in self.rungs:
                if len(alive) == 1:
                    break
                todo = [one for rate in alive for one in to_do(first(rate), rung)]
                if todo:
                    return todo
                alive = better_half({rate: loss_at(states[first(rate)[0]['name']], rung) for rate in alive})
            todo = [one for rate in alive for one in to_do(first(rate), last(first(rate)))]
            stopped = [rate for rate in rates if rate not in alive]
            if todo or not stopped or any(not rank_of(rate)[0] for rate in alive):
                return todo
            return compete(stopped)

        tried, order = list(self.grid), list(self.rates)
        todo = compete(tried)
        while not todo:
            best = min(tried, key=rank_of)
            side = {tried[0]: -1, tried[-1]: 1}.get(best, 0)
            beyond = order.index(best) + side
            if rank_of(best)[0] or not side or not 0 <= beyond < len(order):
                break
            tried = sorted([*tried, order[beyond]], key=float)
            todo = compete([best, order[beyond]])
        if not todo and not rank_of(best)[0]:
            todo = to_do(self.rates[best], last(self.rates[best]))
        return list(wanted.values()), todo


def rows_of_plan(runs, shares, extend):
    """The rows of the table of these runs. ValueError if halving or extending could do nothing."""
    groups = {}
    for run in runs:
        row = tuple((axis, label) for axis, label in run['labels'].items() if axis not in (LR, 'seed'))
        groups.setdefault(row, []).append(run)
    rows = [Row(group, shares, extend) for group in groups.values()]
    if (shares or extend) and all(len(row.grid) == 1 for row in rows):
        raise ValueError(f'halving and extend choose between learning rates: give several values of {LR}, or leave them out')
    return rows


def loss_at(state, it):
    """The validation loss of a run at an evaluation, infinite if it has not got there."""
    return dict(state['curve']).get(it, math.inf)


def reached(run, state, it):
    """Whether a run has been at an iteration, or cannot get there."""
    ended = state['status'] in ('done', 'diverged', 'failed')
    return ended or it < run['config']['max_iters'] and loss_at(state, it) < math.inf


def better_half(losses):
    """Of {rate: loss}, the rates that go on."""
    last = sorted(losses.values())[(len(losses) + 1) // 2 - 1]
    return [rate for rate, loss in losses.items() if loss <= (1 + NEARLY) * last]
