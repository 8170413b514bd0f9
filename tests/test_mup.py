"""
muP and CompleteP: the factors of the papers' tables, written out for one model; that the base model is as without them; and that
activations move as far at every width and depth.
"""
from configurator import TRAIN, defaults_of

import copy
import math

import numpy as np
import pytest
import torch

from engine.keys import group_settings
from lab import coordinates
from model import GPT, GPTConfig
from optim import EPS, OPTIMIZERS, param_groups
from vision.vit import ViT, ViTConfig

KEYS = {**defaults_of(TRAIN, GPTConfig, ViTConfig), 'compile': False, 'dtype': torch.float32}
EVERY = dict(norm='dyt', bias=True, qk_norm=True, tie_weights=False, branch_gain='rezero', embedding_skip=True,
             attn_post_norm=True, ffn_post_norm=True)


def factors(network, **keys):
    """{parameter: (factor on its rate, rate times decay over the base's, factor on its ε)}"""
    groups = param_groups(network, **group_settings({**KEYS, 'weight_decay': 0.1, **keys}))
    return {name: (group['lr_scale'], group['lr_scale'] * group['weight_decay'] / 0.1, group.get('eps', EPS) / EPS)
            for group in groups for name, _ in group['params']}


# The base is 4 times as narrow, 3 times as shallow, and its heads are half as wide. The factors on the rates of these parameters:
PLACES = {
    'block matrix': ('h.0.attn.wq.weight', 'h.5.attn.wo.weight', 'h.5.ffn.w2.weight'),
    'block vector': ('h.0.attn.wq.bias', 'h.5.ffn.w1.bias', 'h.1.attn_pre_norm.weight', 'h.1.attn_pre_norm.bias'),
    'head vector': ('h.0.attn.q_norm.weight', 'h.5.attn.k_norm.weight'),
    'block number': ('h.0.attn_pre_norm.alpha', 'h.5.ffn_gain.weight'),
    'matrix': ('wte.weight', 'wpe.weight', 'lm_head.weight'),
    'vector': ('final_norm.weight', 'final_norm.bias'),
    'number': ('final_norm.alpha',),
    'vector of the stream': ('h.0.attn_post_norm.weight', 'h.5.ffn_post_norm.bias'),
    'number of the stream': ('h.5.attn_post_norm.alpha', 'h.2.x_gain', 'h.5.x0_gain'),
}
OF_STREAM = {'vector of the stream': 1 / 3, 'number of the stream': 1 / 3}
TABLE = {name: dict.fromkeys(PLACES, 1) | OF_STREAM | {'block matrix': factor} for name, factor in (
    ('adamw', 1 / 4), ('adam_mini', 1 / 4), ('lion', 1 / 4), ('muon', 1 / 2), ('original', 1))}         # Muon with Jordan's scale
TABLE['sgdw'] = dict(zip(PLACES, (3, 4 * 3, 2 * 3, 3, 4, 4, 1, 4 / 3, 1 / 3)))
OF_EPS = dict(zip(PLACES, (1 / 12, 1 / 12, 1 / 6, 1 / 3, 1 / 4, 1 / 4, 1, 1 / 4, 1)))


@pytest.mark.parametrize('optimizer', TABLE)
def test_rates_decay_and_epsilon_are_those_of_the_papers_tables(optimizer):
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=6, n_head=2, n_embd=32, **EVERY,
                          mup_base_width=8, mup_base_depth=2, mup_base_head_dim=8))
    with pytest.raises(ValueError, match='optimizer=nadam has no rates for it; add them to MUP_RATES in optim.py'):
        factors(model, optimizer='nadam')
    keys = dict(optimizer='muon', muon_scale='original') if optimizer == 'original' else dict(optimizer=optimizer)
    found = factors(model, tie_weights=False, **keys)
    for place, names in PLACES.items():
        for name in names:
            scale, decay, eps = found[name]
            assert scale == pytest.approx(TABLE[optimizer][place]) and eps == pytest.approx(OF_EPS[place]), name
            assert decay == pytest.approx(1 if place.endswith('matrix') else 0), name           # rate times decay stays


@pytest.mark.parametrize('init, tied', [
    ('gpt2', True), ('normal', False), ('xavier', False), ('xavier_trunc', True), ('stable', False)])
@torch.no_grad()
def test_starts_are_those_of_the_base_model(init, tied):
    """Over the root of the growth in width in blocks; as they are there in embeddings and head, whose outputs are divided"""
    base = dict(vocab_size=200, block_size=100, n_layer=2, n_head=2, n_embd=32, init=init, tie_weights=tied, emb_init='head',
                fused_qkv_init=True)
    torch.manual_seed(0)
    small = dict(GPT(GPTConfig(**base)).named_parameters())
    large = GPT(GPTConfig(**base | dict(n_embd=128, n_head=8, n_layer=6, mup_base_width=32, mup_base_head_dim=16,
                                        mup_base_depth=2)))
    for name, p in large.named_parameters():
        if p.dim() == 2:
            like = small[name if name in small else name.replace(name[:4], 'h.1.')]
            growth = 2 if name.startswith('h.') else 1
            assert p.std().item() * growth == pytest.approx(like.std().item(), rel=5 / math.sqrt(like.numel())), name
    x = torch.randn(3, 5, 128)
    torch.testing.assert_close(large.output(x)[0], large.final_norm(x) @ large.lm_head.weight.T / 4)


