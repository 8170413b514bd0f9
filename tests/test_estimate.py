"""lab/estimate.py against sums by hand."""
import pytest
from helpers import ROOT, call


def gib(out):
    return {line[:24].strip(): float(line[24:].split()[0]) for line in out.splitlines()[1:]}


def test_memory():
    """4 bytes a parameter and a gradient; activations grow with the batch, and shards divide the rest"""
    keys = ['--n_layer=4', '--n_embd=2048', '--n_head=16', '--vocab_size=256', '--block_size=64', '--dtype=float32']
    small = gib(call('lab.estimate', *keys, '--optimizer=adam_mini', '--batch_size=1'))
    large = gib(call('lab.estimate', *keys, '--optimizer=adamw', '--batch_size=3', '--parallel=fsdp', '--gpus=4'))
    count = 4 * (12 * 2048 ** 2 + 2 * 2048) + (256 + 64 + 1) * 2048
    weights = [small[name] for name in ('parameters', 'gradients', 'copy for update norms')]
    assert weights == pytest.approx([4 * count / 2 ** 30] * 3, abs=1e-3)
    assert small['state of adam_mini'] == pytest.approx(4 * count / 2 ** 30, rel=0.01) and small['gathered blocks'] == 0
    assert large['state of adamw'] == pytest.approx(8 / 4 * count / 2 ** 30, rel=0.01)
    assert large['parameters'] == pytest.approx(small['parameters'] / 4, abs=1e-3) and large['gathered blocks'] > 0
    assert large['activations'] == pytest.approx(3 * small['activations'], rel=0.02)
    deep, deeper = (gib(call('lab.estimate', *keys, '--recompute=True', '--batch_size=16', f'--n_layer={n}')) for n in (6, 7))
    assert deeper['activations'] - deep['activations'] == pytest.approx(16 * 64 * 2048 * 4 / 2 ** 30, abs=2e-3)    # inputs
    assert small['in all'] == pytest.approx(sum(small.values()) - small['in all'], abs=0.01)


@pytest.mark.long
@pytest.mark.parametrize('optimizer, paper', [('adamw', 11.5), ('sgd', 5.7)])
def test_state_is_what_dnt_computed_in_gb(optimizer, paper):
    found = gib(call('lab.estimate', ROOT / 'config' / f'train_ldnt_xl_{optimizer}.py'))
    assert found[next(name for name in found if 'state' in name)] * 2 ** 30 / 1e9 == pytest.approx(paper, abs=0.1)       # table 2
