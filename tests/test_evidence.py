"""engine/stats.py, and what a run logs of it: norms of updates against checkpoints, batches against what was put into them."""
import json
import math
from types import SimpleNamespace

import pytest
import torch
from helpers import TINY, checkpoint, flags, rows, steps, train

from data.tokens import Tokens
from engine.stats import Batches, Norms
from model import GPT, GPTConfig, block_type
from optim import OPTIMIZERS, param_groups

ALONE = SimpleNamespace(device=torch.device('cpu'), world_size=1, rank=0, sum=lambda t: t)


def told(watch):
    found = watch.row()
    return found['rows_before'], found['batches']


def logged(run):
    """The rows of the log's iterations as they stand there"""
    return [row for row in map(json.loads, (run / 'log.jsonl').read_text().splitlines()) if 'loss' in row]


# ----------------------------------------------------------------------------- norms

def squares(before, after):
    """{key of the log: the square of how far its parameters have moved} between two state_dicts"""
    found = {}
    for name in before.keys() - {'lm_head.weight'}:     # tied
        kind, square = block_type(name), (after[name].double() - before[name].double()).square().sum().item()
        keys = [f'update_norms.{kind}'] + [f'layers.update_norms.{kind}.{name.split(".")[1]}'] * name.startswith('h.')
        for key in keys:
            found[key] = found.get(key, 0.0) + square
    return found


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_the_update_is_how_far_a_step_moves_the_weights(optimizer, place):
    """As the kept checkpoints tell, by block type and by layer"""
    keys = TINY | dict(optimizer=optimizer, max_iters=3, keep_every=1, eval_interval=1, log_layers=True, out_dir=optimizer)
    train(place, *flags(**keys))
    states = [checkpoint(place / optimizer, f'ckpt-{it:06}.pt') for it in (1, 2, 3)]
    assert [state['iter'] for state in states] == [1, 2, 3]
    for row, before, after in zip(steps(place / optimizer)[1:], states, states[1:]):
        updates = {key: value for key, value in row.items() if 'update_norms' in key}
        moved = {key: math.sqrt(square) for key, square in squares(before['model'], after['model']).items()}
        assert updates == pytest.approx(moved, rel=1e-4)


def test_a_plain_step_is_the_rate_times_the_gradient(place):
    """And the squares of the layers' norms add up to those of the block types"""
    keys = dict(optimizer='sgdw', momentum=0.0, weight_decay=0.0, grad_clip=0.0, learning_rate=1.0, warmup_iters=0,
                r_qk=2.0, blockwise='jump')
    train(place, *flags(**TINY | dict(max_iters=4, eval_interval=1, log_layers=True, min_lr=0.0, out_dir='plain') | keys))
    for row in logged(place / 'plain'):
        for kind, update in row['update_norms'].items():
            rate = row['lr'] * (2 if kind == 'qk' else 1)
            assert update == pytest.approx(rate * row['grad_norms'][kind], rel=1e-3), kind
        for name, by_layer in row['layers'].items():
            for kind in ('qk', 'vo', 'ffn'):
                assert math.hypot(*by_layer[kind]) == pytest.approx(row[name][kind], rel=1e-5)


def test_layers_without_a_type_are_null():
    model = GPT(GPTConfig(block_size=8, vocab_size=13, n_layer=3, n_head=1, n_embd=8, value_residual=True))
    found = Norms(torch.optim.SGD(param_groups(model, 0.0), lr=0.1), True).by_layer(lambda p: p)
    assert found['gain'] == [None, pytest.approx(0.5 ** 0.5), pytest.approx(0.5 ** 0.5)]


# ----------------------------------------------------------------------------- batches

def test_tokens_of_the_loader(place, monkeypatch):
    """Their targets are the next inputs, and no row comes twice in an epoch"""
    monkeypatch.chdir(place)
    data, watch = Tokens('tiny', 'train', 8, 13), Batches(ALONE)
    before = torch.get_rng_state()
    for i in range(data.windows // 10):
        watch.see(*data.shuffled(10 * i, 10, 0))
    assert told(watch) == (0, dict(repeated=0, agreement=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_faults_of_batches():
    watch, rows = Batches(ALONE), torch.arange(4 * 9).view(4, 9) % 13
    watch.see(rows[:, :-1], rows[:, 1:])
    assert told(watch) == (0, dict(repeated=0, agreement=1))
    watch.see(rows[:2, :-1], rows[:2, :-1])             # rows that came before, and labels that are copies of the input
    watch.see(rows[2:, 1:], rows[2:, 1:])
    assert told(watch) == (4, dict(repeated=0.5, agreement=0))
    constant = torch.zeros(5, 8, dtype=torch.long)
    watch.see(constant, constant)
    assert told(watch) == (8, dict(repeated=0.8, agreement=1))
    watch.see(constant, torch.full_like(constant, -1))  # no targets
    assert told(watch) == (13, dict(repeated=1))


def test_images_have_rows_alone():
    watch, images = Batches(ALONE), torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8)
    for expected in (0, dict(repeated=0)), (6, dict(repeated=1)):
        watch.see(images, torch.arange(6))
        assert told(watch) == expected


def test_ranks_and_resumptions(place):
    """Two ranks log what one does, row by row. A resumed run counts from its start, and `rows_before` says so"""
    keys = TINY | dict(max_iters=18, log_interval=3, log_layers=True)
    for name, ranks in (('one', 1), ('two', 2)):
        train(place, *flags(**keys, out_dir=name), ranks=ranks)
    alone, together = (logged(place / name) for name in ('one', 'two'))
    per_iter = TINY['batch_size'] * TINY['gradient_accumulation_steps']
    assert [row['rows_before'] for row in alone] == [0, *(per_iter * it for it in (1, 4, 7, 10, 13))]
    assert [row['batches'] for row in together] == [row['batches'] for row in alone]
    for a, b in zip(rows(place / 'two'), rows(place / 'one')):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    train(place, 'one/config.json', '--init_from=resume', '--max_iters=21')
    assert [row['rows_before'] for row in logged(place / 'one')[-2:]] == [13 * per_iter, 0]
