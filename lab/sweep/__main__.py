"""
Train a grid of runs, each with several seeds, and print their table:

    python -m lab.sweep config/train_quick.py --arch=s1,s5 --optim=sgdw --learning_rate=0.1,0.3,1.0 --seeds=3
    python -m lab.sweep config/sweep/placements.py --arch=pre,peri      # from a file; two of its rows
    python -m lab.sweep config/sweep/placements.py --report=True        # its table, without training

A key of train.py with several values is an axis of the grid. So are arch, optim and lr, folders of config/, whose values are file
names or `none`. Every run is a run of train.py in its own folder, and gets a row in the csv when it ends. A run with a row is not
trained again: after an interruption, the same command continues. docs/sweeps.md says how a row is tuned.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.sweep')

from configurator import at_least, configure, defaults_of, flags, is_help

import os
import re

from data.lock import lock_file
from lab.sweep.plan import rows_of_file
from lab.sweep.run import Sweep
from lab.sweep.table import Results

# ----------------------------------------------------------------------------- keys
out_dir = 'out-sweep'               # folder for all runs
csv = ''                            # file with a row for each run that has ended; empty: runs.csv in out_dir
script = 'train.py'                 # script of every run: train.py or vision.train
arguments = ''                      # first arguments of every run: config files and --key=value
grids = []                          # for a config file: dicts from an axis to a list of values, or to {label: arguments}
seeds = 3                           # runs per row, with seed and data_seed 1, 2, …
tuned = 'learning_rate'             # keys that are chosen for each row, with commas: weight_decay,learning_rate
tuning_seeds = 1                    # seeds that choose them; 3: points within 0.01 of seed 1's best get seeds 2 and 3 too
tuned_elsewhere = False             # the tuning seeds chose the keys in another sweep, so that they are not compared
extend = 2                          # values that may be added at each end of a tuned key, if its grid has no ladder
jobs = 0                            # runs at the same time, sharing the cores; 0: one per GPU, or per core without GPUs
threads = 0                         # CPU threads of a run, which change its rounding; 0: an equal share of the cores
against = ''                        # a row, as axis=value,…: compare the others with it
contrast = ''                       # 'ROW - ROW - ROW + ROW', rows as in against: a difference of differences; more after a ;
diverged_loss = 0.0                 # count a run that ends above this loss as diverged too; 0: only if train.py stopped it
diverged_rise = 0.0                 # also a run whose training loss (mean of 5 logged) rises this far above its lowest; 0: none
codes = ''                          # hashes of code, with commas, by which a run repeats digit by digit; their rows may be mixed
report = False                      # print the table without training
# -----------------------------------------------------------------------------


def split_arguments(arguments):
    """Split the command line into arguments of this script and of train.py."""
    own = defaults_of(__file__)
    ours, theirs = [], []
    for arg in arguments:
        if arg.startswith('-'):
            mine = is_help(arg) or arg[2:].partition('=')[0] in own
        else:
            mine = os.path.isfile(arg) and re.search(r'^grids *=', open(arg, errors='replace').read(), re.MULTILINE)
        (ours if mine else theirs).append(arg)
    return ours, theirs


def grids_with(axes):
    """Return the file's grids with the axes of the command line, which choose among an axis's labels if the file gives it some,
    and the axes that set one value for all runs."""
    labelled = {axis for axis in axes for grid in grids if isinstance(grid.get(axis), dict)}
    for axis in labelled:
        known = [label for grid in grids for label in grid.get(axis, ())]
        if unknown := [value for value in axes[axis] if value not in known]:
            raise ValueError(f'{axis}={unknown[0]}: choose among {", ".join(dict.fromkeys(known))}')
    more, found = {axis: values for axis, values in axes.items() if axis not in labelled}, []
    for grid in grids or [{}]:
        chosen = {axis: {label: text for label, text in grid[axis].items() if label in axes[axis]}
                  for axis in labelled & grid.keys()}
        if all(chosen.values()):
            found.append({**grid, **chosen, **more, **({'seeds': seeds} if 'seeds' in flags() else {})})
    return found, {axis for axis, values in more.items() if len(values) == 1}


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__.strip() + '\n\n--help lists the keys')
    sys.argv[1:], theirs = split_arguments(sys.argv[1:])
    at_least(keys := configure(globals()), seeds=1, tuning_seeds=1, jobs=0, threads=0, diverged_loss=0, diverged_rise=0, extend=0)
    axes = {key: text.split(',') for key, _, text in (arg[2:].partition('=') for arg in theirs if arg.startswith('--'))}
    path = keys['csv'] = csv or os.path.join(out_dir, 'runs.csv')
    keys['grids'], fixed = grids_with(axes)
    failed = 0
    if not report:
        sweep = Sweep(rows_of_file(keys, [arg for arg in theirs if arg[0] != '-'], fixed), keys)
        sweep.check()
        for folder in out_dir, os.path.dirname(path) or '.':
            os.makedirs(folder, exist_ok=True)
        with lock_file(f'{path}.lock', path, 'adding runs'):
            failed = sweep.train()
    results = Results(path, keys)
    if results.rows:
        print('\nMean loss ± standard error over the seeds named; docs/sweeps.md explains the columns\n')
        print('\n\n'.join(table.to_string(index=False) for table in results.tables(against, contrast)) + '\n')
    if failed or not results.rows:
        raise ValueError(f'{failed} of the runs failed: see {out_dir}/*/output.txt' if failed else f'csv={path}: no runs yet')


if __name__ == '__main__':
    main()
