"""
Damaged files that the scripts read, other than checkpoints and data: those of runs, sweeps and pretrained models. A script ends
with one line and exit code 1, or with a result and exit code 0.
"""
import json
import os
import pickle
import random
import shutil
import sys

import pytest
from helpers import call, run_here, runs_csv
from test_bad_input import Malicious, gpt2, lay_out

from engine.errors import read_rows
from lab.sweep.run import row_of_run

TRAIN = 'train.py tiny.json --out_dir=out --max_iters=4'
PLOT = 'lab.plot out'
MEASURE = '--batches=1 --device=cpu --what=drift'
READERS = {                         # each file, and who reads it
    'out/config.json': [PLOT, f'{TRAIN} out/config.json --init_from=resume'],
    'out/log.jsonl': [PLOT, f'{PLOT} --what=lr', f'{TRAIN} --init_from=resume'],
    'out/measure.jsonl': [f'{PLOT} --what=sharpness', f'{PLOT} --what=updates.qk', f'{TRAIN} --init_from=resume'],
    'out/measure.json': [f'{PLOT} --what={what}' for what in (
        'gradients', 'sharpness', 'hidden', 'parameters', 'attention', 'sensitivity', 'drift', 'layers', 'attention_growth',
        'transport', 'output_spectrum', 'preflight')] + [f'lab.measure --out_dir=out {MEASURE}'],
    'out/evaluate.jsonl': ['lab.evaluate --out_dir=out --device=cpu --dtype=float32'],
    'init-init/config.json': [f'lab.measure tiny.json --init_only=True --out_dir=init {MEASURE}'],
    'swept/seed=1/config.json': ['lab.sweep tiny.json --out_dir=swept --seeds=2'],
    'numbers/table.csv': ['lab.plot numbers --what=sweep'],
    'numbers/runs.csv': ['lab.sweep --report=numbers/runs.csv --select=best'],
    'ours/config.json': ['sample.py --init_from=ours --device=cpu --max_new_tokens=2 --start=a',
                         'train.py tiny.json --init_from=ours --out_dir=new'],
}
OTHERS = {                          # who reads other files
    'data/tiny/meta.json': 'sample.py --out_dir=out --device=cpu', 'data/tiny/train.bin': f'{TRAIN} --init_from=resume',
    'data/tiny/val.bin': 'lab.evaluate --out_dir=out --device=cpu', 'tiny.json': TRAIN,
    'out/ckpt.pt': f'{TRAIN} --init_from=resume',
    'out/best.pt': 'sample.py --out_dir=out --device=cpu', 'ours/model.safetensors': READERS['ours/config.json'][0],
    'ours/tokenizer.json': READERS['ours/config.json'][0], 'ours/tokenizer_config.json': READERS['ours/config.json'][0],
}
VALUES = (None, True, 0, -1, 3, 10 ** 12, 10 ** 400, 0.5, -2.5, 1e300, float('nan'), float('inf'), '', 'x', '$x$', [], [1, 'a'],
          [[]], {}, {'a': {'b': [None]}})


