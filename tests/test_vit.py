"""
ViT against the float64 reference of test_model.py, and lab.measure on one.
"""
import itertools
import math
import random
from dataclasses import fields

import pytest
import torch

import test_model
from lab import measure as m
from lab.measure.gradients import diagonal_estimate, sampled_labels
from lab.measure.tools import mean_gradient
from model import GPTConfig, State, block_type
from test_model import close, random_config, reference_blocks, with_kernel
from vision.vit import DropPath, ViT, ViTConfig

torch.set_num_threads(1)            # tensors this small gain nothing from more

SIZES = dict(n_head=4, n_embd=16, dropout=0.0, drop_path=0.0, classes=5)
AXES = {name: values for name, values in test_model.AXES.items() if name not in ('tie_weights', 'emb_scale', 'emb_gain')} | dict(
    pool=('cls', 'mean', 'patches'), qkv_bias=(False, True), channels=(1, 3), image_size=(6, 12), patch_size=(2, 3))
RESIDUALS = itertools.cycle(AXES['residual'])            # of which few configs are valid
CONFIGS = [random_config(random.Random(seed), dict(residual=next(RESIDUALS)) if seed % 2 else {}, AXES) for seed in range(50)]


@torch.no_grad()
def build(mean=0.4, std=0.3, **config):
    """A small float64 model in which every weight, gain and bias is far from where it starts."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)              # its factors are exact then
    try:
        model = ViT(ViTConfig(**SIZES | dict(n_layer=2, image_size=6, patch_size=3) | config), mean, std).double()
    finally:
        torch.set_default_dtype(torch.float32)
    for p in model.parameters():
        p.add_(0.3 * torch.randn_like(p))
    return model


def images(config, count=3):
    rng = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, config.channels, config.image_size, config.image_size), generator=rng, dtype=torch.uint8)


def reference(c, w, x):
    """Logits of images (B, channels, S, S), patch by patch, under config c and weights w."""
    P, rows = c.patch_size, c.image_size // c.patch_size
    x = (x.double() / 255 - 0.4) / 0.3
    tokens = [w['patch.cls.weight'].expand(len(x), -1)] if c.pool != 'mean' else []
    for i in range(rows):
        for j in range(rows):
            patch = x[:, :, i * P:(i + 1) * P, j * P:(j + 1) * P].reshape(len(x), -1)
            tokens.append(patch @ w['patch.weight'].T + (w['patch.bias'] if c.bias else 0))
    x = torch.stack(tokens, 1) + (w['wpe.weight'] if c.pos == 'learned' else 0)
    pool = (lambda x: x[:, 0]) if c.pool == 'cls' else (lambda x: x[:, -rows * rows:].mean(1))
    x = reference_blocks(c, w, x, lambda logits: logits.softmax(-1), pool)
    return x @ w['head.weight'].T + (w['head.bias'] if c.bias else 0)


def test_every_field_is_tried():
    new = {f.name for f in fields(ViTConfig)} - set(SIZES) - set(AXES) - {f.name for f in fields(GPTConfig)}
    assert not new, f'the reference does not know {new}: add it there, and its values to AXES'
    assert all(any(config[axis] == value for config in CONFIGS) for axis, values in AXES.items() for value in values)


@pytest.mark.parametrize('config, fused', [(config, i % 2 == 0) for i, config in enumerate(CONFIGS)])
def test_logits_loss_and_gradients_equal_the_reference(config, fused):
    model = with_kernel(build(**config), fused)
    model.recompute = not fused
    x, targets = images(model.config), torch.tensor([4, 0, 2])
    assert model.patch(x).size(1) == model.config.block_size
    w = {name: p.detach().clone().requires_grad_() for name, p in model.state_dict().items()}
    expected = reference(model.config, w, x)
    expected_loss = -sum(expected.log_softmax(-1)[range(3), targets]) / 3
    close(model(x)[0], expected, 1e-5)                                       # RoPE's tables are fp32
    logits, loss = model(x, targets)
    close(loss, expected_loss, 1e-5)
    assert logits is None                                               # in training mode
    soft = torch.nn.functional.one_hot(targets, 5).double() * 0.7 + torch.tensor([0.3, 0, 0, 0, 0])
    close(model(x, soft)[1], -(soft * expected.log_softmax(-1)).sum() / 3, 1e-5)
    loss.backward()
    expected_loss.backward()
    for name, p in model.named_parameters():                            # each beside its own largest entry
        size = w[name].grad.abs().max() + 1e-6
        close(p.grad / size, w[name].grad / size, 1e-4)                  # factors are fp32, and sums may nearly cancel


def test_no_mask():
    """The last patch has its say in all that the first one becomes"""
    model = build(pool='mean')
    x, changed = images(model.config), images(model.config)
    changed[:, :, -1, -1] = 255 - changed[:, :, -1, -1]
    assert ((model.hidden(x) - model.hidden(changed)).abs().amax(-1) > 1e-6).all()
    with torch.no_grad():
        model.wpe.weight.zero_()
    close(model(x.roll(3, -1))[0], model(x)[0], 1e-12)                  # without positions the order of patches is nothing


def test_stochastic_depth_is_linear_in_depth_and_per_sample():
    """A dropped block is the identity, and evaluation drops nothing"""
    model = build(n_layer=5, drop_path=0.4)
    for block, rate in zip(model.h, (0.0, 0.1, 0.2, 0.3, 0.4)):
        for gain in block.attn_gain, block.ffn_gain:
            assert (1 - gain.keep.item() if isinstance(gain, DropPath) else 0.0) == pytest.approx(rate)
    kept = model.h[4].attn_gain(torch.ones(10000, 2, 3))
    assert sorted(set(kept[:, 0, 0].tolist())) == pytest.approx([0.0, 1 / 0.6]) and (kept == kept[:, :1, :1]).all()
    assert abs((kept[:, 0, 0] == 0).double().mean() - 0.4) < 0.025      # five standard errors
    states = torch.randn(64, 5, 16).double()
    assert 1 <= (model.h[4](State(states)) == states).flatten(1).all(1).sum() <= 24     # both dropped: 0.16 of them
    x = images(model.config, 64)
    close(model.eval()(x)[0], build(n_layer=5)(x)[0], 1e-12)


def test_block_types():
    kinds = {name: block_type(name, ViTConfig.params) for name, _ in build(bias=True).named_parameters()}
    of = {wanted: {name for name, kind in kinds.items() if kind == wanted} for wanted in ('emb', 'pos', 'head')}
    assert of == dict(emb={'patch.weight', 'patch.bias', 'patch.cls.weight'}, pos={'wpe.weight'},
                      head={'head.weight', 'head.bias'})
    assert set(kinds.values()) == {'emb', 'pos', 'head', 'qk', 'vo', 'ffn', 'norm'}


def test_flops_by_hand():
    with torch.device('meta'):
        model = ViT(ViTConfig(bias=True))
    d, tokens = 768, 197
    block = 12 * d * d + 13 * d                                         # with 9 biases and 2 LayerNorms, of two vectors each
    a_token = 12 * block + 3 * 256 * d + d + d + 2 * d                  # patch embedding, its bias, class token, last norm
    head = 1000 * d + 1000
    assert model.num_params() == a_token + tokens * d + head == 86_567_656                      # timm's vit_base_patch16_224
    assert model.flops_per_image() == tokens * (6 * a_token + 12 * 12 * d * tokens) + 6 * head


def batches(model, count=2):
    x = images(model.config, 3 * count)
    return [(x[i:i + 3], torch.tensor([4, 0, 2])) for i in range(0, 3 * count, 3)]


def test_gradients_and_sharpness_are_per_image():
    """The gradient of the mean loss over images; N is the number of images, and each draws one label"""
    model, drawn = build().eval(), []
    data, rng = batches(model), torch.Generator().manual_seed(0)
    found = mean_gradient(model, data)
    wanted = torch.autograd.grad(sum(model(x, y)[1] for x, y in data) / 2, list(model.parameters()))
    for name, g in zip(found, wanted, strict=True):
        close(found[name], g, 1e-12)

    def labels(logits):
        drawn.append(sampled_labels(rng)(logits))
        return drawn[-1]

    g = mean_gradient(model, data, labels)
    assert [y.shape for y in drawn] == [(3,), (3,)]
    close(diagonal_estimate(model, data, torch.Generator().manual_seed(0))['patch.weight'], 6 * g['patch.weight'].square(), 1e-12)
    assert set(m.sharpness(model, data, rng)) == {block_type(name, ViTConfig.params) for name in found}


def test_attention_without_a_mask():
    model = build(n_layer=1).eval()
    (x, _), = data = batches(model, 1)
    block = model.h[0]
    states = model.patch(x) + model.wpe.weight
    q, k = block.attn.queries_keys(block.attn_pre_norm(states))
    logits = torch.einsum('bqhe,bkhe->bhqk', q, k) / 2
    found = m.attention(model, data, None)
    close(torch.tensor(found['max_logit'][0]), logits.amax((0, 2, 3)).float(), 1e-5)
    p = logits.softmax(-1)
    close(torch.tensor(found['entropy'][0]), (-(p * p.log()).sum(-1).mean((0, 2)) / math.log(logits.size(-1))).float(), 1e-5)
