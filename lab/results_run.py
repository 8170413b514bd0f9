"""
Train the runs that are missing in results/csv/, one sweep after another, one run per core, at the lowest priority:

    python -m lab.results_run                           # the whole plan, in its order; `make results-run` does the same
    python -m lab.results_run --sweeps=base,laptop      # these files of config/sweep/ and divisions of config/track/

All rows of a csv come from the same code. So a sweep's file names the commit of that code (_commit), and about how many hours its
runs take on one core (_hours). A checkout of that commit in .worktrees/ trains the runs of the current file, with the current
data, into the current csv. For a division it goes on with the entries that are planned (_planned), with the arguments that
config/sweep/track_screen.py gives them. Stop this at any time; the same command continues.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.results_run')

from configurator import ROOT, configure
from engine.process import say

import hashlib
import os
import runpy
import signal
import subprocess
from pathlib import Path

from data.lock import lock_file
from lab.sweep.plan import runs_left_of, stated
from lab.sweep.table import read_csv

# ----------------------------------------------------------------------------- keys
sweeps = 'decay,brackets,base,text,figure5_warm,batch,tokens,size,track_screen'         # in this order
csv = 'results/csv'                 # the folder of the csv files
# -----------------------------------------------------------------------------


def checkout_of(commit, patch=''):
    """Return a checkout of the commit that uses the current data, with the file `patch` applied to its model.py. Raise ValueError
    if git cannot make it."""
    version = hashlib.sha256(Path(patch).read_bytes()).hexdigest()[:12] if patch else ''
    folder = Path(ROOT, '.worktrees', commit + f'-{version}' * bool(patch))

    def git(*arguments):
        return subprocess.run(['git', '-C', *arguments], capture_output=True, text=True)

    if not folder.exists():
        made = git(ROOT, 'worktree', 'add', '--detach', folder, commit)
        if made.returncode:
            raise ValueError(f'_commit={commit}: git cannot check it out: {made.stderr.strip().splitlines()[-1]}')
    if patch and not git(folder, 'status', '--porcelain', '-uno').stdout:
        applied = git(folder, 'apply', os.path.abspath(patch))
        if applied.returncode:
            raise ValueError(f'{patch} does not apply to commit {commit}: {applied.stderr.strip().splitlines()[-1]}')
    changed = git(folder, 'status', '--porcelain', '-uno').stdout
    if not git(folder, 'rev-parse', 'HEAD').stdout.startswith(commit) or changed != ' M model.py\n' * bool(patch):
        raise ValueError(f'{folder} is not a clean checkout of {commit}: remove it, and run  git worktree prune')
    for path in Path(ROOT, 'data').glob('*/*'):
        link = folder / path.relative_to(ROOT)
        if (path.suffix == '.bin' or path.name == 'meta.json') and not link.is_symlink():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path)
    return folder


def run_module(module, *arguments, cwd=ROOT):
    """Run a checkout's module of lab/, and return its exit code. If this process is asked to end, the module saves first."""
    process = subprocess.Popen(['nice', '-n', '19', sys.executable, '-m', module, *arguments], cwd=cwd)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)   # a closing terminal signals the sweep too, as Ctrl-C does
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass


def planned_entries(file):
    """Return {name: arguments} of the entries that a division plans. The arguments are those of config/sweep/track_screen.py."""
    grids = runpy.run_path(os.path.join(ROOT, 'config', 'sweep', 'track_screen.py'))['grids']
    arguments = {name: text.split() for grid in grids for name, text in grid['arch'].items()}
    return {name: arguments[name] for name in stated(file, '_planned').split()}


def file_of(name):
    """Return the file of a sweep or of a division of the track."""
    for folder in 'sweep', 'track':
        file = Path(ROOT, 'config', folder, f'{name}.py')
        if file.is_file():
            return file
    raise ValueError(f'sweeps={sweeps!r}: there is no config/sweep/{name}.py and no config/track/{name}.py')


def main():
    configure(globals())
    files, failed = {name: file_of(name) for name in sweeps.split(',')}, []
    os.makedirs(csv, exist_ok=True)
    tables = {name: Path(csv, f'{name}.csv').resolve() for name, file in files.items() if file.parent.name == 'sweep'}

    def say_left():
        left, hours = [], 0.0
        for name, file in files.items():
            if name in tables:
                number, seconds = runs_left_of(file, str(tables[name]))
                each = seconds.median() / 3600 if len(seconds) else stated(file, '_hours') / max(number, 1)
            else:
                folder = Path(ROOT, 'results', 'track', name)
                number = sum(not (folder / entry / 'measured.json').exists() for entry in planned_entries(file))
                each = stated(file, '_hours')
            left += [f'{name} {number}'] * (number > 0)
            hours += number * each
        say(f'runs left: {", ".join(left) or "none"}; about {hours:.1f} hours of one core')

    def train(module, *arguments, cwd=ROOT):
        code = run_module(module, *arguments, cwd=cwd)
        if code in (130, -signal.SIGINT, -signal.SIGTERM):
            sys.exit(130)
        return code

    say_left()
    for name, file in files.items():
        if name in tables:
            with lock_file(f'{tables[name]}.lock', tables[name], 'adding runs'):
                code = train('lab.sweep', str(file), f'--csv={tables[name]}', cwd=checkout_of(stated(file, '_commit')))
            if code or 'failed' in set(read_csv(tables[name]).status):
                failed.append(name)
        else:
            failed += [f'{name}/{entry}' for entry, arguments in planned_entries(file).items()
                       if train('lab.track', f'--division={name}', f'--new={entry}', *arguments)]
        say_left()
    if failed:
        raise ValueError(f'failed: {", ".join(failed)}; the output.txt of each run says why, and the same command tries again')


if __name__ == '__main__':
    main()
