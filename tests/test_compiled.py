"""
What torch.compile is given: how many graphs, when, and what they keep. The back end counts them, and needs no C++ compiler.
"""
import json
import os

import pytest
import torch
from helpers import TINY, counting, evaluations, flags, steps, train, write_walk

KEYS = {**TINY, **dict(n_layer=1, n_embd=8, max_iters=4, eval_interval=2, compile=True, optimizer='sgdw')}
LOGITS = KEYS['batch_size'] * KEYS['block_size'] * KEYS['vocab_size']
VIT = {key: value for key, value in KEYS.items() if key not in ('block_size', 'vocab_size')} | dict(
    dataset='digits', image_size=8, patch_size=4, channels=1, classes=10, drop_path=0.2, mixup=0.8, cutmix=1.0, batch_size=64,
    eval_iters=6, n_layer=2)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp('compiled')
    write_walk(folder)
    return folder


def graphs(place, name, *more, ranks=1, **keys):
    """A row of each graph of a run of four iterations with two evaluations after the first"""
    path = place / f'{name}.jsonl'
    script = 'vision.train' if 'image_size' in keys else 'train.py'
    keys = keys if 'image_size' in keys else {**KEYS, **keys}
    train(place, *flags(**keys, out_dir=name), *more, ranks=ranks, through=(counting, str(path)), script=script)
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


def assert_evaluated_as_eager(place, name, **keys):
    train(place, *flags(**{**keys, 'compile': False, 'out_dir': f'{name}-eager'}),
          script='vision.train' if 'image_size' in keys else 'train.py')
    for a, b in zip(evaluations(place / name), evaluations(place / f'{name}-eager'), strict=True):
        assert a == pytest.approx({key: b[key] for key in a}, rel=1e-5)         # with fsdp there is no residual_rms


@pytest.mark.long
def test_a_vit_is_one_graph(place):
    """Its evaluation another one, though 355 images are batches of 60 and 59, of which each image counts once, and though the
    training mixes classes"""
    found = graphs(place, 'vit', **VIT)
    assert_compiled_once(found, 1)
    assert [row['kind'] for row in found].count('inference') == 2
    assert_evaluated_as_eager(place, 'vit', **VIT)


@pytest.mark.long
@pytest.mark.parametrize('optimizer', ['adam_mini', 'muon'])
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


def few_variants():
    """torch.compile may compile a piece of code once."""
    torch._dynamo.config.recompile_limit = 1
    counting(os.devnull)


@pytest.mark.long
def test_too_many_variants(place):
    """Are an error, where torch.compile would go on without compiling, in silence"""
    _, err = train(place, *flags(**KEYS, out_dir='variants'), through=(few_variants,), code=1)
    *_, last = err.splitlines()                         # behind a warning of PyTorch
    assert last.startswith('error: torch.compile gave up') and '--compile=False' in last
    assert not steps(place / 'variants')
