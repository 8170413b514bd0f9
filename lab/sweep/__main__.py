"""
Trains a grid of runs, each with several seeds, and makes their table:

    python -m lab.sweep config/train_quick.py --arch=s1,s5 --optim=sgdw --learning_rate=0.1,0.3,1.0 --seeds=3
    python -m lab.sweep config/sweep/dnt.py                     # the same from a file, as results/ has them
    python -m lab.sweep config/sweep/dnt.py --against=arch=s1,optim=adamw
    python -m lab.sweep --report=out-sweep/runs.csv             # the table again, without training

A key of train.py with several values is an axis of the grid. So are arch, optim and lr, folders of config/, with the names of
their files or `none` as values. Every run is a run of train.py in its own folder, and has a row in runs.csv once it has ended.
A run with a row is not trained again: after an interruption, the same command continues. Seed 1 trains at all learning rates, to
the end, and chooses one by its validation loss. The other seeds train at that rate, and they alone are compared.
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
out_dir = 'out-sweep'               # the folder of all runs, and of runs.csv, table.txt, .md, .csv and sweep.png
csv = ''                            # the file with a row for each run that has ended; empty: runs.csv in out_dir
script = 'train.py'                 # what every run starts: train.py, or a module such as vision.train
arguments = ''                      # what every run gets first: config files and --key=value
grids = []                          # for a config file: dicts from an axis to a list of its values, or to {label: arguments}
seeds = 3                           # runs of each row, with seed and data_seed 1, 2, …; seed 1 chooses the learning rate
extend = 2                          # add at most so many rates at each side of a row's grid, while its best rate is at the edge
jobs = 0                            # runs at once, which share the cores; 0: one per GPU, or per core without GPUs
select = 'all'                      # all | best: the table shows every learning rate, or each row's best and its rate sensitivity
against = ''                        # a row, as axis=value,…: how far the others differ from it, and when they reach its loss
contrast = ''                       # 'ROW - ROW - ROW + ROW', rows as in against: a difference of differences; more after a ;
diverged_loss = 0.0                 # a run that ends above this loss counts as diverged too; 0: only if train.py stopped it
diverged_rise = 0.0                 # so does one whose training loss (mean of 5 logged) rises so far above its lowest; 0: none
report = ''                         # the runs.csv of a sweep: make the table and run nothing
# -----------------------------------------------------------------------------


def split_arguments(arguments):
    """The command line → what is for this script, what is for train.py."""
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
    """Print the tables of runs, and write them into the folder, if there is one."""
    write_report(runs, *make_tables(runs, select, against, contrast), folder)


def plan_of(theirs):
    """Return the planned rows of the grids, in a file or here, with the axes of the command line"""
    axes = {key: text.split(',') for key, _, text in (arg[2:].partition('=') for arg in theirs if arg.startswith('--'))}
    if 'seeds' in flags():
        axes['seeds'] = seeds                           # before those of the grids in a file
    files = [arg for arg in theirs if not arg.startswith('--')]
    rows = planned_rows(plan(grids or [{}], [*words('arguments', arguments), *files], axes, seeds, script), extend)
    if against:
        find_row(rows, against)
    read_contrasts(contrast, rows)                      # both raise now for a row that is not in the table
    return rows


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__.strip() + '\n\n--help lists the keys')
    sys.argv[1:], theirs = split_arguments(sys.argv[1:])
    at_least(keys := configure(globals()), seeds=1, jobs=0, diverged_loss=0, diverged_rise=0, extend=0)
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
        raise ValueError(f'{sweep.csv} has got rows meanwhile: call this again')
    sweep.train()
    runs = runs_of(sweep.table, sweep.csv, diverged_loss, diverged_rise)
    report_on(runs, out_dir)
    if all(runs.status == 'failed'):
        first = next(iter(sweep.planned.values()))
        raise ValueError(f'all {len(runs)} runs failed, the first with: {last_line(sweep.folder(first))}')


if __name__ == '__main__':
    main()
