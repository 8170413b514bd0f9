"""engine/health.py, and what a run logs of it, against the model's equation in plain lines."""
import math

import numpy as np
import pytest
import torch
from helpers import TINY, evaluations, flags, train

from engine.checkpoint import load_run
from engine.health import health
from model import GPT, GPTConfig


def plain(model, x):
    """The same of a GPT by its parts, block by block, with logits of the whole batch at once."""
    stream = model.wte(x) + (model.wpe.weight[:x.size(1)] if model.wpe is not None else 0)
    stream, rms, logits = model.input_norm(stream), [], []
    future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
    for block in model.h:
        q, k = block.attn.queries_keys(block.attn_pre_norm(stream))
        if block.attn.rotary is not None:
            q, k = block.attn.rotary(q, 0), block.attn.rotary(k, 0)
        k = k.repeat_interleave(q.size(2) // k.size(2), dim=2)
        every = torch.einsum('bthe,bshe->bhts', q, k)
        if model.config.attention == 'l2':
            every = 2 * every - k.square().sum(-1).transpose(1, 2)[:, :, None]
        every = every * (block.attn.scale if model.config.attention != 'l2' else block.attn.scale / 2)
        logits.append(every.masked_fill(future, -math.inf).max().item())
        stream, _ = block(stream)
        rms.append(stream.double().square().mean().sqrt().item())
    return dict(residual_rms=pytest.approx(rms, rel=1e-5), max_logits=pytest.approx(logits, rel=1e-4))


@torch.no_grad()
@pytest.mark.parametrize('keys', [{}, dict(pos='rope', n_kv_head=1, qk_norm=True, input_norm=True), dict(attention='stable'),
                                  dict(attention='l2', dropout=0.5)])
def test_health_is_that_of_the_equation(keys):
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=8, vocab_size=13, n_layer=3, n_head=2, n_embd=16, **keys))
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    x, before = torch.randint(13, (4, 8)), torch.get_rng_state()
    found = health(model, x)
    assert model.training and torch.equal(torch.get_rng_state(), before) and not model.h[0]._forward_hooks
    assert found == plain(model.eval(), x)


def of_blocks(row):
    """What `rows` has spread"""
    return {key: [x for name, x in row.items() if name.startswith(key)] for key in ('residual_rms', 'max_logits')}


def test_every_evaluation_logs_it(place):
    """Of the weights at that moment, whose checkpoint follows; a compiled run and two ranks log the same"""
    keys = {**TINY, 'max_iters': 5}
    train(place, *flags(**keys, out_dir='one'))
    first, last = (of_blocks(row) for row in evaluations(place / 'one'))
    assert len(first['residual_rms']) == len(first['max_logits']) == TINY['n_layer'] and first != last
    model, _ = load_run(str(place / 'one' / 'ckpt.pt'))
    tokens = torch.from_numpy(np.fromfile(place / 'data' / 'tiny' / 'val.bin', np.uint16).astype(np.int64))
    windows = [i * ((500 - 1) // 16) // 4 * 16 for i in range(4)]
    assert last == plain(model.eval(), torch.stack([tokens[i:i + 16] for i in windows]))
    train(place, *flags(**keys, out_dir='two'), ranks=2)
    assert of_blocks(evaluations(place / 'two')[1])['max_logits'] == pytest.approx(last['max_logits'], rel=1e-3)
