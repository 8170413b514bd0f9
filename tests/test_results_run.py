"""lab/results_run.py: which runs of the plan are missing, and that the code of the commit trains them into the csv of here."""
import subprocess

import pytest
from helpers import ROOT, run_python, write_walk

from lab.sweep.plan import runs_left_of, stated
from lab.sweep.table import read_csv, write_csv

SWEEPS = ROOT / 'config' / 'sweep'
GIT = ('git', '-c', 'user.name=a', '-c', 'user.email=a@b')


@pytest.mark.parametrize('name, left', [
    ('base', 195), ('tolerance', 144), ('tolerance_top', 108), ('size', 5 * (3 + 8)), ('batch', 12 * (3 + 4)),
    ('text', 4 * (3 + 8)), ('track_screen', 39 * 3)])
def test_runs_left(name, left):
    """By hand: seeds times rows, and where seed 1 chooses a rate, its rates and one rate of the others"""
    file = SWEEPS / f'{name}.py'
    assert runs_left_of(file, 'nowhere.csv')[0] == left and stated(file, '_hours') > 0 and len(stated(file, '_commit')) == 7


def test_runs_that_have_ended_are_not_left(tmp_path):
    """With rates beyond the grid too; one that failed is"""
    for name in 'decay', 'figure5':
        assert runs_left_of(SWEEPS / f'{name}.py', str(ROOT / 'results' / 'csv' / f'{name}.csv'))[0] == 0
    rows, path = read_csv(str(ROOT / 'results' / 'csv' / 'decay.csv')), str(tmp_path / 'decay.csv')
    rows.loc[0, 'status'] = 'failed'
    write_csv(path, rows[:-2])
    number, seconds = runs_left_of(SWEEPS / 'decay.py', path)
    assert number == 3 and len(seconds) == len(rows) - 3


@pytest.mark.long
def test_runs_of_an_older_commit(tmp_path):
    """In a clone whose files have moved on since: the rows name the commit, a second call has nothing to do, and runs that fail
    give an exit code"""
    there = tmp_path / 'clone'
    subprocess.run(['git', 'clone', '-q', '--shared', str(ROOT), str(there)], check=True)
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
    assert rows[['norm', 'commit']].values.tolist() == [['layernorm', commit], ['rmsnorm', commit]]
    assert run_python(*run, cwd=there)[0] == 0
    sweep.write_text(sweep.read_text().replace("'rmsnorm'", "'rmsnorm', 'dyt'").replace('max_iters=4', 'max_iters=5'))
    code, out, err = run_python(*run, cwd=there)
    assert code == 1 and 'had other keys' in out + err and 'failed: tiny' in err
