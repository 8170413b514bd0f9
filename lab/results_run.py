"""
Trains the runs that are missing in results/csv/, one sweep after another, a run to each core, at the lowest priority:

    python -m lab.results_run                           # the whole plan, in its order; `make results-run` does the same
    python -m lab.results_run --sweeps=base,tolerance   # these files of config/sweep/

Rows of one csv are of one code. So a sweep's file names the commit of its code (_commit), and about how many hours its runs take
on one core (_hours). A checkout of that commit in .worktrees/ trains the runs of today's file, with today's data, into today's
csv. Stop it at any time: the same command goes on.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.results_run')

from configurator import ROOT, configure, defaults_of, parse_args
from engine.process import say

import os
import statistics
import subprocess
from pathlib import Path

from data.lock import lock_file
from lab.sweep_plan import plan, planned_rows, stated, words
from lab.sweep_table import CHOOSER, read_csv

# ----------------------------------------------------------------------------- keys
sweeps = 'decay,brackets,base,tolerance,tolerance_top,size,batch,text'      # files of config/sweep/, in this order
csv = 'results/csv'                 # the folder of the csv files
# -----------------------------------------------------------------------------


def runs_left(file, rows):
    """How many runs of a sweep's file have no row yet. Best rates at the edge of a grid may add some."""
    keys, left = parse_args([str(file)], defaults_of(os.path.join(ROOT, 'lab', 'sweep.py'))), 0
    ended = {frozenset((axis, label) for axis, label in row.items() if label) for row in rows if row['status'] != 'failed'}

    def missing(runs):
        return sum(not any(run['labels'].items() <= row for row in ended) for run in runs)

    for row in planned_rows(plan(keys['grids'], words('arguments', keys['arguments']), {}, keys['seeds'], keys['script']), 0):
        if len(row.grid) == 1:
            left += missing(row.runs())
        else:                                           # CHOOSER at all rates, then the others at one of them
            left += missing(run for run in row.runs() if run['labels']['seed'] == CHOOSER)
            seeds = {run['labels']['seed'] for run in row.runs()} - {CHOOSER}
            left += sum(all(missing([run]) for run in row.runs() if run['labels']['seed'] == seed) for seed in seeds)
    return left


def checkout_of(commit):
    """A checkout of the commit with today's data. ValueError if git has no such commit."""
    folder = Path(ROOT, '.worktrees', commit)
    if not folder.exists():
        git = subprocess.run(['git', '-C', ROOT, 'worktree', 'add', '--detach', folder, commit], capture_output=True, text=True)
        if git.returncode:
            raise ValueError(f'_commit={commit}: git has no checkout of it: {git.stderr.strip().splitlines()[-1]}')
    for path in Path(ROOT, 'data').glob('*/*'):
        link = folder / path.relative_to(ROOT)
        if (path.suffix == '.bin' or path.name == 'meta.json') and not link.is_symlink():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path)
    return folder


def main():
    configure(globals())
    os.nice(19)
    names, failed = sweeps.split(','), []
    files = {name: Path(ROOT, 'config', 'sweep', f'{name}.py') for name in names}
    if absent := [name for name, file in files.items() if not file.is_file()]:
        raise ValueError(f'sweeps={sweeps!r}: there is no config/sweep/{absent[0]}.py')
    os.makedirs(csv, exist_ok=True)
    tables = {name: Path(csv, f'{name}.csv').resolve() for name in names}

    def say_left(names):
        left, hours = [], 0.0
        for name in names:
            rows = read_csv(tables[name])
            number, took = runs_left(files[name], rows), [float(row['seconds']) for row in rows if row['status'] == 'done']
            left += [f'{name} {number}'] * (number > 0)
            hours += number * statistics.median(took) / 3600 if took else stated(files[name], '_hours')
        say(f'runs left: {", ".join(left) or "none"}; about {hours:.1f} hours of one core')

    say_left(names)
    for i, name in enumerate(names):
        with lock_file(f'{tables[name]}.lock', tables[name], 'adding runs'):
            code = subprocess.run([sys.executable, '-m', 'lab.sweep', files[name], f'--csv={tables[name]}'],
                                  cwd=checkout_of(stated(files[name], '_commit'))).returncode
        if code in (130, -2, -15):
            sys.exit(130)
        if code or any(row['status'] == 'failed' for row in read_csv(tables[name])):
            failed.append(name)
        say_left(names[i + 1:])
    if failed:
        raise ValueError(f'failed: {", ".join(failed)}; the output.txt of each run in .worktrees/ says why, and the same command '
                         f'tries again')


if __name__ == '__main__':
    main()
