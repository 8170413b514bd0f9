"""
Three runs, in golden/losses.json: the same keys give the same losses, bit for bit with the PyTorch, the CPU and the threads that
the file names, elsewhere to 1e-3, and norms of gradients to 1e-2. These alone notice a changed start, order of data or dropout.
A change that is meant to change them makes them anew, and says so.
"""
import hashlib
import json
import shutil

import pytest
import torch
from helpers import ROOT, call, rows

GOLDEN = ROOT / 'tests' / 'golden'
MADE = json.loads((GOLDEN / 'losses.json').read_text(encoding='utf-8'))


def arithmetic():
    """A hash of some sums: CPUs of the same capability may order them differently."""
    x = torch.arange(256 * 384, dtype=torch.float32).sin().view(256, 384)
    y = torch.cat([(x @ x.T).flatten(), (x.T @ x).softmax(-1).flatten(), torch.nn.functional.gelu(x).sum(0), x.square().mean(1)])
    return hashlib.sha256(y.numpy().tobytes()).hexdigest()[:16]


HERE = dict(torch=torch.__version__, capability=torch.backends.cpu.get_cpu_capability(), threads=torch.get_num_threads(),
            arithmetic=arithmetic())


@pytest.mark.parametrize('name', MADE['runs'])
def test_a_run(name, tmp_path):
    """20 iterations with their losses, norms of gradients and evaluations"""
    run, place = MADE['runs'][name], tmp_path / 'golden'
    shutil.copytree(GOLDEN, place)
    (place / 'config.json').write_text(json.dumps(run['config']))
    call('train.py', 'config.json', '--out_dir=out', cwd=place)
    for key, wanted in (('loss', 'losses'), ('grad_norm', 'grad_norms'), ('val_loss', 'val_losses')):
        rel = 1e-2 if key == 'grad_norm' else 1e-3      # a small difference of the weights is a larger one of the gradient
        expected = run[wanted] if HERE.items() <= MADE.items() else pytest.approx(run[wanted], rel=rel)
        assert [row[key] for row in rows(place / 'out') if key in row] == expected, key
