"""GPT.after_step, which both loops call behind the optimizer's step, and what stands on it: nGPT's unit weights and QK-Clip."""
import math

import pytest
import torch
from helpers import TINY, checkpoint, flags, steps, train

from model import GPT, GPTConfig

SHORT = {**TINY, 'max_iters': 6, 'eval_interval': 3, 'gradient_accumulation_steps': 2, 'weight_decay': 0.0}


def tiny(**keys):
    torch.manual_seed(0)
    return GPT(GPTConfig(**{**dict(block_size=8, vocab_size=13, n_layer=2, n_head=4, n_embd=16), **keys})).double()


def test_unit_weights():
    """Each matrix has length 1 along the width: rows that read the stream, and the columns of W_o and W_2, which write to it"""
    model = tiny(unit_weights=True, ffn='swiglu', pos='rope', tie_weights=False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.after_step()
    for name, p in model.named_parameters():
        if p.dim() == 2:
            before[name] /= before[name].norm(dim=0 if name.split('.')[-2] in ('wo', 'w2') else 1, keepdim=True)
        torch.testing.assert_close(p, before[name], msg=name)


def logits_of_heads(model, idx):
    """The first block's largest logit of each head, from its queries and keys"""
    attn, x = model.h[0].attn, model.h[0].attn_pre_norm(model.wte(idx) + model.wpe.weight[:idx.size(1)])
    q, k = attn.queries_keys(x)
    k = k.repeat_interleave(q.size(2) // k.size(2), dim=2)
    logits = torch.einsum('bthe,bshe->bhts', q, k) / math.sqrt(q.size(-1))
    return logits.masked_fill(torch.ones(idx.size(1), idx.size(1)).triu(1).bool(), -math.inf).amax((0, 2, 3))


@pytest.mark.parametrize('kv_heads', [0, 2, 1])
def test_qk_clip(kv_heads):
    """Heads whose largest logit, on a quarter of the batch, was above τ come down to it, or below where they share keys with a
    larger one. A second call without a forward pass in training changes nothing"""
    idx = torch.arange(40).view(5, 8) % 13
    model = tiny(qk_clip=1.0, n_kv_head=kv_heads, init_gain=20.0)
    largest = logits_of_heads(model, idx[:2])
    tau = largest.sort().values[1:3].mean().item()                      # between the second and the third head
    model.config.qk_clip = tau
    gamma = (tau / largest).where(largest > tau, torch.ones(()).double())
    shared = gamma.view(kv_heads or 4, -1).amin(1, keepdim=True).expand(-1, 4 // (kv_heads or 4)).flatten()
    for training in True, False:
        model.train(training)(idx, idx)
        model.after_step()
        torch.testing.assert_close(logits_of_heads(model, idx[:2]), largest * (gamma * shared).sqrt())


@pytest.mark.parametrize('parallel', ['ddp', pytest.param('fsdp', marks=pytest.mark.long)])
def test_two_ranks_end_with_the_weights_of_one(parallel, place):
    found, keys = [], SHORT | dict(qk_clip=0.01, n_kv_head=1, bias=True, parallel=parallel)
    for count in 1, 2:
        train(place, *flags(**keys, out_dir='clip', overwrite=True), ranks=count)
        found.append(checkpoint(place / 'clip')['model'])
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-4, atol=1e-5)


def test_the_loop_calls_it(place, monkeypatch):
    """Once at the start of a run, then behind each step, and not again when it resumes"""
    def forward(self, idx, targets=None, old=GPT.forward):
        self.logged['calls'] = self.final_norm.weight.mean()
        return old(self, idx, targets)

    monkeypatch.setattr(GPT, 'after_step', lambda self: self.final_norm.weight.data.add_(1))
    monkeypatch.setattr(GPT, 'forward', forward)
    train(place, *flags(**{**SHORT, 'learning_rate': 0.0, 'min_lr': 0.0}, out_dir='calls'), '--max_iters=3')
    train(place, 'calls/config.json', '--init_from=resume', '--max_iters=6')
    assert [row['logged.calls'] for row in steps(place / 'calls')] == [2, 3, 4, 5, 6, 7]
