"""
Plan a sweep: list the runs of its grid, and choose the next ones.

The choice depends only on the runs that have ended, so that an interrupted sweep continues as if nothing had happened.
"""
from configurator import ALIASES, ROOT, defaults_of, known, parse_args

import ast
import functools
import hashlib
import importlib
import itertools
import json
import os
import shlex

from engine.keys import check_keys, gpt_config, group_settings
from lab.sweep.table import COLUMNS, LR, TUNING_SEED, by_key, key_of, name_of, read_csv, row_name, runs_of

# ----------------------------------------------------------------------------- scripts and sweep files

@functools.cache
def sources_of(script):
    """Return the sources of a training script's keys: its path, its model's config class, perhaps TRAIN. Read them from the
    script's call of configure(), because the lab does not import vision/. `script`: 'train.py' or a module, 'vision.train'."""
    path = os.path.join(ROOT, script if script.endswith('.py') else script.replace('.', os.sep) + '.py')
    if not os.path.isfile(path):
        raise ValueError(f'script={script!r}: there is no {path}; wants train.py, or a module such as vision.train')
    with open(path, encoding='utf-8') as f:
        tree = ast.parse(f.read())
    modules = {alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'configure')
    return path, *(getattr(importlib.import_module(modules[arg.id]), arg.id) for arg in call.args[1:])


@functools.cache
def script_defaults(script):
    """Return a training script's {key: default}."""
    return defaults_of(*sources_of(script))


def read_sweep(path):
    """Return {key of lab.sweep: value} from a sweep's file."""
    return parse_args([str(path)], defaults_of(os.path.join(ROOT, 'lab', 'sweep', '__main__.py')))


