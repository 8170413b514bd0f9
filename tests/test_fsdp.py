"""
train.py --parallel=fsdp on gloo ranks: the numbers of one process, and checkpoints that any number of ranks continues.
"""
import json

import pytest
import torch
from helpers import TINY, checkpoint, flags, rows, train
from test_measure import assert_alike as close

# Odd sizes: 13 tokens, 11 positions and the rows of 3 heads are shared unevenly
ODD = {**TINY, 'n_embd': 24, 'n_head': 3, 'block_size': 11, 'eval_iters': 5, 'max_iters': 20, 'eval_interval': 10,
       'gradient_accumulation_steps': 4, 'weight_decay': 0.1}
LLAMA = dict(norm='rmsnorm', pos='rope', ffn='swiglu', tie_weights=False, qk_norm=True, n_kv_head=1)
FSDP = ['--parallel=fsdp']


def assert_alike(run, other):
    ours, theirs = rows(run), rows(other)
    assert len(ours) == len(theirs) > 5
    for a, b in zip(ours, theirs):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.fixture(scope='module')
def alone(place):
    """The run of an optimizer on one process, made once"""
    made = {}

    def run(optimizer, **more):
        key = '-'.join([optimizer, *more])
        if key not in made:
            rate = {'learning_rate': 1e-3, 'min_lr': 1e-4} if optimizer == 'lion' else {}      # small steps, as Lion wants
            train(place, *flags(**{**ODD, **rate, **more}, optimizer=optimizer, out_dir=f'alone-{key}'))
            made[key] = place / f'alone-{key}'
        return made[key]
    return run


def on(place, alone, optimizer, ranks, flags=(), **more):
    """A run like alone's, whose losses and whose checkpoint, of the whole model, are the same"""
    whole = alone(optimizer, **more)
    run = place / f'{whole.name}-{ranks}-{len(flags)}'
    train(place, f'{whole}/config.json', f'--out_dir={run.name}', *FSDP, *flags, ranks=ranks)
    assert_alike(run, whole)
    ours, theirs = checkpoint(run), checkpoint(whole)
    assert ours['model'].keys() == theirs['model'].keys()
    few = 0.01 if optimizer == 'lion' else 0            # a sum over ranks rounds differently, and a sign near 0 turns
    for key, value in theirs['model'].items():
        assert ((ours['model'][key] - value).abs() > 1e-5).double().mean() <= few, key
    state, wanted = (one['optimizer']['state'] for one in (ours, theirs))
    for i in wanted:
        assert state[i].keys() == wanted[i].keys()
        for key, value in wanted[i].items():
            if torch.is_tensor(value):
                assert ((state[i][key] - value).abs() > 1e-6 + 1e-3 * value.abs()).double().mean() <= few, key


def from_to(place, whole, first, second):
    """Ten iterations on so many ranks, and the rest on so many others, give the same losses"""
    half = f'{whole.name}-from-{first}-to-{second}'
    train(place, f'{whole}/config.json', f'--out_dir={half}', '--max_iters=10', *FSDP, ranks=first)
    train(place, f'{half}/config.json', '--init_from=resume', '--max_iters=20', *FSDP, ranks=second)
    assert_alike(place / half, whole)


def test_adam_mini(place, alone):
    """Its moments are of heads and rows that the shards cut"""
    on(place, alone, 'adam_mini', 2)


@pytest.mark.long
def test_sharded_ranks_go_on_from_one(place, alone):
    from_to(place, alone('adam_mini'), 1, 2)


@pytest.mark.long
@pytest.mark.parametrize('ranks', [2, 4])
@pytest.mark.parametrize('optimizer', ['adamw', 'sgdw', 'lion', 'adam_mini'])
@pytest.mark.parametrize('more', [{}, LLAMA], ids=['gpt2', 'llama'])
def test_every_optimizer(optimizer, ranks, more, place, alone):
    on(place, alone, optimizer, ranks, **more)


@pytest.mark.long
@pytest.mark.parametrize('optimizer', ['adamw', 'adam_mini'])
def test_two_copies_and_gradients_that_are_summed_once(optimizer, place, alone):
    """Of two ranks each; and a checkpoint of theirs is whole"""
    on(place, alone, optimizer, 4, flags=['--shard_ranks=2', '--reduce_each=False'])


@pytest.mark.long
@pytest.mark.parametrize('first, second', [(4, 1), (1, 4), (2, 4), (4, 2)])
@pytest.mark.parametrize('optimizer', ['sgdw', 'adam_mini'])
@pytest.mark.parametrize('more', [{}, LLAMA], ids=['gpt2', 'llama'])
def test_other_numbers_of_ranks_go_on(optimizer, first, second, more, place, alone):
    from_to(place, alone(optimizer, **more), first, second)


@pytest.mark.long
@pytest.mark.parametrize('optimizer', ['sgdw', 'lion', 'adam_mini'])
def test_compiled(optimizer, place, alone):
    whole = alone(optimizer)
    train(place, f'{whole}/config.json', f'--out_dir=compiled-{optimizer}', *FSDP, '--compile=True', ranks=2)
    assert_alike(place / f'compiled-{optimizer}', whole)


@pytest.mark.long
@pytest.mark.parametrize('more', [FSDP, [*FSDP, '--compile=True'], []], ids=['fsdp', 'fsdp compiled', 'ddp'])
def test_recomputed(more, place, alone):
    whole, out_dir = alone('adamw'), f'recomputed-{len(more)}'
    train(place, f'{whole}/config.json', f'--out_dir={out_dir}', *more, '--recompute=True', ranks=2)
    assert_alike(place / out_dir, whole)


@pytest.mark.long
def test_measurements_and_without_reshard(place, alone):
    """Rank 0 measures a whole copy; that changes nothing"""
    whole = alone('adamw', measure_interval=5, measure_batches=2)
    train(place, f'{whole}/config.json', '--out_dir=measured', *FSDP, '--reshard=False', ranks=2)
    assert_alike(place / 'measured', whole)
    ours, theirs = ((run / 'measure.jsonl').read_text().splitlines() for run in (place / 'measured', whole))
    assert len(ours) == len(theirs) == 4
    for a, b in zip(ours, theirs):
        a, b = (json.loads(line) for line in (a, b))
        assert a.keys() == b.keys() and a['iter'] == b['iter']
        close(a['hidden'], b['hidden'])
        close(a['updates'], b['updates'])


@pytest.mark.long
def test_bf16(place, alone):
    """A block's weights are rounded, those outside of blocks, the residual stream and what is stored are not"""
    whole = alone('adamw', dtype='bfloat16', norm='rmsnorm')
    train(place, f'{whole}/config.json', '--out_dir=bf16', *FSDP, ranks=2)
    losses, theirs = ([row['val_loss'] for row in rows(run) if 'val_loss' in row] for run in (place / 'bf16', whole))
    assert losses == pytest.approx(theirs, abs=0.02) and losses[-1] < losses[0] - 0.3
    assert all(value.dtype == torch.float32 for value in checkpoint(place / 'bf16')['model'].values())
