"""engine/stats.py: what a run logs beside the loss, against the model's equation and kept checkpoints."""
import math

import numpy as np
import pytest
import torch
from helpers import TINY, checkpoint, evaluations, flags, steps, train

from engine.checkpoint import load_run
from engine.stats import NUMBERS, OF_ATTENTION, block_stats
from model import ATTENTIONS, GPT, RESIDUALS, GPTConfig, block_type
from optim import OPTIMIZERS

SMALL = dict(block_size=8, vocab_size=13, n_layer=3, n_head=2, n_embd=16)


# ----------------------------------------------------------------------------- each block

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
            q, k = (block.attn.rotary(x, slice(0, x.size(1))) for x in (q, k))
        k = k.repeat_interleave(q.size(2) // k.size(2), dim=2)
        logits = torch.einsum('bthe,bshe->bhts', q, k)
        if model.config.attention == 'l2':
            logits = (2 * logits - k.square().sum(-1).transpose(1, 2)[:, :, None]) / 2
        logits = (logits * block.attn.scale).masked_fill(future, -math.inf)
        weights = logits.double().softmax(-1)
        entropies = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        branch = block.attn(block.attn_pre_norm(stream))
        behind = stream + branch
        hidden = block.ffn.activation(block.ffn.w1(block.ffn_pre_norm(behind)))
        stream = block(stream)
        for name, number in dict(
                residual_rms=rms(stream), attn_rms=rms(branch), ffn_rms=rms(block.ffn(block.ffn_pre_norm(behind))),
                max_logits=logits.max(),
                attn_entropy=entropies.mean() / torch.arange(1.0, x.size(1) + 1).log().mean(),
                dead_units=(hidden.abs().amax((0, 1)) <= 0.01 * rms(hidden)).float().mean()).items():
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
    """An edited one without a kernel has None, and the other blocks keep theirs"""
    model, x = GPT(GPTConfig(**SMALL, **keys)), torch.randint(13, (2, 8))
    before = block_stats(model, x)
    assert before.keys() == {*NUMBERS, *OF_ATTENTION}
    assert all(len(numbers) == 3 and all(map(math.isfinite, numbers)) for numbers in before.values())
    model.h[2].attn.attend = lambda q, k, v: q
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


# ----------------------------------------------------------------------------- norms

def norms(tensors):
    """{block type, or 'type.layer': the norm of these tensors}, lm_head being tied"""
    found = {}
    for name, t in tensors.items():
        if name != 'lm_head.weight':
            kind = block_type(name)
            for key in [kind] + [f'{kind}.{name.split(".")[1]}'] * name.startswith('h.'):
                found[key] = math.hypot(found.get(key, 0.0), t.double().norm().item())
    return found


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_norms_of_weights_updates_and_gradients(optimizer, place):
    """By block type and by layer. The update is how far the kept checkpoints are apart. Squares of gradients add up"""
    keys = TINY | dict(optimizer=optimizer, max_iters=3, keep_every=1, eval_interval=1, log_layers=True, out_dir=optimizer)
    out, _ = train(place, *flags(**keys))
    assert 'no checkpoint holds it' not in out
    states = [checkpoint(place / optimizer, f'ckpt-{it:06}.pt')['model'] for it in (1, 2, 3)]
    for row, before, after in zip(steps(place / optimizer)[1:], states[:-1], states[1:], strict=True):
        weights, updates, gradients = ({key.replace(f'{name}.', '').replace('layers.', ''): value for key, value in row.items()
                                        if f'{name}.' in key} for name in ('weight_norms', 'update_norms', 'grad_norms'))
        assert updates == pytest.approx(norms({name: p.double() - before[name].double() for name, p in after.items()}), rel=1e-4)
        assert weights == pytest.approx(norms(after), rel=1e-5) and gradients.keys() == weights.keys()
        for kind in 'qk', 'vo', 'ffn':
            assert math.hypot(*(gradients[f'{kind}.{layer}'] for layer in (0, 1))) == pytest.approx(gradients[kind], rel=1e-5)
        assert math.hypot(*(gradients[key] for key in gradients if '.' not in key)) == pytest.approx(row['grad_norm'], rel=1e-5)
