"""
Runs and checkpoints of an earlier version, in golden/: the same keys give the same losses, and an old checkpoint resumes, samples
and evaluates as it did. Bit for bit with the PyTorch, the CPU and the threads that losses.json names, elsewhere to 1e-3, and
norms of gradients to 1e-2.
ckpt-adamw, -sgdw, -lion, -adam_mini and -vit, until 2026-11-21, have no r_pos and no fingerprint of the data; ckpt-r_pos,
2026-11-21, has r_pos that is not r_emb; ckpt-shards, 2026-11-22, is of two ranks, with a fingerprint; losses.json, 2026-11-25,
has 13 runs.
A change that is meant to change them makes them anew, and says so.
"""
from configurator import GONE, OF_BOTH

import hashlib
import json
import os
import shutil
from dataclasses import fields

import pytest
import torch
from helpers import ROOT, call, rows

from model import GPTConfig

GOLDEN = ROOT / 'tests' / 'golden'
MADE = json.loads((GOLDEN / 'losses.json').read_text(encoding='utf-8'))
CHECKPOINTS = sorted(path.name for path in GOLDEN.glob('ckpt-*'))


def arithmetic():
    """A hash of some sums: CPUs of the same capability may order them differently."""
    x = torch.arange(256 * 384, dtype=torch.float32).sin().view(256, 384)
    y = torch.cat([(x @ x.T).flatten(), (x.T @ x).softmax(-1).flatten(), torch.nn.functional.gelu(x).sum(0), x.square().mean(1)])
    return hashlib.sha256(y.numpy().tobytes()).hexdigest()[:16]


HERE = dict(torch=torch.__version__, capability=torch.backends.cpu.get_cpu_capability(), threads=torch.get_num_threads(),
            arithmetic=arithmetic())


def same(found, expected, rel=1e-3):
    return found == (expected if HERE.items() <= MADE.items() else pytest.approx(expected, rel=rel))


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A copy of the folder, in which best.pt is ckpt.pt"""
    folder = tmp_path_factory.mktemp('golden') / 'golden'
    shutil.copytree(GOLDEN, folder)
    for name in CHECKPOINTS:
        os.link(folder / name / 'ckpt.pt', folder / name / 'best.pt')
    return folder


def script_of(name):
    return 'vision.train' if 'vit' in name else 'train.py'


FAST = ('adamw-llama', 'sgdw-s5', 'lion-stable', 'adam_mini-s5', 'vit')        # each optimizer, each architecture


@pytest.mark.parametrize('name', [pytest.param(name, marks=[] if name in FAST else pytest.mark.long) for name in MADE['runs']])
def test_a_run(name, place):
    """20 iterations with their losses, norms of gradients and evaluations"""
    run = MADE['runs'][name]
    (place / 'config.json').write_text(json.dumps(run['config']))
    call(script_of(name), 'config.json', f'--out_dir={name}', cwd=place)
    for key, wanted in (('loss', 'losses'), ('grad_norm', 'grad_norms'), ('val_loss', 'val_losses')):
        rel = 1e-2 if key == 'grad_norm' else 1e-3      # a small difference of the weights is a larger one of the gradient
        assert same([row[key] for row in rows(place / name) if key in row], run[wanted], rel), key


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_a_checkpoint(name, place):
    """It resumes with the losses, the sample and the scores that it had"""
    then, args = json.loads((place / name / 'then.json').read_text(encoding='utf-8')), ['--device=cpu', '--dtype=float32']
    if 'sample' in then:
        assert call('sample.py', f'--out_dir={name}', '--temperature=0', '--max_new_tokens=30', '--num_samples=1', '--start=def ',
                    *args, cwd=place) == then['sample']
        call('lab.evaluate', f'--out_dir={name}', *args, cwd=place)
        scores = json.loads((place / name / 'evaluate.jsonl').read_text(encoding='utf-8'))['scores']
        for label, wanted in then['scores'].items():
            assert same([scores[label]['mean'], scores[label]['error']], [wanted['mean'], wanted['error']]), label
    call(script_of(name), f'{name}/config.json', '--init_from=resume', '--max_iters=10', cwd=place)
    losses = [row['loss'] for row in rows(place / name) if 'loss' in row]
    assert len(losses) == 10 and same(losses[5:], then['losses'])
    assert same([row['val_loss'] for row in rows(place / name) if 'val_loss' in row][-1], then['val_loss'])


def test_a_checkpoint_resumes_by_its_config_files(place):
    """Not by its config.json: how weights start may have changed in the files since, and r_emb was for positions too"""
    config = json.loads((GOLDEN / 'ckpt-sgdw' / 'config.json').read_text(encoding='utf-8'))
    shutil.copytree(GOLDEN / 'ckpt-sgdw', place / 'by-files')
    retired = (GONE | OF_BOTH) - {f.name for f in fields(GPTConfig)}
    text = ''.join(f'{key} = {value!r}\n' for key, value in config.items() if key not in retired)
    (place / 'keys.py').write_text(text, encoding='utf-8')
    call('train.py', 'keys.py', ROOT / 'config' / 'arch' / 's5.py', '--out_dir=by-files', '--init_from=resume', '--max_iters=6',
         '--r_emb=3.0', cwd=place)
    assert json.loads((place / 'by-files' / 'config.json').read_text(encoding='utf-8'))['r_pos'] == 3.0
