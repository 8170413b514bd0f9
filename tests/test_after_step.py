"""GPT.after_step, which both loops call behind the optimizer's step, and what stands on it: nGPT's unit weights and QK-Clip."""
import math

import pytest
import torch
from helpers import TINY, checkpoint, flags, rows, train

from model import GPT, GPTConfig

NGPT = dict(residual='ngpt', attention='ngpt', unit_weights=True, attn_pre_norm=False, ffn_pre_norm=False, final_norm=False,
            ffn='swiglu', pos='rope', tie_weights=False, weight_decay=0.0, warmup_iters=0)
CLIP = dict(qk_clip=0.01, n_kv_head=1, bias=True)
SHORT = {**TINY, 'max_iters': 6, 'eval_interval': 3, 'gradient_accumulation_steps': 2, 'learning_rate': 1e-2}


def tiny(**keys):
    torch.manual_seed(0)
    return GPT(GPTConfig(**{**dict(block_size=8, vocab_size=13, n_layer=2, n_head=4, n_embd=16), **keys})).double()


def test_unit_weights():
    """Each matrix has length 1 along the width: rows that read the stream, and the columns of W_o and W_2, which write to it"""
    names = {'wte', 'lm_head', 'wq', 'wk', 'wv', 'wo', 'w1', 'w2', 'w3'}
    model = tiny(**{key: value for key, value in NGPT.items() if key in GPTConfig.__dataclass_fields__})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.after_step()
    seen = set()
    for name, p in model.named_parameters():
        module = name.split('.')[-2]
        if module in names:
            lengths = p.norm(dim=0 if module in ('wo', 'w2') else 1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
            torch.testing.assert_close(p * before[name].norm(dim=0 if module in ('wo', 'w2') else 1, keepdim=True), before[name])
            seen.add(module)
        else:
            assert torch.equal(p, before[name]), name
    assert seen == names


def logits_of_heads(model, idx):
    """The first block's largest logit of each head, from its queries and keys"""
    attn, x = model.h[0].attn, model.h[0].attn_pre_norm(model.wte(idx) + model.wpe.weight[:idx.size(1)])
    q, k = attn.queries_keys(x)
    k = k.repeat_interleave(q.size(2) // k.size(2), dim=2)
    logits = torch.einsum('bthe,bshe->bhts', q, k) / math.sqrt(q.size(-1))
    return logits.masked_fill(torch.ones(idx.size(1), idx.size(1)).triu(1).bool(), -math.inf).amax((0, 2, 3))


@pytest.mark.parametrize('kv_heads', [0, 2, 1])
def test_qk_clip(kv_heads):
    """Heads whose largest logit was above τ come down to it, or below where they share keys with a larger one. The others, and a
    second call without a forward pass, change nothing"""
    idx = torch.arange(8)[None] % 13
    model = tiny(qk_clip=1.0, n_kv_head=kv_heads, init_gain=20.0)
    largest = logits_of_heads(model, idx)
    tau = largest.sort().values[1:3].mean().item()                      # between the second and the third head
    model.config.qk_clip = tau
    model.train()(idx, idx)
    torch.testing.assert_close(model.h[0].attn.max_logits, largest.clamp(min=0))
    model.after_step()
    gamma = (tau / largest).where(largest > tau, torch.ones(()).double())
    shared = gamma.view(kv_heads or 4, -1).amin(1, keepdim=True).expand(-1, 4 // (kv_heads or 4)).flatten()
    now = logits_of_heads(model, idx)
    torch.testing.assert_close(now, largest * (gamma * shared).sqrt())
    assert (now <= tau * (1 + 1e-9)).all()
    weights = model.h[0].attn.wq.weight.detach().clone()
    model.after_step()
    assert torch.equal(weights, model.h[0].attn.wq.weight)


def test_qk_clip_looks_at_a_quarter_of_the_batch():
    model = tiny(qk_clip=1.0).train()
    idx = torch.arange(40).view(5, 8) % 13
    model(idx, idx)
    torch.testing.assert_close(model.h[0].attn.max_logits, logits_of_heads(model, idx[:2]).clamp(min=0))
    model.after_step()
    assert not model.h[0].attn.max_logits.any()
    model.eval()(idx, idx)
    assert not model.h[0].attn.max_logits.any()


@pytest.mark.parametrize('keys', [dict(qk_norm=True), dict(linear_norm=True), dict(attention='stable'), dict(attention='l2')])
def test_qk_clip_where_a_norm_undoes_it(keys):
    with pytest.raises(ValueError, match='qk_clip=100.0.*undoes'):
        tiny(qk_clip=100.0, **keys)


@pytest.mark.parametrize('parallel', ['ddp', pytest.param('fsdp', marks=pytest.mark.long)])
@pytest.mark.parametrize('name, keys', [('ngpt', {**NGPT, 'optimizer': 'muon'}), ('qk_clip', {**CLIP, 'optimizer': 'adamw'})])
def test_resumed_and_on_ranks(name, keys, parallel, place):
    """The same run whole, resumed, and on two ranks; clipping happens"""
    given, out = flags(**{**SHORT, **keys}), f'{name}-{parallel}'
    train(place, *given, f'--out_dir={out}')
    train(place, *given, f'--out_dir={out}-half', '--max_iters=3')
    train(place, f'{out}-half/config.json', '--init_from=resume', '--max_iters=6')
    assert [row for row in rows(place / f'{out}-half') if 'loss' in row] == [row for row in rows(place / out) if 'loss' in row]
    train(place, *given, f'--out_dir={out}-2', f'--parallel={parallel}', ranks=2)
    whole = checkpoint(place / out)['model']
    for key, value in checkpoint(place / f'{out}-2')['model'].items():
        torch.testing.assert_close(value, whole[key], rtol=1e-4, atol=1e-5)
    if name == 'qk_clip':
        train(place, *given, '--qk_clip=0', f'--out_dir={out}-off')
        assert not torch.equal(checkpoint(place / f'{out}-off')['model']['h.0.attn.wq.weight'], whole['h.0.attn.wq.weight'])


def counts_its_calls():
    """An edit: after_step moves the final norm's gain, and a forward pass logs how often."""
    def after_step(self):
        with torch.no_grad():
            self.final_norm.weight += 1

    def forward(self, idx, targets=None, old=GPT.forward):
        self.logged['calls'] = self.final_norm.weight.mean()
        self.logged['first'] = idx[0, 0].float()
        return old(self, idx, targets)

    GPT.after_step, GPT.forward = after_step, forward


def test_the_loop_calls_it(place):
    """Once at the start of a run, then behind each step, and not again when it resumes. The log has the mean and the maximum over
    micro-batches and ranks"""
    given = flags(**{**SHORT, 'learning_rate': 0.0, 'min_lr': 0.0})
    train(place, *given, '--out_dir=calls', '--max_iters=3', through=(counts_its_calls,))
    train(place, 'calls/config.json', '--init_from=resume', '--max_iters=6', through=(counts_its_calls,))
    assert [row['logged.calls'] for row in rows(place / 'calls') if 'loss' in row] == [2, 3, 4, 5, 6, 7]
    train(place, *given, '--out_dir=calls-2', ranks=2, through=(counts_its_calls,))
    alone, together = ([{key: row[key] for key in row if key.startswith('logged')} for row in rows(place / name) if 'loss' in row]
                       for name in ('calls', 'calls-2'))
    assert alone == together and any(row['logged_max.first'] > row['logged.first'] for row in alone)
