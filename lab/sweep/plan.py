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
import math
import os
import shlex

from engine.keys import check_keys, gpt_config, group_settings
from lab.sweep.table import CELLS, Tuning, canonical, key_of, name_of, row_name

# ----------------------------------------------------------------------------- scripts

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
    if axis in CELLS:
        raise ValueError(f'{axis} cannot be an axis: runs.csv has a column of this name, choose another')
    if labelled:
        return {str(label): words(axis, text) for label, text in values.items()}
    folder = os.path.join(ROOT, 'config', axis)
    if os.path.isdir(folder):
        return {value: [] if value == 'none' else [os.path.relpath(os.path.join(folder, f'{value}.py'))] for value in values}
    known(ALIASES.get(axis, (axis,))[0], defaults, 'the grid')
    return {str(value): [f'--{axis}={value}'] for value in values}


def make_run(labels, arguments, script):
    """Return a run: its folder's name as `name`, its place on the axes as `labels` and `key`, its `arguments`, the resulting
    `config`, and a hash of that as `keys`. Raise ValueError if the script would refuse the arguments."""
    config = parse_args(arguments, script_defaults(script))
    check_keys(config)
    gpt_config(config, sources_of(script)[1])
    group_settings(config)
    if config['init_from'] in ('resume', 'auto'):
        raise ValueError(f'init_from={config["init_from"]}: a sweep starts and resumes its runs itself, leave this key out')
    trained = {key: value for key, value in config.items() if key not in ('out_dir', 'overwrite', 'debug')}
    keys = hashlib.blake2b(json.dumps(trained, sort_keys=True).encode(), digest_size=6).hexdigest()
    return dict(name=name_of(labels), labels=labels, key=key_of(labels), arguments=arguments, config=config, keys=keys)


def beyond(values, extend):
    """Return ascending values with up to `extend` more at each end, in the ratio of the last two there, to three digits."""
    if len(values) < 2 or float(values[0]) <= 0:
        return values
    low, high = ([f'{float(edge) * (float(edge) / float(near)) ** k:.3g}' for k in range(1, extend + 1)]
                 for edge, near in (values[:2], values[:-3:-1]))
    return [*reversed(low), *values, *high]


class PlannedRow:
    """The runs of a table's row, which differ in the tuned keys and the seed.

    `grid`: {tuned key: its values, ascending}, and `ladder` the same with the values that may be added. Seed 1 trains at all
    points of the grid, and then beside the best one, a step of one key up or down its ladder, until the best one's neighbours are
    known. Points close to the best one train with the other tuning seeds. The other seeds train at the chosen point. Those that
    the csv has there count, whatever their numbers.
    """

    def __init__(self, labels, arguments, grid, ladder, seeds, tuning, script):
        self.labels, self.arguments, self.seeds, self.tuning, self.script = labels, arguments, seeds, tuning, script
        self.ladder = {key: [*map(canonical, ladder[key])] for key in grid}
        self.spelling = {(key, canonical(value)): value for key in grid for value in ladder[key]}
        self.grid = [*itertools.product(*([*map(canonical, values)] for values in grid.values()))]
        self.run_at = functools.cache(self.run_at)
        for point in self.grid:
            self.run_at(point, seeds[0])                # fail early on keys that the script refuses

    def __str__(self):
        return row_name(self.labels)

    def run_at(self, point, seed):
        """Return the run of a seed at a point, see make_run."""
        tuned = {key: self.spelling[key, value] for key, value in zip(self.ladder, point)}
        return make_run({**self.labels, **tuned, 'seed': str(seed)}, [
            *self.arguments, *(f'--{key}={value}' for key, value in tuned.items()), f'--seed={seed}', f'--data_seed={seed}'],
            self.script)

    def beside(self, point):
        """Return the points one step of one tuned key away."""
        found = []
        for i, steps in enumerate(self.ladder.values()):
            at = steps.index(point[i])
            found += [(*point[:i], step, *point[i + 1:]) for step in (*steps[max(0, at - 1):at], *steps[at + 1:at + 2])]
        return found

    def there(self, ended):
        """Return {point of the ladder: {seed: run}} of this row's runs that have ended. `ended`: {key: a row of runs_of}."""
        own, found = key_of(self.labels), {}
        for key, run in ended.items():
            values = dict(key - own)
            point = tuple(values.pop(name, None) for name in self.ladder)
            if own <= key and values.keys() == {'seed'} and all(x in steps for x, steps in zip(point, self.ladder.values())):
                found.setdefault(point, {})[int(run['seed'])] = run
        return found

    def next(self, ended):
        """Return the runs to train now, or none at the end. A row whose tuning runs failed, or all diverged, ends."""
        there = self.there(ended)
        if len(self.grid) == 1:
            return [self.run_at(self.grid[0], seed) for seed in self.seeds if seed not in there.get(self.grid[0], ())]
        if to_do := [self.run_at(point, 1) for point in self.grid if 1 not in there.get(point, ())]:
            return to_do
        losses = {point: {seed: run['val_loss'] if run['status'] == 'done' else math.inf for seed, run in runs.items()
                          if seed <= self.tuning.seeds} for point, runs in there.items() if 1 in runs}
        failed = any(run['status'] == 'failed' for runs in there.values() for run in runs.values())
        if failed or all(by_seed[1] == math.inf for by_seed in losses.values()):
            return []
        best, missing = self.tuning.choose(losses)
        lowest = min(losses, key=lambda point: losses[point][1])
        untried = [(point, 1) for point in dict.fromkeys([*self.beside(lowest), *self.beside(best)]) if point not in losses]
        if to_do := untried or missing:
            return [self.run_at(*run) for run in to_do]
        others = [seed for seed in self.seeds if seed > self.tuning.seeds]
        have = {seed for seed in there[best] if seed > self.tuning.seeds}
        return [self.run_at(best, seed) for seed in others if seed not in have][:max(0, len(others) - len(have))]

    def left(self, ended):
        """Return how many runs are missing. Values beyond the grid and close calls may add some."""
        to_do = self.next(ended)
        others = sum(seed > self.tuning.seeds for seed in self.seeds)
        tunes = len(self.grid) > 1 and any(int(run['labels']['seed']) <= self.tuning.seeds for run in to_do)
        return len(to_do) + others * tunes


