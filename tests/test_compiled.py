"""
What torch.compile is given: how many graphs, when, and what they keep. The back end counts them, and needs no C++ compiler.
"""
import json

import pytest
from helpers import TINY, counting, few_variants, flags, steps, train, write_walk

KEYS = {**TINY, 'n_embd': 8, 'max_iters': 4, 'eval_interval': 2, 'compile': True, 'optimizer': 'sgdw'}
LOGITS = KEYS['batch_size'] * KEYS['block_size'] * KEYS['vocab_size']


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp('compiled')
    write_walk(folder)
    return folder


def graphs(place, name, *more, ranks=1, **keys):
    """A row of each graph of a run of four iterations with two evaluations after the first"""
    path = place / f'{name}.jsonl'
    train(place, *flags(**{**KEYS, **keys}, out_dir=name), *more, ranks=ranks, through=(counting, str(path)))
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


def assert_compiled_once(found, forward):
    """So many graphs of a training step, and none after the first iteration"""
    kinds = [row['kind'] for row in found]
    assert kinds.count('forward') == kinds.count('backward') == forward
    assert all(row['iter'] == 0 for row in found)


def test_a_model_is_one_graph(place):
    """And its evaluation another one, and the optimizer's step a third. No backward pass takes what is as large as the logits"""
    found = graphs(place, 'gpt')
    assert_compiled_once(found, 1)
    assert [row['kind'] for row in found].count('inference') == 2
    assert all(row['tangent'] < LOGITS for row in found)


@pytest.mark.long
@pytest.mark.parametrize('optimizer', ['sgdw', 'lion', 'adam_mini', 'muon'])
def test_ddp_compiles_nothing_again(place, optimizer):
    """Its gradients move after the first iteration, from buckets of one megabyte to others"""
    found = graphs(place, f'ddp-{optimizer}', ranks=2, n_embd=256, n_layer=3, optimizer=optimizer)
    assert_compiled_once(found, 1)
    assert [row['kind'] for row in found].count('inference') == 2


@pytest.mark.long
def test_a_sharded_model(place):
    """The blocks are alike; what follows them is a graph of its own"""
    found = graphs(place, 'fsdp', '--parallel=fsdp', ranks=2, n_layer=3)
    assert_compiled_once(found, 2)
    assert all(row['tangent'] < LOGITS for row in found)


def test_too_many_variants(place):
    """Are an error, where torch.compile would go on without compiling, in silence"""
    _, err = train(place, *flags(**KEYS, out_dir='variants'), through=(few_variants,), code=1)
    *_, last = err.splitlines()                         # behind a warning of PyTorch
    assert last.startswith('error: torch.compile gave up') and '--compile=False' in last
    assert not steps(place / 'variants')
