"""Plan a sweep: list the runs of its grid, and choose the next ones, which depend only on the runs that have ended."""
from configurator import ALIASES, ROOT, defaults_of, known, parse_args

import functools
import hashlib
import itertools
import json
import os
import re
import shlex

from engine.checkpoint import key_sources
from engine.keys import check_keys, gpt_config, group_settings
from lab.runs import model_of
from lab.sweep.table import CELLS, Tuning, canonical, key_of, row_name


@functools.cache
def sources_of(script):
    """Return the sources of a training script's keys: its path, its model's config class, perhaps TRAIN."""
    return key_sources(model_of(script).Config)


@functools.cache
def script_defaults(script):
    return defaults_of(*sources_of(script))


def read_sweep(path):
    """Return {key of lab.sweep: value} from a sweep's file."""
    return parse_args([str(path)], defaults_of(os.path.join(ROOT, 'lab', 'sweep', '__main__.py')))


def options(axis, values, defaults):
    """Return {label: arguments of train.py} for an axis's values."""
    if axis in ('seed', 'data_seed', 'eval_only', 'overwrite', *CELLS) or not values or not isinstance(values, (list, dict)):
        raise ValueError(f'{axis}={values!r} cannot be an axis: choose another key or name (seeds=N sets seeds), and a list of '
                         'values or {label: arguments}')
    if isinstance(values, dict):
        return {str(label): shlex.split(text) for label, text in values.items()}
    folder = os.path.join(ROOT, 'config', axis)
    if os.path.isdir(folder):
        return {value: [] if value == 'none' else [os.path.relpath(os.path.join(folder, f'{value}.py'))] for value in values}
    known(ALIASES.get(axis, (axis,))[0], defaults, 'the grid')
    return {str(value): [f'--{axis}={value}'] for value in values}


def name_of(labels):
    """Return the name of a run's folder."""
    return re.sub(r'[^\w.,=+-]', '_', row_name(labels))


def make_run(labels, arguments, script):
    """Return a run: the `name` of its folder, its place on the axes as `labels` and `key`, its `arguments`, the resulting
    `config`, and a hash of that as `keys`. Raise ValueError if the script would refuse the arguments."""
    config = parse_args(arguments, script_defaults(script))
    check_keys(config)
    gpt_config(config, sources_of(script)[1])
    group_settings(config)
    if config['init_from'] in ('resume', 'auto'):       # the latter would go on with a run of other code
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
    """The runs of a table's row. `grid`: {tuned key: its values}, and `ladder` the same with the values that may be added, both
    ascending. Seed 1 trains at all points of the grid, and then beside the best one, a step of one key up or down its ladder,
    until the best one's neighbours are known. Points close to the best one train with the other tuning seeds. The other seeds
    train at the chosen point. Those that the csv has there count, whatever their numbers."""

    def __init__(self, labels, arguments, grid, ladder, seeds, tuning, script):
        self.labels, self.arguments, self.seeds, self.tuning, self.script = labels, arguments, seeds, tuning, script
        self.ladder = {key: [*map(canonical, values)] for key, values in ladder.items()}
        self.grid = [*itertools.product(*([*map(canonical, values)] for values in grid.values()))]
        self.run_at = functools.cache(self.run_at)
        for point in self.grid:
            self.run_at(point, seeds[0])                # fail early on keys that the script refuses

    def __str__(self):
        return row_name(self.labels)

    def run_at(self, point, seed):
        """Return the run of a seed at a point, see make_run."""
        tuned = {key: value.removesuffix('.0') for key, value in zip(self.ladder, point)}
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
        """Return the runs to train now, or none at the end. If all of seed 1's runs diverged, lower values follow."""
        there = self.there(ended)
        if len(self.grid) == 1:
            return [self.run_at(self.grid[0], seed) for seed in self.seeds if seed not in there.get(self.grid[0], ())]
        if to_do := [self.run_at(point, 1) for point in self.grid if 1 not in there.get(point, ())]:
            return to_do
        best, lowest, missing = self.tuning.choose({point: runs.values() for point, runs in there.items()})
        if best is None:
            lowest = best = min(there, key=lambda point: [*map(float, point)])
        beside = dict.fromkeys([*self.beside(lowest), *self.beside(best)])
        if to_do := [(point, 1) for point in beside if 1 not in there.get(point, ())] or missing:
            return [self.run_at(*run) for run in to_do]
        if there[best][1]['status'] != 'done':
            return []
        others = [seed for seed in self.seeds if seed > self.tuning.seeds]
        have = {seed for seed in there[best] if seed > self.tuning.seeds}
        return [self.run_at(best, seed) for seed in others if seed not in have][:max(0, len(others) - len(have))]

    def left(self, ended):
        """Return how many runs are missing. Values beyond the grid and close calls may add some."""
        to_do = self.next(ended)
        others = sum(seed > self.tuning.seeds for seed in self.seeds)
        tunes = len(self.grid) > 1 and any(int(run['labels']['seed']) <= self.tuning.seeds for run in to_do)
        return len(to_do) + others * tunes


def rows_of_file(keys, arguments=(), fixed=()):
    """Return the PlannedRows of a sweep's keys, see read_sweep. `arguments`: more arguments of all runs; `fixed`: axes with one
    value, which do not name the runs. Two names in a grid are no axes: its own `seeds`, and `ladder`, {tuned key: values that may
    be added beside its best one}."""
    tuning, rows, taken = Tuning.of(keys), [], set()
    first, defaults = [*shlex.split(keys['arguments']), *arguments], script_defaults(keys['script'])
    for grid in map(dict, keys['grids'] or [{}]):
        seeds, ladder = grid.pop('seeds', keys['seeds']), grid.pop('ladder', {})
        axes = {axis: options(axis, values, defaults) for axis, values in grid.items()}
        tuned = {key: sorted(axes.pop(key), key=float) for key in tuning.keys
                 if isinstance(grid.get(key), list) and key not in fixed}
        steps = {key: sorted({*map(canonical, [*ladder[key], *values])}, key=float) if key in ladder else
                 beyond(values, keys['extend']) for key, values in tuned.items()}
        # files first, so that they cannot override a key of the grid
        in_order = sorted(axes, key=lambda axis: axis in {*defaults, *ALIASES} and isinstance(grid[axis], list))
        for chosen in itertools.product(*axes.values()):
            labels = dict(zip(axes, chosen))
            own = [*first, *itertools.chain(*(axes[axis][labels[axis]] for axis in in_order))]
            labels = {axis: label for axis, label in labels.items() if axis not in fixed}
            names = {name_of(labels), key_of(labels)}   # of the folder, and of rows of runs.csv
            if names & taken:
                raise ValueError(f'two rows are named {row_name(labels)}, or alike: leave one out, or choose other labels')
            taken |= names
            rows.append(PlannedRow(labels, own, tuned, steps, range(1, seeds + 1), tuning, keys['script']))
    return rows
