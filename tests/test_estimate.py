"""lab/estimate.py against sums by hand: 4 bytes a parameter, a gradient and a moment; activations grow with the batch."""
import pytest
from helpers import ROOT, call


def gib(*arguments):
    return {line[:24].strip(): float(line[24:].split()[0]) for line in call('lab.estimate', *arguments).splitlines()[1:]}


def test_memory():
    keys = ['--n_layer=4', '--n_embd=2048', '--n_head=16', '--vocab_size=256', '--block_size=64', '--dtype=float32']
    one, shards = gib(*keys, '--batch_size=1'), gib(*keys, '--batch_size=3', '--parallel=fsdp', '--gpus=4')
    weights = 4 * (4 * (12 * 2048 ** 2 + 2 * 2048) + (256 + 64 + 1) * 2048) / 2 ** 30
    for name, times in {'parameters': 1, 'gradients': 1, 'copy for update norms': 1, 'state of adamw': 2}.items():
        assert (one[name], shards[name]) == pytest.approx((times * weights, times * weights / 4), rel=0.01)
    assert shards['activations'] == pytest.approx(3 * one['activations'], rel=0.02)
    deep, deeper = (gib(*keys, '--recompute=True', '--batch_size=16', f'--n_layer={n}')['activations'] for n in (6, 7))
    assert deeper - deep == pytest.approx(16 * 64 * 2048 * 4 / 2 ** 30, abs=2e-3)          # a block's inputs


@pytest.mark.long
@pytest.mark.parametrize('name, gigabytes', [('adamw', 11.5), ('sgd', 5.7)])
def test_state_is_what_dnt_computed(name, gigabytes):
    found = gib(ROOT / 'config' / f'train_ldnt_xl_{name}.py')
    assert found[next(key for key in found if 'state' in key)] * 2 ** 30 / 1e9 == pytest.approx(gigabytes, abs=0.1)      # table 2
