"""
What torch.compile is given: how many graphs, when, and what they keep. The back end counts them, and needs no C++ compiler.
"""
import functools
import os

import pytest
import torch
from functorch.compile import make_boxed_func
from helpers import TINY, evaluations, flags, in_each_iteration, steps, train
from torch._dynamo.backends.common import aot_autograd

from engine import device

KEYS = {**TINY, **dict(n_layer=1, n_embd=8, max_iters=4, eval_interval=2, compile=True, optimizer='sgdw')}
LOGITS = KEYS['batch_size'] * KEYS['block_size'] * KEYS['vocab_size']
VIT = {key: value for key, value in KEYS.items() if key not in ('block_size', 'vocab_size')} | dict(
    dataset='digits', image_size=8, patch_size=4, channels=1, classes=10, drop_path=0.2, mixup=0.8, cutmix=1.0, batch_size=64,
    eval_iters=6, n_layer=2)


def counting(path):
    """Compile with a back end that runs graphs as they are. Rank 0 writes a line for each graph: its pass, the iteration, and how
    many numbers its largest tangent has."""
    iteration = [0]
    in_each_iteration(lambda it: iteration.__setitem__(0, it + 1))

    def compile_graph(kind, graph, inputs):
        tangents = [node for node in graph.graph.nodes if node.op == 'placeholder' and 'tangent' in node.name]
        if os.environ.get('RANK', '0') == '0':
            with open(path, 'a') as f:
                print(kind, iteration[0], max((node.meta['val'].numel() for node in tangents), default=0), file=f)
        return make_boxed_func(graph.forward)

    device.why_not_compile = lambda device: ''
    back_end = aot_autograd(**{f'{kind}_compiler': functools.partial(compile_graph, kind) for kind in ('fw', 'bw', 'inference')})
    torch.compile = functools.partial(torch.compile, backend=back_end)
    compile_module = torch.nn.Module.compile
    torch.nn.Module.compile = lambda self, **more: compile_module(self, backend=back_end, **more)


def assert_compiled_once(place, name, training, inference, *more, ranks=1, largest=None, **keys):
    """In a run of four iterations with two evaluations after the first: so many graphs of a training step and of evaluations,
    none after the first iteration, and no backward pass that takes tangents as large as `largest`"""
    script = 'vision.train' if 'image_size' in keys else 'train.py'
    keys = keys if 'image_size' in keys else {**KEYS, **keys}
    train(place, *flags(**keys, out_dir=name), *more, ranks=ranks, through=(counting, str(place / name) + '.txt'), script=script)
    found = [line.split() for line in (place / f'{name}.txt').read_text().splitlines()]
    counts = {kind: sum(row[0] == kind for row in found) for kind in ('fw', 'bw', 'inference')}
    assert counts == dict(fw=training, bw=training, inference=inference)
    assert all(it == '0' and (not largest or int(size) < largest) for _, it, size in found)


def test_a_model_is_one_graph(place):
    """And its evaluation another one, and the optimizer's step a third. No backward pass takes what is as large as the logits"""
    assert_compiled_once(place, 'gpt', 1, 2, largest=LOGITS)


@pytest.mark.long
def test_a_vit_is_one_graph(place):
    """Its evaluation another one, though 355 images are batches of 60 and 59, of which each image counts once, and though the
    training mixes classes"""
    assert_compiled_once(place, 'vit', 1, 2, **VIT)
    train(place, *flags(**VIT | {'compile': False}, out_dir='vit-eager'), script='vision.train')
    for a, b in zip(evaluations(place / 'vit'), evaluations(place / 'vit-eager'), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize('optimizer', ['adam_mini', 'muon'])
def test_ddp_compiles_nothing_again(place, optimizer):
    """Its gradients move after the first iteration, from buckets of one megabyte to others"""
    assert_compiled_once(place, f'ddp-{optimizer}', 1, 2, ranks=2, n_embd=256, n_layer=3, optimizer=optimizer)


@pytest.mark.long
def test_a_sharded_model(place):
    """The blocks are alike; what follows them is a graph of its own, also in evaluation; the third one is the optimizer's step"""
    assert_compiled_once(place, 'fsdp', 2, 3, '--parallel=fsdp', ranks=2, n_layer=3, largest=LOGITS)


def few_variants():
    """torch.compile may compile a piece of code once."""
    torch._dynamo.config.recompile_limit = 1
    counting(os.devnull)


@pytest.mark.long
def test_too_many_variants(place):
    """Are an error, where torch.compile would go on without compiling, in silence"""
    _, err = train(place, *flags(**KEYS, out_dir='variants'), through=(few_variants,), code=1)
    assert 'FailOnRecompileLimitHit' in err
    assert not steps(place / 'variants')
