"""engine/stats.py, and what a run logs of it: norms of updates against checkpoints, batches against what was put into them."""
import json
import math
from types import SimpleNamespace

import pytest
import torch
from helpers import TINY, checkpoint, flags, rows, steps, train

from engine.stats import Batches
from model import block_type
from optim import OPTIMIZERS


def squares(before, after):
    """{key of the log: the square of how far its parameters have moved} between two state_dicts"""
    found = {}
    for name in before.keys() - {'lm_head.weight'}:     # tied
        kind, square = block_type(name), (after[name].double() - before[name].double()).square().sum().item()
        keys = [f'update_norms.{kind}'] + [f'layers.update_norms.{kind}.{name.split(".")[1]}'] * name.startswith('h.')
        for key in keys:
            found[key] = found.get(key, 0.0) + square
    return found


def logged(run):
    """The rows of the log's iterations as they stand there"""
    return [row for row in map(json.loads, (run / 'log.jsonl').read_text().splitlines()) if 'loss' in row]


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_the_update_is_how_far_a_step_moves_the_weights(optimizer, place):
    """As the kept checkpoints tell, by block type and by layer; so are the norms of weights. Squares of gradients add up"""
    keys = TINY | dict(optimizer=optimizer, max_iters=3, keep_every=1, eval_interval=1, log_layers=True, out_dir=optimizer)
    out, _ = train(place, *flags(**keys))
    assert 'no checkpoint holds it' not in out
    states = [checkpoint(place / optimizer, f'ckpt-{it:06}.pt') for it in (1, 2, 3)]
    for row, before, after in zip(steps(place / optimizer)[1:], states, states[1:], strict=False):
        updates = {key: value for key, value in row.items() if 'update_norms' in key}
        moved = {key: math.sqrt(square) for key, square in squares(before['model'], after['model']).items()}
        assert updates == pytest.approx(moved, rel=1e-4)
        nothing = {name: torch.zeros_like(p) for name, p in after['model'].items()}
        for key, square in squares(nothing, after['model']).items():
            assert row[key.replace('update', 'weight')] == pytest.approx(math.sqrt(square), rel=1e-5)
        of_types = [norm for key, norm in row.items() if key.startswith('grad_norms.')]
        assert math.hypot(*of_types) == pytest.approx(row['grad_norm'], rel=1e-5)
        for kind in 'qk', 'vo', 'ffn':
            of_layers = [row[f'layers.grad_norms.{kind}.{layer}'] for layer in range(TINY['n_layer'])]
            assert math.hypot(*of_layers) == pytest.approx(row[f'grad_norms.{kind}'], rel=1e-5)


def test_faults_of_batches():
    watch = Batches(SimpleNamespace(device=torch.device('cpu'), world_size=1, rank=0, sum=lambda t: t))

    def told(x, y):
        watch.see(x, y)
        found = watch.row()
        return found['rows_before'], found['batches']

    rows, constant = torch.arange(4 * 9).view(4, 9) % 13, torch.zeros(5, 8, dtype=torch.long)
    assert told(rows[:, :-1], rows[:, 1:]) == (0, dict(repeated=0, agreement=1))
    watch.see(rows[:2, :-1], rows[:2, :-1])             # rows that came before, and labels that are copies of the input
    assert told(rows[2:, 1:], rows[2:, 1:]) == (4, dict(repeated=0.5, agreement=0))
    assert told(constant, constant) == (8, dict(repeated=0.8, agreement=1))
    assert told(constant, torch.full_like(constant, -1)) == (13, dict(repeated=1))          # no targets


def test_ranks_and_resumptions(place):
    """Two ranks log what one does, row by row. A resumed run counts from its start, and `rows_before` says so"""
    keys = TINY | dict(max_iters=18, log_interval=3, log_layers=True)
    for name, ranks in (('one', 1), ('two', 2)):
        train(place, *flags(**keys, out_dir=name), ranks=ranks)
    alone, together = (logged(place / name) for name in ('one', 'two'))
    per_iter = TINY['batch_size'] * TINY['gradient_accumulation_steps']
    assert [row['rows_before'] for row in alone] == [0, *(per_iter * it for it in (1, 4, 7, 10, 13))]
    assert all(row['batches'] == dict(repeated=0, agreement=1) for row in alone + together)
    for a, b in zip(rows(place / 'two'), rows(place / 'one'), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    train(place, 'one/config.json', '--init_from=resume', '--max_iters=21')
    assert [row['rows_before'] for row in logged(place / 'one')[-2:]] == [13 * per_iter, 0]
