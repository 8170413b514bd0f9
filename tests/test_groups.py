"""Groups of parameters: whose weight decays, at which rate, and how a checkpoint's state finds them again."""
from configurator import TRAIN, defaults_of

import copy

import pytest
import torch

from engine.checkpoint import load_state
from engine.keys import group_settings
from model import GPT, GPTConfig, block_type
from optim import OPTIMIZERS, lr_at, param_groups

DEFAULTS = defaults_of(TRAIN, GPTConfig)
MID_AND_POST = {f'{branch}_{place}_norm': True for branch in ('attn', 'ffn') for place in ('mid', 'post')}
GPT_SIZES = dict(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8)


def model_of(**more):
    torch.manual_seed(0)
    return GPT(GPTConfig(**GPT_SIZES, **more))


def settings(**keys):
    return group_settings({**DEFAULTS, **GPT_SIZES, **keys})


def decays(model, **keys):
    """{parameter: its weight decay}"""
    return {name: group['weight_decay'] for group in param_groups(model, **settings(weight_decay=0.1, **keys))
            for name, _ in group['params']}


@pytest.mark.parametrize('decay_norms', [False, True])
def test_what_decays(decay_norms):
    """Matrices, and with decay_norms the gains and biases of norms, but no other bias"""
    for name, decay in decays(model_of(bias=True, qk_norm=True), decay_norms=decay_norms).items():
        kind, matrix = block_type(name), name.endswith('weight') and block_type(name) != 'norm'
        assert decay == (0.1 if matrix or decay_norms and kind == 'norm' else 0.0), name


@pytest.mark.parametrize('keys, names', [
    (dict(norm='gatednorm'), ('h.0.attn_pre_norm.down.weight', 'final_norm.up.weight')),
    (dict(residual='hyper'), ('h.0.attn_residual.wa',)), (dict(residual='mhc'), ('h.1.ffn_residual.w',))], ids=str)
def test_matrices_of_norms_and_residuals_decay(keys, names):
    """As matrices, whatever decay_norms says; what they mix from the start, and vectors, do not"""
    for decay_norms in False, True:
        found = decays(model_of(**keys), decay_norms=decay_norms)
        assert all(found[name] == 0.1 for name in names)
        assert all(decay == 0 for name, decay in found.items() if name.endswith(('.a', '.b', '.c', '.s', '.sa', '.wb')))
    assert decays(model_of(**keys), wd_mix=0.0)[names[0]] == 0


def test_weight_decay_per_block_type():
    found = decays(model_of(tie_weights=False), tie_weights=False, wd_qk=2.0, wd_pos=0.0, wd_emb=0.5, wd_head=4.0)
    for name, decay in found.items():
        wanted = {'qk': 0.2, 'pos': 0.0, 'emb': 0.05, 'norm': 0.0, 'head': 0.4}.get(block_type(name), 0.1)
        assert decay == pytest.approx(wanted), name
    norms = decays(model_of(), decay_norms=True, wd_norm=3.0)
    assert norms['h.0.attn_pre_norm.weight'] == pytest.approx(0.3)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_state_is_found_by_name(name):
    """Also where groups are in another order: the next step is the same to the last bit"""
    model, keys = model_of(), {**DEFAULTS, **GPT_SIZES, 'learning_rate': 0.01, 'compile': False}
    theirs = OPTIMIZERS[name](param_groups(model, 0.1)[::-1], keys)
    gradients = {n: torch.randn_like(p) for n, p in model.named_parameters()}

    def step(model, optimizer):
        for n, p in model.named_parameters():
            p.grad = gradients[n].clone()
        optimizer.step()

    step(model, theirs)
    other = copy.deepcopy(model)
    ours = OPTIMIZERS[name](param_groups(other, 0.1), keys)
    load_state(ours, copy.deepcopy(theirs.state_dict()))
    step(model, theirs)
    step(other, ours)
    for (n, a), b in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(a, b), n


def test_merge():
    """The authors' code for WSD: warm-up to r·L at L's slope, r·L until a third of the run, in a line to L at two thirds, and in
    a line to L/10 at the end."""
    L, r, T, warmup = 0.6, 4.0, 300, 9

    def rate(it, ratio=r):
        return lr_at(it, 'wsd', L, L / 10, warmup, T, 1 / 3, ratio, 'merge')

    slope = L / (warmup + 1)
    assert rate(0) == pytest.approx(slope) and rate(20) == pytest.approx(21 * slope)
    assert rate(60) == rate(99) == pytest.approx(r * L)
    assert rate(100) == pytest.approx(r * L) and rate(150) == pytest.approx((r * L + L) / 2) and rate(200) == pytest.approx(L)
    assert rate(250) == pytest.approx((L + L / 10) / 2) and rate(300) == pytest.approx(L / 10)
    for it in range(T):
        assert rate(it, 1.0) == pytest.approx(lr_at(it, 'wsd', L, L / 10, warmup, T, 1 / 3))