def planned_rows(grids, first, tuning=Tuning(), more={}, seeds=3, extend=2, script='train.py'):
    """Return the PlannedRows of all grids, each with the axes `more`, and with arguments that start with `first`. An axis of
    `more` with one value sets this key of all runs, and does not name them. `seeds` is their number, or a list. Two names in a
    grid are no axes: its own `seeds`, and `ladder`, {tuned key: values that may be added beside its best one}. Without a ladder
    up to `extend` values may be added at each end, in the ratio of the last two there."""
    defaults, rows = script_defaults(script), {}
    for grid in grids:
        if not isinstance(grid, dict):
            raise ValueError(f'{grid!r} in grids: wants a dict from an axis to its values')
        grid, fixed = {**grid, **more}, {axis for axis, values in more.items() if axis != 'seeds' and len(values) == 1}
        own, ladder = grid.pop('seeds', seeds), grid.pop('ladder', {})
        if not isinstance(own, list) and (not isinstance(own, int) or own < 1):
            raise ValueError(f'seeds={own!r} in grids: wants a number of seeds, at least 1, or a list of them')
        tuned = {key: grid.pop(key) for key in tuning.keys if isinstance(grid.get(key), list) and key not in fixed}
        for key, values in tuned.items():
            options(key, values, defaults)
        tuned = {key: sorted(map(str, values), key=float) for key, values in tuned.items()}
        steps = {key: beyond(values, extend) if key not in ladder else sorted(     # one spelling of each value
                 {canonical(value): value for value in (*map(str, ladder[key]), *values)}.values(), key=float)
                 for key, values in tuned.items()}
        axes = {axis: options(axis, values, defaults) for axis, values in grid.items()}
        # files first, so that they cannot override a key of the grid
        in_order = sorted(axes, key=lambda axis: axis in {*defaults, *ALIASES} and isinstance(grid[axis], list))
        for chosen in itertools.product(*axes.values()):
            labels = dict(zip(axes, chosen))
            arguments = [*first, *itertools.chain(*(axes[axis][labels[axis]] for axis in in_order))]
            labels = {axis: label for axis, label in labels.items() if axis not in fixed}
            row = PlannedRow(labels, arguments, tuned, steps, own if isinstance(own, list) else [*range(1, own + 1)], tuning,
                             script)
            if rows.setdefault(name_of(labels), row) is not row or key_of(labels) in {key_of(r.labels) for r in rows.values()
                                                                                       if r is not row}:
                raise ValueError(f'two rows are named {row or "(all runs)"}, or alike: leave one out, or choose other labels')
    return [*rows.values()]


def rows_of_file(keys, more={}, arguments=()):
    """Return the PlannedRows of a sweep's keys, see read_sweep, with the command line's axes and arguments."""
    return planned_rows(keys['grids'] or [{}], [*words('arguments', keys['arguments']), *arguments], Tuning.of(keys), more,
                        keys['seeds'], keys['extend'], keys['script'])