@torch.no_grad()
def test_the_patches_and_the_head_of_a_vit():
    """They start as in the base model; the head's inputs grow, its classes do not"""
    base = dict(n_layer=1, n_head=2, image_size=32, patch_size=16, classes=300, init='xavier', bias=True)
    small, large = ViT(ViTConfig(**base, n_embd=64)), ViT(ViTConfig(**base, n_embd=256, mup_base_width=64, mup_base_head_dim=32))
    for name in ('patch.weight', 'head.weight'):
        assert large.get_parameter(name).std().item() == pytest.approx(small.get_parameter(name).std().item(), rel=0.02)
    found, wanted = factors(large, model='vit', optimizer='sgdw'), {'head.weight': 4, 'head.bias': 1, 'patch.weight': 4,
                                                                    'patch.bias': 4, 'patch.cls.weight': 4}
    assert {name: found[name][0] for name in wanted} == wanted


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_the_base_model_is_as_without_mup(optimizer):
    """Its logits, and the factors of each parameter"""
    sizes = dict(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16, **EVERY)
    logits, settings = [], []
    for more in ({}, dict(mup_base_width=16, mup_base_depth=2, mup_base_head_dim=8)):
        torch.manual_seed(0)
        model = GPT(GPTConfig(**sizes, **more))
        logits.append(model(torch.arange(8)[None])[0])
        settings.append(factors(model, **sizes, optimizer=optimizer))
    assert torch.equal(*logits) and settings[0] == settings[1]


# ----------------------------------------------------------------------------- the coordinate check

class Windows:
    """Random tokens, in the place of a data set"""

    @staticmethod
    def shuffled(start, count, seed):
        idx = torch.randint(50, (count, 17), generator=torch.Generator().manual_seed(start + 10000 * seed))
        return idx[:, :-1], idx[:, 1:]


SIZES = dict(n_layer=2, n_head=1, n_embd=16, block_size=16, vocab_size=50, batch_size=4, grad_clip=0.0)
RATES = dict(adamw=3e-3, adam_mini=3e-3, lion=3e-4, sgdw=0.2, muon=1e-2)


def powers(monkeypatch, values, key='n_embd', **keys):
    """{activation: the power of the width, or of another key, with which its change grows}"""
    monkeypatch.setattr(coordinates, 'steps', 4)
    config, changes = {**KEYS, **SIZES, **keys}, {}
    for value in values:
        of_one = coordinates.resized(config, value) if key == 'n_embd' else {**config, key: value}
        of_seeds = [coordinates.moves(of_one, Windows, torch.device('cpu'), seed) for seed in (1, 2)]
        for name in of_seeds[0]:
            changes.setdefault(name, []).append(math.sqrt(sum(squares[name][-1] for squares in of_seeds)))
    return {name: np.polyfit(np.log(values), np.log(sizes), 1)[0] for name, sizes in changes.items()}


@pytest.mark.parametrize('optimizer', [pytest.param(name, marks=[pytest.mark.long] * (name not in ('adamw', 'sgdw')))
                                       for name in RATES])
def test_activations_move_as_far_at_every_width_and_depth(optimizer, monkeypatch):
    keys = dict(optimizer=optimizer, learning_rate=RATES[optimizer])
    with_mup = powers(monkeypatch, (32, 64, 128), mup_base_width=32, mup_base_head_dim=16, **keys)
    assert max(map(abs, with_mup.values())) < 0.4, with_mup
    if optimizer == 'adamw':
        assert max(map(abs, powers(monkeypatch, (32, 64, 128), **keys).values())) > 0.6
    keys['learning_rate'] /= 2
    with_mup = powers(monkeypatch, (2, 4, 12), 'n_layer', mup_base_depth=2, **keys)
    assert max(abs(with_mup[name]) for name in ('stream', 'logits')) < 0.25, with_mup


def test_the_check_is_its_definition(monkeypatch):
    """Two steps of plain gradient descent, by hand"""
    config = {**KEYS, **SIZES, 'optimizer': 'sgdw', 'momentum': 0.0, 'weight_decay': 0.0, 'learning_rate': 0.1}
    monkeypatch.setattr(coordinates, 'steps', 2)
    torch.manual_seed(5)
    model = GPT(GPTConfig(**{key: value for key, value in SIZES.items() if key in GPTConfig.__dataclass_fields__}))
    start, (x, _) = copy.deepcopy(model), Windows.shuffled(8, 4, 5)
    found = coordinates.moves(config, Windows, torch.device('cpu'), 5)
    for step in range(2):
        idx, targets = Windows.shuffled(4 * step, 4, 5)
        loss = model(idx, targets)[1]
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
            p.data -= 0.1 * g
        moved = [(a - b).square().mean().item() for a, b in ((model(x)[0], start(x)[0]), (model.hidden(x), start.hidden(x)))]
        assert [found['logits'][step], found['stream'][step]] == pytest.approx(moved, rel=1e-4)
