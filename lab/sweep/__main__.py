"""
Train a grid of runs, each with several seeds, and print their table:

    python -m lab.sweep config/train_quick.py --arch=s1,s5 --optim=sgdw --learning_rate=0.1,0.3,1.0 --seeds=3
    python -m lab.sweep config/sweep/dnt.py                     # the same from a file, as results/ has them
    python -m lab.sweep config/sweep/dnt.py --against=arch=s1,optim=adamw
    python -m lab.sweep --report=out-sweep/runs.csv             # the table again, without training

A key of train.py with several values is an axis of the grid. So are arch, optim and lr, folders of config/, whose values are file
names or `none`. Every run is a run of train.py in its own folder, and gets a row in runs.csv when it ends. A run with a row is
not trained again: after an interruption, the same command continues. Seed 1 trains at every learning rate, to the end; its
lowest validation loss chooses the rate. The other seeds train at that rate, and only they are compared.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.sweep')

from configurator import at_least, configure, defaults_of, flags, is_help, refuse

import os
import re

from data.lock import lock_file, lock_folder
from lab.sweep.plan import plan, planned_rows, words
from lab.sweep.run import Sweep, last_line
from lab.sweep.table import find_row, make_tables, read_contrasts, read_csv, read_runs, runs_of, write_report

# ----------------------------------------------------------------------------- keys
out_dir = 'out-sweep'               # folder for all runs, and for runs.csv, table.txt, .md, .csv and sweep.png
csv = ''                            # file with a row for each run that has ended; empty: runs.csv in out_dir
script = 'train.py'                 # script of every run: train.py, or a module such as vision.train
arguments = ''                      # first arguments of every run: config files and --key=value
grids = []                          # for a config file: dicts from an axis to a list of values, or to {label: arguments}
seeds = 3                           # runs per row, with seed and data_seed 1, 2, …; seed 1 chooses the learning rate
extend = 2                          # while a row's best rate is at the edge of its grid, add up to this many rates on each side
jobs = 0                            # runs at the same time, sharing the cores; 0: one per GPU, or per core without GPUs
threads = 0                         # CPU threads of a run, which change its rounding; 0: an equal share of the cores
select = 'all'                      # all | best: show every learning rate, or each row's best rate and its rate sensitivity
against = ''                        # a row, as axis=value,…: compare the others with it, and show when they reach its loss
contrast = ''                       # 'ROW - ROW - ROW + ROW', rows as in against: a difference of differences; more after a ;
diverged_loss = 0.0                 # count a run that ends above this loss as diverged too; 0: only if train.py stopped it
diverged_rise = 0.0                 # also a run whose training loss (mean of 5 logged) rises this far above its lowest; 0: none
report = ''                         # the runs.csv of a sweep: print the table without training
# -----------------------------------------------------------------------------


def split_arguments(arguments):
    """Split the command line into arguments of this script and of train.py."""
    own = defaults_of(__file__)
    ours, theirs = [], []
    for arg in arguments:
        if arg.startswith('-'):
            mine = is_help(arg) or arg[2:].partition('=')[0] in own
        else:
            text = open(arg, encoding='utf-8', errors='replace').read() if os.path.isfile(arg) else ''
            mine = re.search(r'^grids *=', text, re.MULTILINE)
        (ours if mine else theirs).append(arg)
    return ours, theirs


def report_on(runs, folder):
    """Print the tables of runs, and write them into the folder, if one is given."""
    write_report(runs, *make_tables(runs, select, against, contrast), folder)


def plan_of(theirs):
    """Return the planned rows of the grids, from a file or from the command line, with the command line's axes."""
    axes = {key: text.split(',') for key, _, text in (arg[2:].partition('=') for arg in theirs if arg.startswith('--'))}
    if 'seeds' in flags():
        axes['seeds'] = seeds                           # before those of the grids in a file
    files = [arg for arg in theirs if not arg.startswith('--')]
    rows = planned_rows(plan(grids or [{}], [*words('arguments', arguments), *files], axes, seeds, script), extend)
    if against:
        find_row(rows, against)
    read_contrasts(contrast, rows)                      # fail early on a row that is not in the table
    return rows


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__.strip() + '\n\n--help lists the keys')
    sys.argv[1:], theirs = split_arguments(sys.argv[1:])
    at_least(keys := configure(globals()), seeds=1, jobs=0, threads=0, diverged_loss=0, diverged_rise=0, extend=0)
    if select not in ('all', 'best'):
        raise ValueError(f'select={select!r}: choose all or best')
    if report:
        refuse(('arguments', 'seeds', 'jobs', 'extend', 'csv'), 'report only makes the table again')
        if theirs:
            raise ValueError(f'{theirs[0]}: report only makes the table again, leave it out')
        path = report if report.endswith('.csv') else os.path.join(report, 'runs.csv')
        if not os.path.exists(path):
            raise ValueError(f'there is no {path}: report={report!r} wants the runs.csv of a sweep, or its folder')
        return report_on(read_runs(path, diverged_loss, diverged_rise), out_dir if 'out_dir' in flags() else
                         '' if report.endswith('.csv') else report)
    keys['csv'] = csv or os.path.join(out_dir, 'runs.csv')
    sweep = Sweep(plan_of(theirs), keys)
    sweep.check()
    for folder in out_dir, os.path.dirname(sweep.csv) or '.':
        os.makedirs(folder, exist_ok=True)
    locked = lock_folder(out_dir, 'sweeping'), lock_file(f'{sweep.csv}.lock', sweep.csv, 'adding runs')     # noqa: F841, to the end
    if not read_csv(sweep.csv).equals(sweep.table):
        raise ValueError(f'rows were added to {sweep.csv} in the meantime: run this again')
    sweep.train()
    runs = runs_of(sweep.table, sweep.csv, diverged_loss, diverged_rise)
    report_on(runs, out_dir)
    if all(runs.status == 'failed'):
        first = next(iter(sweep.planned.values()))
        raise ValueError(f'all {len(runs)} runs failed, the first with: {last_line(sweep.folder(first))}')


if __name__ == '__main__':
    main()