@pytest.fixture(scope='module')
def original(tmp_path_factory):
    """A run with measurements and an evaluation, a sweep of two runs, and an exported model."""
    folder = tmp_path_factory.mktemp('damaged')
    lay_out(folder)
    call('train.py', 'tiny.json', '--out_dir=out', '--measure_interval=1', '--measure_batches=1', cwd=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('lab.plot.draw', lambda *picture: None)
        call('lab.measure', '--out_dir=out', '--batches=1', '--device=cpu', cwd=folder)
        call('lab.measure', 'tiny.json', '--init_only=True', '--out_dir=init', *MEASURE.split(), cwd=folder)
    found = json.loads((folder / 'out' / 'measure.json').read_text())
    found['preflight'] = dict(invariance={'W_1': {'FFN branch': 1.0, 'gradient of w1': None}}, growth={'as is': {
        quantity: dict(power=0.1, factor_per_layer=1.0, shape='flat') for quantity in ('ma', 'var')}}, drift={})
    found['attention_growth'] = [dict(ma=1.0, ma_bound=2.0)]
    (folder / 'out' / 'measure.json').write_text(json.dumps(found))
    call('lab.evaluate', '--out_dir=out', '--device=cpu', '--dtype=float32', cwd=folder)
    call('lab.export', '--out_dir=out', '--to=ours', '--format=safetensors', cwd=folder)
    runs = []
    for seed in '12':
        run = folder / 'swept' / f'seed={seed}'
        run.mkdir(parents=True)
        shutil.copy(folder / 'out' / 'log.jsonl', run)
        (run / 'config.json').write_text(json.dumps({**json.loads((folder / 'out' / 'config.json').read_text()),
                                                     'seed': int(seed), 'data_seed': int(seed), 'measure_interval': 0,
                                                     'measure_batches': 2}))
        runs.append(row_of_run(dict(labels=dict(learning_rate='0.1', seed=seed), keys=''), str(run), 'done'))
    (folder / 'numbers').mkdir()
    (folder / 'numbers' / 'runs.csv').write_text(runs_csv(runs))
    call('lab.sweep', '--report=numbers', cwd=folder)
    return folder


# ----------------------------------------------------------------------------- damages


def damage(path, draw):
    """Damages a file in one way."""
    content = path.read_bytes()
    way = draw.choice(['truncate', 'bytes', 'text', 'folder', 'pickle'])
    if way == 'folder':
        path.unlink()
        path.mkdir()
        return way
    path.write_bytes({'truncate': content[:draw.randrange(len(content))], 'bytes': b'\xff\xfe\0' * 40 + b'}\n',
                      'text': b'some text}\n', 'pickle': pickle.dumps(Malicious(), 2)}[way])
    return way


def check(original, tmp_path, monkeypatch, draw, readers):
    """One case: a damaged file, and a script that reads it"""
    name = draw.choice(list(readers))
    command = draw.choice(readers[name])
    here = tmp_path / 'here'
    shutil.copytree(original, here)
    monkeypatch.chdir(here)
    try:
        way = damage(here / name, draw)
        script, *arguments = command.split()
        code, out, err = run_here(script, *arguments)
        lines = [line for line in err.splitlines() if line.startswith('error: ')]
        about = f'{command}\n{name}: {way}: {(here / name).read_bytes()[:400] if (here / name).is_file() else ""}\n{out}{err}'
        assert 'Traceback' not in err and code in (0, 1) and len(lines) == code, about
        assert not code or err.splitlines()[-1] == lines[0], about
        assert not (here / 'malicious').exists()
        return code
    finally:
        monkeypatch.undo()
        shutil.rmtree(here)


def test_damaged_files(original, tmp_path, monkeypatch):
    draw = random.Random(1)
    assert sum(check(original, tmp_path, monkeypatch, draw, READERS) for _ in range(6)) > 1


@pytest.mark.long
def test_many_damaged_files(original, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.chdir(original)
        gpt2(13)()
    readers = READERS | {'theirs/config.json': ['train.py tiny.json --init_from=theirs --out_dir=new']}
    draw = random.Random(2)
    assert sum(check(original, tmp_path, monkeypatch, draw, readers) for _ in range(200)) > 60


def test_no_file_runs_code(original, tmp_path, monkeypatch):
    """A pickle with code in the place of each file that a script reads"""
    here = tmp_path / 'here'
    shutil.copytree(original, here)
    monkeypatch.chdir(here)
    for name, command in {**{name: commands[0] for name, commands in READERS.items()}, **OTHERS}.items():
        content = (here / name).read_bytes()
        (here / name).write_bytes(pickle.dumps(Malicious(), 2))
        script, *arguments = command.split()
        _, out, err = run_here(script, *arguments)
        assert 'Traceback' not in err and not (here / 'malicious').exists(), (name, out, err)
        (here / name).write_bytes(content)


# ----------------------------------------------------------------------------- the readers


def test_numbers_that_are_not_finite(tmp_path):
    """null, as our rows have it for them, is NaN where rows are read; a row that a kill has cut off is none"""
    path = tmp_path / 'a.jsonl'
    path.write_text('{"iter": 0, "x": null}\n{"iter": 1, "x": NaN}\n{"iter": "ten", "x": 1}\n{"iter": 2, "x": 2')
    rows = read_rows(str(path))
    assert len(rows) == 2 and all(row['x'] != row['x'] for row in rows)


def test_wandb_that_cannot_be_imported(original, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    err = call('train.py', 'tiny.json', '--out_dir=new', '--wandb_log=True', cwd=original, code=1)
    assert err.startswith('error: wandb_log=True: ') and 'pip install wandb' in err and err.count('\n') == 1
    assert os.listdir(original / 'new') == ['.lock']