def stated(path, name):
    """Return the value of a name with an underscore, such as _commit, in a sweep's file, or None. Such names are not keys."""
    with open(path, encoding='utf-8') as f:
        values = [node.value for node in ast.parse(f.read()).body if isinstance(node, ast.Assign)
                  and ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(values[-1]) if values else None


# ----------------------------------------------------------------------------- the grid

def words(key, text):
    """Split a key's value, which holds arguments in one string, into a list."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f'{key}={text!r} is not a list of arguments: {error}') from error


def options(axis, values, defaults):
    """Return {label: arguments of train.py} for an axis's values."""
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


def make_run(labels, arguments, script):
    """Return a run: its folder's name as `name`, its place on the axes as `labels` and `key`, its `arguments`, the resulting
    `config`, a hash of that as `keys`, and the `script`. Raise ValueError if the script would refuse the arguments."""
    config = parse_args(arguments, script_defaults(script))
    check_keys(config)
    gpt_config(config, sources_of(script)[1])
    group_settings(config)
    if config['init_from'] in ('resume', 'auto'):
        raise ValueError(f'init_from={config["init_from"]}: a sweep starts and resumes its runs itself, leave this key out')
    trained = {key: value for key, value in config.items() if key not in ('out_dir', 'overwrite', 'debug')}
    keys = hashlib.blake2b(json.dumps(trained, sort_keys=True).encode(), digest_size=6).hexdigest()
    return dict(name=name_of(labels), labels=labels, key=key_of(labels), arguments=arguments, config=config, keys=keys,
                script=script)


def plan(grids, first, more={}, seeds=3, script='train.py'):
    """Return the runs of all grids, see make_run, each grid with the axes `more` added, and with arguments that start with
    `first`. `seeds` is their number, or a list. A grid may set its own `seeds`."""
    defaults = script_defaults(script)
    points = []
    for grid in grids:
        if not isinstance(grid, dict):
            raise ValueError(f'{grid!r} in grids: wants a dict from an axis to its values')
        grid = {**grid, **more}
        own = grid.pop('seeds', seeds)
        if not isinstance(own, list) and (not isinstance(own, int) or own < 1):
            raise ValueError(f'seeds={own!r} in grids: wants a number of seeds, at least 1, or a list of them')
        axes = {axis: options(axis, values, defaults) for axis, values in grid.items()}
        axes['seed'] = {str(seed): [f'--seed={seed}', f'--data_seed={seed}']
                        for seed in (own if isinstance(own, list) else range(1, own + 1))}
        # files first, so that they cannot override a key of the grid
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
        run = make_run({axis: labels[axis] for axis in varies if axis in labels}, args, script)
        if runs.setdefault(run['name'], run)['config'] != run['config']:
            raise ValueError(f'two runs of the grid are named {run["name"]}, and differ: give the axes other labels')
    run_with_key = {}
    for run in runs.values():
        if run_with_key.setdefault(run['key'], run) is not run:
            raise ValueError(f'{run["name"]} and {run_with_key[run["key"]]["name"]} are the same run: leave one of them out')
    return list(runs.values())


# ----------------------------------------------------------------------------- what comes next

class PlannedRow:
    """The runs of a table's row, which differ in learning rate and seed. `rates`: {label: its runs, by seed}, in ascending
    order: the rates of the `grid`, and up to `extend` more on each side."""

    def __init__(self, runs, extend):
        self.rates = {}
        for run in sorted(runs, key=lambda run: float(run['labels'].get(LR, 0))):
            self.rates.setdefault(run['labels'].get(LR, ''), []).append(run)
        self.grid = list(self.rates)
        self.labels = {axis: label for axis, label in runs[0]['labels'].items() if axis not in (LR, 'seed')}
        if len(self.grid) > 1:
            low, high = (self.beyond(self.grid[at], self.grid[near], extend) for at, near in ((0, 1), (-1, -2)))
            self.rates = {**dict(reversed(low.items())), **self.rates, **high}

    def __str__(self):
        return row_name(self.labels)

    def runs(self):
        return [run for runs in self.rates.values() for run in runs]

    def beyond(self, edge, near, extend):
        """Return {rate: its runs} for up to `extend` rates beyond the grid's edge, by the ratio of its last two rates, to three
        digits. Return none if those two rates' runs differ in more than the rate, and stop at a rate that train.py would
        refuse."""
        def at(rate, run):
            return [f'--{LR}={rate}' if arg == f'--{LR}={edge}' else arg for arg in run['arguments']]

        further = {}
        pairs = zip(self.rates[edge], self.rates[near])
        if min(float(edge), float(near)) <= 0 or any(at(near, run) != other['arguments'] for run, other in pairs):
            return further
        for k in range(1, extend + 1):
            rate = f'{float(edge) * (float(edge) / float(near)) ** k:.3g}'
            try:
                further[rate] = [make_run({**run['labels'], LR: rate}, at(rate, run), run['script']) for run in self.rates[edge]]
            except ValueError:
                break
        return further

    def next(self, ended):
        """Return the runs to train now, or none at the end. `ended`: {key: a row of read_runs}.

        The first seed trains at all rates of the grid, and while its best rate is at the edge, at the next one beyond. Then the
        other seeds train at the best rate. If the first seed is not done at any rate, the row ends.
        """
        if len(self.grid) == 1:
            return [run for run in self.runs() if run['key'] not in ended]
        tuning = {rate: runs[0] for rate, runs in self.rates.items() if rate in self.grid or runs[0]['key'] in ended}
        to_do = [run for run in tuning.values() if run['key'] not in ended]
        if to_do:
            return to_do
        runs = {rate: ended[run['key']] for rate, run in tuning.items()}
        losses = {rate: run['val_loss'] for rate, run in runs.items() if run['status'] == 'done'}
        if not losses or any(run['status'] == 'failed' for run in runs.values()):       # the next call retries failed runs
            return []
        best, tried, order = min(losses, key=losses.get), list(tuning), list(self.rates)
        beyond = order.index(best) + (best == tried[-1]) - (best == tried[0])
        if best in (tried[0], tried[-1]) and 0 <= beyond < len(order):
            return [self.rates[order[beyond]][0]]
        return [run for run in self.rates[best] if run['key'] not in ended]

    def left(self, ended):
        """Return the missing part of the grid: (rates at which the first seed has not ended, other seeds that have not ended at
        any rate). Rates added beyond the grid are not counted."""
        if not self.next(ended):
            return [], []
        several, by_seed = len(self.grid) > 1, {}
        for run in self.runs():
            by_seed.setdefault(run['labels']['seed'], []).append(run['key'] in ended)
        if several:
            del by_seed[str(TUNING_SEED)]
        first = [rate for rate in self.grid if several and self.rates[rate][0]['key'] not in ended]
        return first, [seed for seed, has_ended in by_seed.items() if not any(has_ended)]


def planned_rows(runs, extend):
    """Return the PlannedRows of these runs."""
    groups = {}
    for run in runs:
        row = tuple((axis, label) for axis, label in run['labels'].items() if axis not in (LR, 'seed'))
        groups.setdefault(row, []).append(run)
    return [PlannedRow(group, extend) for group in groups.values()]


def runs_left(rows, ended):
    """Return how many runs of the planned rows are left."""
    return sum(len(part) for row in rows for part in row.left(ended))


def runs_left_of(file, csv):
    """Return how many runs of a sweep's file have no row in its csv yet, and the seconds that each finished run took. Best
    rates at the edge of a grid may add runs."""
    keys = read_sweep(file)
    runs = runs_of(read_csv(csv), csv, keys['diverged_loss'], keys['diverged_rise'])
    runs = runs[runs.status != 'failed']                # failed runs are tried again
    planned = plan(keys['grids'], words('arguments', keys['arguments']), {}, keys['seeds'], keys['script'])
    return runs_left(planned_rows(planned, keys['extend']), by_key(runs)), runs.seconds[runs.status == 'done']
