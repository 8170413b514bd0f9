"""
lab/results_run.py: which runs of the plan are missing, and that the code of the commit trains them into the csv of here. And
.ci/track.
"""
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT, run_python, write_walk

from lab.results_run import planned_entries
from lab.sweep.plan import runs_left_of, stated
from lab.sweep.table import read_csv, write_csv
from lab.track.entry import Division

SWEEPS = ROOT / 'config' / 'sweep'
GIT = ('git', '-c', 'user.name=a', '-c', 'user.email=a@b')


@pytest.mark.parametrize('name, left', [
    ('base', 11 * 13 + 7), ('size', 3 * (3 + 8)), ('batch', 8 * (3 + 4)), ('text', 2 * (3 + 8)), ('tokens', 4 * (3 + 8)),
    ('figure5_warm', 7 * (3 + 4)), ('track_screen', 39 * 3)])
def test_runs_left(name, left):
    """By hand: seeds times rows, and where seed 1 chooses a rate, its rates and one rate of the others"""
    file = SWEEPS / f'{name}.py'
    assert runs_left_of(file, 'nowhere.csv')[0] == left and stated(file, '_hours') > 0 and len(stated(file, '_commit')) == 7


def test_planned_entries_change_free_keys():
    division = Division('laptop')
    planned = planned_entries(Path(division.file))
    assert division.changed(planned['pre']) == {} and all(division.changed(planned[name]) for name in planned if name != 'pre')


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


def test_a_pull_request_checks_the_entries_that_it_changes(tmp_path):
    """.ci/track: each once, whatever file changed, repeated only where no GPU is needed; it fails if one is at fault, gone or
    renamed, or comes with other changes"""
    def holds(path, text='', mode=0o644):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(mode)

    def checked(*changes):
        for path in changes:
            holds(path, 'changed')
        for command in ['add', '-A'], ['commit', '-qm', 'x']:
            subprocess.run([*GIT, *command], cwd=tmp_path, check=True)
        done = subprocess.run(['.ci/track', 'base'], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, [line for line in done.stdout.splitlines() if line.startswith('-m lab.track')], done.stderr

    holds('.ci/track', (ROOT / '.ci' / 'track').read_text(), 0o755)
    holds('Makefile', '.venv/installed-lab data/pysource/meta.json:\n')
    holds('.venv/bin/python', '#!/bin/sh\necho "$@"\ncase "$*" in *wrong*) exit 1;; esac\n', 0o755)
    for name in 'laptop/old', 'laptop/kept', 'gpu/big':
        holds(f'results/track/{name}/config.py', name)
    for command in ['init', '-q'], ['add', '-A'], ['commit', '-qm', 'x'], ['branch', 'base']:
        subprocess.run([*GIT, *command], cwd=tmp_path, check=True)
    assert checked('model.py', 'results/track/LOG.md')[:2] == (0, [])
    assert checked('results/track/laptop/new/config.py')[0] == 1
    subprocess.run([*GIT, 'reset', '-q', '--hard', 'base'], cwd=tmp_path, check=True)
    old, big = (f'-m lab.track --check=results/track/{name}' for name in ('laptop/old --repeat=8', 'gpu/big --repeat=0'))
    changes = [f'results/track/{path}' for path in ('laptop/old/config.py', 'laptop/old/logs/a', 'gpu/big/a')]
    assert checked(*changes)[:2] == (0, [big, old])
    assert checked('results/track/laptop/wrong/config.py')[:2] == (1, [big, old, old.replace('old', 'wrong')])
    laptop = tmp_path / 'results' / 'track' / 'laptop'
    shutil.rmtree(laptop / 'wrong')
    (laptop / 'kept').rename(laptop / 'better')
    code, _, err = checked()
    assert code == 1 and err == 'error: results/track/laptop/kept is gone: entries stay, negative ones too\n'
