"""
Train the runs of results/doctor/plants.py, plants and their healthy twins, and write and count what lab.doctor says of each:

    python -m lab.doctor.trials                         # whatever is missing; after a stop, the same command goes on
    python -m lab.doctor.trials --only=leak,pre-muon    # causes or names of runs that contain one of these
    python -m lab.doctor.trials --check=True            # one step of each edited plant, and no table

A run trains in a checkout of HEAD with its edit, so that its run.json and code.patch tell the edit as a user's would. There the
doctor then reads the run's folder, and again once a commit has changed lab/doctor.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.doctor.trials')

from configurator import ROOT, configure
from engine.process import say

import ast
import json
import math
import os
import runpy
import subprocess
from pathlib import Path

import pandas as pd

from engine.errors import read_json
from lab.runs import read_run, status_of

# ----------------------------------------------------------------------------- keys
table = 'results/doctor/plants.py'  # a file with PLANTS and HEALTHY
csv = 'results/doctor/trials.csv'   # the table to write; rows of other runs stay
out_dir = 'out-trials'              # the folder of the runs' folders
only = ''                           # parts of causes or names, separated by commas; empty: all
check = False                       # train one step of each edited plant, to see whether its edit fits the code
# -----------------------------------------------------------------------------

CAUSES = {                      # {a plant's cause: how the cause of a finding begins}
    'labels': 'shifted or copied labels', 'leak': 'a leak from the future', 'repeats': 'repeated batches',
    'padding': 'one token or padding', 'frozen': 'frozen or unused parameters', 'embeddings': 'embeddings too',
    'logits': 'attention logits', 'no_norm': 'no norm', 'branches': 'branches or a stream',
    'depth': 'gradients vanish or explode', 'decay': 'decay on gains', 'balance': 'a block type', 'step': 'step size',
    'betas': 'β far off', 'spike_batch': 'a spike from a batch', 'spike_weights': 'a spike from the weights',
}
# A plant counts if it moves the last validation loss by MOVED. A spike counts if the training loss once exceeds the twin's by
# RISEN. A fault of decay counts too if the norm of a block type ends DRIFTED times as large or as small as the twin's.
MOVED, RISEN, DRIFTED = 0.05, 0.5, 1.1
PLACE = Path(ROOT, '.worktrees', 'trials')


def plants_of(table):
    """Return {name: (cause, twin, keys, edits)} of a table's PLANTS. Raise ValueError for an unknown cause or twin."""
    plants = {}
    for cause, rows in table['PLANTS'].items():
        for name, twin, *planted in rows:
            if cause not in CAUSES or twin not in table['HEALTHY'] or name in plants or name in table['HEALTHY']:
                raise ValueError(f'plant {name!r}: wants a name of its own, a twin in HEALTHY (here {twin!r}), and a cause '
                                 f'(here {cause!r}) among {", ".join(CAUSES)}')
            keys = ' '.join(part for part in planted if isinstance(part, str))
            plants[name] = cause, twin, keys, [part for part in planted if not isinstance(part, str)]
    return plants


# ----------------------------------------------------------------------------- runs

def edited(edits, root=ROOT):
    """Return {file: text} after edits (file, old text, new text). Raise ValueError unless each old text is there once."""
    texts = {}
    for file, old, new in edits:
        text = texts[file] if file in texts else Path(root, file).read_text(encoding='utf-8')
        if text.count(old) != 1:
            raise ValueError(f'{file} has the text {old!r} {text.count(old)} times, and an edit wants it once: adapt the plant')
        texts[file] = text.replace(old, new)
        ast.parse(texts[file])
    return texts


def git(*arguments, cwd=ROOT):
    done = subprocess.run(['git', *arguments], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f'git {" ".join(arguments)}: {done.stderr.strip()}')
    return done.stdout.strip()


