"""lab/results_run.py: which runs of the plan are missing, and that the code of the commit trains them into the csv of here."""
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT, run_here, run_python, write_walk

from data.lock import lock_file
from lab.results_run import runs_left
from lab.sweep_plan import stated
from lab.sweep_table import read_csv

SWEEPS = ROOT / 'config' / 'sweep'
DECAY = read_csv(str(ROOT / 'results' / 'csv' / 'decay.csv'))
GIT = ('git', '-c', 'user.name=a', '-c', 'user.email=a@b')


@pytest.mark.parametrize('name, rows, left', [
    ('decay', DECAY, 0), ('decay', DECAY[3:], 3), ('decay', [{**DECAY[0], 'status': 'failed'}, *DECAY[1:]], 1), ('base', [], 195),
    ('figure5', read_csv(str(ROOT / 'results' / 'csv' / 'figure5.csv')), 0),     # with rates beyond the grid
    ('tolerance', [], 144), ('tolerance_top', [], 108), ('size', [], 5 * (3 + 8)), ('batch', [], 12 * (3 + 4)),
    ('text', [], 4 * (3 + 8))])
def test_runs_left(name, rows, left):
    """By hand: seeds times rows, and where seed 1 chooses a rate, its rates and one rate of the others"""
    assert runs_left(SWEEPS / f'{name}.py', rows) == left


@pytest.mark.parametrize('name', sorted(path.stem for path in SWEEPS.glob('*.py') if stated(path, '_commit')))
def test_the_plan_names_commits_and_hours(name):
    assert stated(SWEEPS / f'{name}.py', '_hours') > 0 and len(stated(SWEEPS / f'{name}.py', '_commit')) == 7


def test_a_csv_in_use_is_refused(tmp_path):
    """By another checkout's runs; but a lock of the parent process is this process's"""
    held = lock_file(f'{tmp_path}/decay.csv.lock', tmp_path / 'decay.csv', 'adding runs')
    code, _, err = run_here('lab.results_run', '--sweeps=decay', f'--csv={tmp_path}')
    assert code == 1 and f'{tmp_path}/decay.csv is in use' in err and err.count('\n') == 1
    again = 'import sys; from data.lock import lock_file; lock_file(sys.argv[1], "it", "adding")'
    assert subprocess.run([sys.executable, '-c', again, held.name], cwd=ROOT).returncode == 0
    held.close()


def test_a_sweep_that_is_not_there(tmp_path):
    code, _, err = run_here('lab.results_run', '--sweeps=decay,nowhere', f'--csv={tmp_path}')
    assert code == 1 and 'there is no config/sweep/nowhere.py' in err and err.count('\n') == 1


@pytest.mark.long
def test_runs_of_an_older_commit(tmp_path):
    """In a clone whose files have moved on since: the rows name the commit, a second call has nothing to do, and runs that fail
    give an exit code"""
    there = tmp_path / 'clone'
    subprocess.run(['git', 'clone', '-q', '--shared', str(ROOT), str(there)], check=True)
    shutil.copy(ROOT / 'lab' / 'results_run.py', there / 'lab')
    write_walk(there)
    commit = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=there, capture_output=True, text=True).stdout.strip()
    sweep = there / 'config' / 'sweep' / 'tiny.py'
    sweep.write_text(f"_commit = '{commit[:7]}'\n_hours = 0.01\nseeds = 1\nout_dir = 'out-tiny'\n"
                     "arguments = '--dataset=tiny --n_layer=1 --n_head=1 --n_embd=8 --block_size=8 --batch_size=2 --max_iters=4 "
                     "--gradient_accumulation_steps=1 --eval_iters=1 --compile=False'\n"
                     "grids = [dict(norm=['layernorm', 'rmsnorm'])]\n")
    (there / 'train.py').write_text((there / 'train.py').read_text() + "raise SystemExit('the newer code')\n")
    run = ['-m', 'lab.results_run', '--sweeps=tiny']
    code, out, err = run_python(*run, cwd=there)
    assert code == 0 and 'runs left: tiny 2; about 0.0 hours' in out and 'runs left: none' in out, out + err
    rows = read_csv(str(there / 'results' / 'csv' / 'tiny.csv'))
    assert [(row['norm'], row['commit']) for row in rows] == [('layernorm', commit), ('rmsnorm', commit)]
    assert run_python(*run, cwd=there)[0] == 0
    sweep.write_text(sweep.read_text().replace("'rmsnorm'", "'rmsnorm', 'dyt'").replace('max_iters=4', 'max_iters=5'))
    code, out, err = run_python(*run, cwd=there)
    assert code == 1 and 'had other keys' in out + err and 'failed: tiny' in err
