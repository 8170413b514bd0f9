"""engine/stats.py: what a run logs of each block, against the model's equation in plain lines."""
import math

import numpy as np
import pytest
import torch
from helpers import TINY, evaluations, flags, train

from engine.checkpoint import load_run
from engine.stats import NUMBERS, OF_ATTENTION, block_stats
from model import ATTENTIONS, GPT, RESIDUALS, GPTConfig

SMALL = dict(block_size=8, vocab_size=13, n_layer=3, n_head=2, n_embd=16)


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
            every = (2 * every - k.square().sum(-1).transpose(1, 2)[:, :, None]) / 2
        every = (every * block.attn.scale).masked_fill(future, -math.inf)
        weights = every.double().softmax(-1)
        entropies = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        branch, _ = block.attn_branch(stream)
        behind = stream + branch
        hidden = block.ffn.activation(block.ffn.w1(block.ffn_pre_norm(behind)))
        largest = hidden.abs().amax((0, 1))
        stream, _ = block(stream)
        for name, number in dict(
                residual_rms=rms(stream), attn_rms=rms(branch), ffn_rms=rms(block.ffn_branch(behind)), max_logits=every.max(),
                attn_entropy=entropies.mean() / torch.arange(1.0, x.size(1) + 1).log().mean(),
                dead_units=(largest <= 0.01 * rms(hidden)).float().mean()).items():
            found[name].append(number.item())
    return {name: pytest.approx(values, rel=1e-4) for name, values in found.items()}


@torch.no_grad()
@pytest.mark.parametrize('keys', [{}, dict(pos='rope', n_kv_head=1, qk_norm=True, input_norm=True), dict(attention='stable'),
                                  dict(attention='l2', dropout=0.5), dict(bias=True)], ids=str)
def test_it_is_the_equation(keys):
    """With bias, a block's FFN is partly dead and another one wholly; nothing of the model or the random numbers is changed"""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SMALL, **keys))
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    if 'bias' in keys:
        model.h[1].ffn.w1.bias.fill_(-100)
        model.h[2].ffn.w1.bias[:16] = -100              # of 64
    x, before = torch.randint(13, (4, 8)), torch.get_rng_state()
    found = block_stats(model, x)
    assert model.training and torch.equal(torch.get_rng_state(), before) and not model.h[0]._forward_hooks
    assert found == plain(model.eval(), x) and ('bias' not in keys or found['dead_units'][1:] == [1, 0.25])


@pytest.mark.parametrize('keys', [*(dict(residual=kind) for kind in RESIDUALS), *(dict(attention=kind) for kind in ATTENTIONS),
                                  dict(parallel_ffn=True, ffn_pre_norm=False), dict(ffn='swiglu', sub_norm=True, b2t=True)])
def test_every_kind_of_block_has_them(keys):
    found = block_stats(GPT(GPTConfig(**SMALL, **keys)), torch.randint(13, (2, 8)))
    assert found.keys() == {*NUMBERS, *OF_ATTENTION}
    assert all(len(numbers) == 3 and all(map(math.isfinite, numbers)) for numbers in found.values())


def test_what_an_edited_block_lacks():
    """Is null for this block, and the other blocks keep theirs"""
    model, x = GPT(GPTConfig(**SMALL)), torch.randint(13, (2, 8))
    before = block_stats(model, x)
    model.h[2].attn.attend = lambda q, k, v: q          # without logits
    found = block_stats(model, x)
    assert all(found[name] == [*before[name][:2], None] for name in OF_ATTENTION) and None not in found['ffn_rms']


def test_every_evaluation_logs_it(place):
    """Of the weights at that moment, whose checkpoint follows"""
    train(place, *flags(**TINY | dict(max_iters=5), out_dir='one'))
    first, last = ({key: [x for name, x in row.items() if name.startswith(f'{key}.')] for key in (*NUMBERS, *OF_ATTENTION)}
                   for row in evaluations(place / 'one'))
    model, _ = load_run(str(place / 'one' / 'ckpt.pt'))
    tokens = torch.from_numpy(np.fromfile(place / 'data' / 'tiny' / 'val.bin', np.uint16).astype(np.int64))
    windows = [i * ((500 - 1) // 16) // 4 * 16 for i in range(4)]
    assert first != last == plain(model.eval(), torch.stack([tokens[i:i + 16] for i in windows]))