def run_edited(edits, arguments, output):
    """Run Python with these arguments in a checkout of HEAD, which reads the data here, with these edits. Return the exit code;
    what it prints goes to the file `output`."""
    if not PLACE.exists():
        git('worktree', 'add', '--detach', str(PLACE), 'HEAD')
    git('checkout', '-q', '--force', '--detach', git('rev-parse', 'HEAD'), cwd=PLACE)
    for path in Path(ROOT, 'data').glob('*/*'):
        link = PLACE / path.relative_to(ROOT)
        if (path.suffix == '.bin' or path.name == 'meta.json') and not link.exists():
            link.parent.mkdir(exist_ok=True)            # a folder such as data/pysource-bpe1024 is not in the checkout
            link.symlink_to(path)
    for file, text in edited(edits, PLACE).items():
        (PLACE / file).write_text(text, encoding='utf-8')
    with open(output, 'w') as f:
        return subprocess.run([sys.executable, *arguments], cwd=PLACE, env={**os.environ, 'OMP_NUM_THREADS': '1'},
                              stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT).returncode


def train(name, arguments, edits):
    """Return the folder of a run, trained unless it has been, with these arguments and edits."""
    folder, trial = Path(out_dir, name).resolve(), [arguments, [list(edit) for edit in edits]]
    noted, output = folder / 'trial.json', folder / 'output.txt'        # noted once the run has ended
    if read_json(noted, f'remove {noted}') != trial:
        say(f'training {name}')
        folder.mkdir(parents=True, exist_ok=True)
        for path in (noted, folder / 'judged'):
            path.unlink(missing_ok=True)
        if run_edited(edits, ['train.py', *arguments.split(), f'--out_dir={folder}', '--overwrite=True'], output) not in (0, 3):
            raise ValueError(f'{name} failed, see {output}: {output.read_text().strip().splitlines()[-1]}')
        noted.write_text(json.dumps(trial))
    return folder


def judge(folder, edits):
    """Return the causes that lab.doctor finds in a run, the likeliest first, and its `extremes`: how near the run comes to the
    limit of each rule."""
    noted, report, version = folder / 'judged', folder / 'doctor.json', git('rev-parse', 'HEAD:lab/doctor')
    if not report.exists() or not noted.exists() or noted.read_text() != version:
        report.unlink(missing_ok=True)
        if run_edited(edits, ['-m', 'lab.doctor', str(folder)], folder / 'doctor.txt') or not report.exists():
            say(f'{folder.name}: lab.doctor failed, see {folder}/doctor.txt')
            return ['failed'], {}
        noted.write_text(version)
    verdict = read_json(report, 'remove it')
    causes = [next(cause for cause, beginning in CAUSES.items() if finding['cause'].startswith(beginning))
              for finding in verdict['findings']]
    return causes, verdict['extremes']


# ----------------------------------------------------------------------------- the table

def last_loss(run):
    """Return a run's last validation loss, infinite if it diverged."""
    return math.inf if status_of(run) == 'diverged' else [row['val_loss'] for row in run['rows'] if 'val_loss' in row][-1]


def counts(cause, run, twin):
    """Return whether a plant has an effect, by the rule beside MOVED."""
    if status_of(run) == 'diverged':
        return True
    steps, twin_steps = ([row for row in one['rows'] if 'weight_norms' in row] for one in (run, twin))
    if cause.startswith('spike'):
        return any(row['loss'] - twin_row['loss'] > RISEN for row, twin_row in zip(steps, twin_steps))
    moved = abs(last_loss(run) - last_loss(twin)) >= MOVED
    if cause != 'decay' or moved:
        return moved
    norms, twin_norms = steps[-1]['weight_norms'], twin_steps[-1]['weight_norms']
    return any(not 1 / DRIFTED < norms[kind] / twin_norms[kind] < DRIFTED for kind in norms)


def best(name, healthy):
    """Return the learning rate and the folder of a healthy run at its best rate."""
    arguments, rates = healthy[name]
    folders = {rate: train(f'{name}-{rate:g}', f'{arguments} --learning_rate={rate:g}', []) for rate in rates}
    return min(folders.items(), key=lambda item: last_loss(read_run(item[1])))


