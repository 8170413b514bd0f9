"""engine/stats.py, and what a run logs of it, against the model's equation in plain lines."""
import math

import numpy as np
import pytest
import torch
from helpers import TINY, evaluations, flags, train

from engine.checkpoint import load_run
from engine.stats import NUMBERS, OF_ATTENTION, block_stats
from model import ATTENTIONS, GPT, RESIDUALS, GPTConfig


def rms(x):
    return x.double().square().mean().sqrt()


def plain(model, x):
    """The same of a GPT by its parts, block by block, with logits of the whole batch at once."""
    stream = model.wte(x) + (model.wpe.weight[:x.size(1)] if model.wpe is not None else 0)
    stream, found = model.input_norm(stream), {name: [] for name in (*NUMBERS, *OF_ATTENTION)}
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
        every = every.masked_fill(future, -math.inf)
        weights = every.double().softmax(-1)
        entropies = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        branch, _ = block.attn_branch(stream)
        behind = stream + branch
        hidden = block.ffn.activation(block.ffn.w1(block.ffn_pre_norm(behind)))
        largest = hidden.abs().amax((0, 1))
        numbers = dict(attn_rms=rms(branch), ffn_rms=rms(block.ffn_branch(behind)), max_logits=every.max(),
                       attn_entropy=entropies.mean() / torch.arange(1.0, x.size(1) + 1).log().mean(),
                       dead_units=(largest < 0.01 * rms(hidden)).float().mean())
        stream, _ = block(stream)
        for name, number in {**numbers, 'residual_rms': rms(stream)}.items():
            found[name].append(number.item())
    return {name: pytest.approx(values, rel=1e-4) for name, values in found.items()}


@torch.no_grad()
@pytest.mark.parametrize('keys', [{}, dict(pos='rope', n_kv_head=1, qk_norm=True, input_norm=True), dict(attention='stable'),
                                  dict(attention='l2', dropout=0.5)])
def test_health_is_that_of_the_equation(keys):
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=8, vocab_size=13, n_layer=3, n_head=2, n_embd=16, **keys))
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    x, before = torch.randint(13, (4, 8)), torch.get_rng_state()
    found = block_stats(model, x)
    assert model.training and torch.equal(torch.get_rng_state(), before) and not model.h[0]._forward_hooks
    assert found == plain(model.eval(), x)


SMALL = dict(block_size=8, vocab_size=13, n_layer=3, n_head=2, n_embd=16)


@torch.no_grad()
def test_at_the_ends_of_their_scales():
    """Without queries the entropy is that of equal weights, and large ones attend to one token; all units are dead far below 0"""
    model, x = GPT(GPTConfig(**SMALL, bias=True)), torch.randint(13, (4, 8))
    model.h[0].attn.wq.weight.zero_()
    model.h[2].attn.wq.weight.mul_(1e6)
    model.h[1].ffn.w1.bias.fill_(-100)
    model.h[2].ffn.w1.bias[:16] = -100                  # of 64
    found = block_stats(model, x)
    assert found['attn_entropy'][0] == pytest.approx(1) and found['attn_entropy'][2] < 0.2
    assert found['dead_units'] == [0, 1, 0.25] and found['ffn_rms'][1] == 0


KINDS = [*(dict(residual=kind) for kind in RESIDUALS), *(dict(attention=kind) for kind in ATTENTIONS),
         dict(parallel_ffn=True, ffn_pre_norm=False), dict(ffn='swiglu', sub_norm=True, b2t=True)]


@pytest.mark.parametrize('keys', KINDS, ids=str)
def test_every_kind_of_block_has_them(keys):
    found = block_stats(GPT(GPTConfig(**SMALL, **keys)), torch.randint(13, (2, 8)))
    assert found.keys() == {*NUMBERS, *OF_ATTENTION}
    assert all(len(numbers) == 3 and all(map(math.isfinite, numbers)) for numbers in found.values())


def test_what_an_edited_block_lacks():
    """Is null for this block, and the other blocks keep theirs"""
    model, x = GPT(GPTConfig(**SMALL)), torch.randint(13, (2, 8))
    before = block_stats(model, x)

    class Attention(torch.nn.Linear):                   # without logits

        def forward(self, x, v1=None, cache=None):
            return super().forward(x), None

    model.h[2].attn, model.h[2].ffn = Attention(16, 16), torch.nn.Linear(16, 16)
    found = block_stats(model, x)
    for name in ('max_logits', 'attn_entropy', 'dead_units'):
        assert found[name] == [*before[name][:2], None], name
    assert None not in found['ffn_rms']


def of_blocks(row):
    """What `rows` has spread"""
    return {key: [x for name, x in row.items() if name.startswith(f'{key}.')] for key in (*NUMBERS, *OF_ATTENTION)}


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
    for name, numbers in of_blocks(evaluations(place / 'two')[1]).items():
        assert numbers == pytest.approx(last[name], rel=1e-3), name