def row_of(name, plants, healthy):
    """Return a row of the table, once the run and its twin are trained and the run is judged."""
    if name in healthy:
        (rate, folder), edits = best(name, healthy), []
        row = dict(plant=name, cause='healthy', twin='', rate=rate, loss=last_loss(read_run(folder)), twin_loss='', counts='')
    else:
        cause, twin, keys, edits = plants[name]
        rate, twin_folder = best(twin, healthy)
        folder = train(name, f'{healthy[twin][0]} --learning_rate={rate:g} {keys}', edits)
        run, twin_run = read_run(folder), read_run(twin_folder)
        row = dict(plant=name, cause=cause, twin=twin, rate=run['config']['learning_rate'], loss=last_loss(run),
                   twin_loss=last_loss(twin_run), counts=counts(cause, run, twin_run))
    found, extremes = judge(folder, edits)
    return row | dict(first=found[0] if found else 'none', findings=' '.join(found), **extremes)


def scores(*paths):
    """Return a table in Markdown: by cause and csv, in how many of the plants that have an effect the first finding is right, and
    which plants were missed, with what was found first, if anything. A healthy run is right without a finding."""
    lines = ['| cause | ' + ''.join(f'{Path(path).stem} | ' for path in paths) + 'missed (found first) |',
             '| --- ' * (len(paths) + 2) + '|']
    runs = pd.concat(pd.read_csv(path, dtype=str, keep_default_na=False).assign(path=path) for path in paths)
    runs = runs[runs['counts'] != 'False']
    runs['right'] = runs['first'] == runs['cause'].replace('healthy', 'none')
    groups = {cause: runs[runs['cause'] == cause] for cause in [*CAUSES, 'healthy']}
    for cause, group in (groups | {'all plants': runs[runs['cause'] != 'healthy']}).items():
        missed = group[~group['right']] if cause in groups else group[:0]
        names = [name + f' ({first})' * (first != 'none') for name, first in zip(missed['plant'], missed['first'])]
        of_path = [group[group['path'] == path]['right'] for path in paths]
        lines.append(f'| {cause} | ' + ''.join(f'{right.sum()}/{len(right)} | ' for right in of_path) + f'{", ".join(names)} |')
    return '\n'.join(lines)


def main():
    configure(globals())
    runs = runpy.run_path(table)
    plants, healthy = plants_of(runs), runs['HEALTHY']
    causes = {**dict.fromkeys(healthy, 'healthy'), **{name: plant[0] for name, plant in plants.items()}}
    chosen = [name for name, cause in causes.items() if any(part in name or part in cause for part in only.split(','))]
    if not chosen:
        raise ValueError(f'only={only}: no run and no cause has this in its name; causes are healthy, {", ".join(CAUSES)}')
    old = pd.read_csv(csv, dtype=str, keep_default_na=False).to_dict('records') if os.path.exists(csv) else []
    rows, failed = {row['plant']: row for row in old}, []
    for name in chosen:
        try:
            if not check:
                rows[name] = row_of(name, plants, healthy)
                pd.DataFrame([rows[name] for name in causes if name in rows]).to_csv(csv, index=False)
                say(f'{name}: {rows[name]["cause"]}, found {rows[name]["findings"] or "nothing"}')
            elif name in plants and plants[name][-1]:
                _, twin, keys, edits = plants[name]
                train(f'check/{name}', f'{healthy[twin][0]} {keys} --max_iters=1 --eval_iters=1', edits)
        except ValueError as error:
            failed.append(name)
            say(f'error: {error}', to=sys.stderr)
    if failed:
        raise ValueError(f'{len(failed)} of {len(chosen)} failed, and the same command tries them again: {", ".join(failed)}')
    if not check:
        say(scores(csv))


if __name__ == '__main__':
    main()
