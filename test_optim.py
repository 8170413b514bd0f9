"""
optim.py: the optimizers against their definitions in plain float64 lines, the partition of a model's parameters, and
the schedules against values worked out by hand.
"""
import math
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from model import GPT, GPTConfig
from optim import SCHEDULES, SGDW, lr_at, param_groups

torch.set_num_threads(1)            # tensors this small gain nothing from more

ROOT = Path(__file__).resolve().parent
ARCHS = sorted(path.stem for path in (ROOT / 'config' / 'arch').glob('*.py'))


def small_gpt(arch, dtype=torch.float32, **more):
    """A GPT of this fragment of config/arch, small, with weights that are a function of nothing but the fragment."""
    names = {f.name for f in fields(GPTConfig)}
    fragment = runpy.run_path(ROOT / 'config' / 'arch' / f'{arch}.py')
    choices = {key: value for key, value in fragment.items() if key in names}
    torch.manual_seed(0)
    config = GPTConfig(**{**choices, **dict(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8), **more})
    return GPT(config).to(dtype)


def backward(model, step):
    """Gradients of the model's loss on a batch of its own for each step."""
    idx = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    model(idx[:, :-1], idx[:, 1:])[1].backward()


def rate(step):
    return 0.3 / (1 + step) + 0.05


# ----------------------------------------------------------------------------- SGDW

@pytest.mark.parametrize('arch, bias', [('pre', True), ('s5', False), ('llama', False)])
def test_sgdw_is_its_definition(arch, bias):
    """w ← (1 − lr λ) w, m ← μ m + g, w ← w − lr m over 20 steps of changing lr, in float64, decayed or not"""
    model = small_gpt(arch, torch.float64, bias=bias)
    optimizer = SGDW(param_groups(model, weight_decay=0.1), lr=1.0, momentum=0.9)
    theirs = {name: p.detach().clone() for name, p in model.named_parameters()}
    momenta = {}
    assert {len(p.shape) >= 2 for p in theirs.values()} == {True, False}
    for step in range(20):
        backward(model, step)
        for group in optimizer.param_groups:
            group['lr'] = rate(step)
        for name, p in model.named_parameters():
            if p.dim() >= 2:
                theirs[name] = theirs[name] * (1 - rate(step) * 0.1)
            momenta[name] = p.grad.clone() if step == 0 else 0.9 * momenta[name] + p.grad
            theirs[name] = theirs[name] - rate(step) * momenta[name]
        optimizer.step()
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), theirs[name], rtol=1e-12, atol=1e-13)


def test_sgdw_is_not_the_coupled_decay_of_sgd():
    """torch's SGD puts the decay into the momentum: the same on the first step from m = 0, and another after it"""
    models = [small_gpt('s5', torch.float64) for _ in range(2)]
    ours = SGDW(param_groups(models[0], 0.5), lr=0.1, momentum=0.9)
    torchs = torch.optim.SGD(param_groups(models[1], 0.5), lr=0.1, momentum=0.9)
    gaps = []
    for step in range(3):
        for model, optimizer in zip(models, (ours, torchs)):
            backward(model, step)
            optimizer.step()
        gaps.append((models[0].h[0].attn.wq.weight - models[1].h[0].attn.wq.weight).abs().max().item())
    assert gaps[0] < 1e-14 and gaps[1] > 1e-3 and gaps[2] > gaps[1]


def test_sgdw_decays_before_it_steps():
    """With the decay after the step, one step from w = 1 with g = 1 would give (1 − 0.5)(1 − 0.5) = 0.25"""
    w = torch.nn.Parameter(torch.ones(1, 1))
    w.grad = torch.ones(1, 1)
    SGDW([w], lr=0.5, momentum=0.9, weight_decay=1.0).step()
    assert w.item() == 0.0


def test_sgdw_leaves_alone_what_has_no_gradient():
    """A parameter without a gradient neither decays nor moves on by its momentum, as in torch's optimizers"""
    used, unused = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = SGDW([used, unused], lr=0.1, weight_decay=0.1)
    used.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2, 2)) and not torch.equal(used, torch.ones(2, 2))


def test_sgdw_returns_the_closures_loss():
    w = torch.nn.Parameter(torch.ones(1))

    def closure():
        loss = (3 * w).sum()
        loss.backward()
        return loss

    assert SGDW([w], lr=0.1).step(closure).item() == 3.0
    assert w.item() == pytest.approx(0.7)


def test_sgdw_holds_one_buffer_per_parameter():
    """The memory that it saves beside AdamW is the reason to train with it"""
    model = small_gpt('s5')
    optimizer = SGDW(param_groups(model, 0.1), lr=0.1)
    for step in range(2):
        backward(model, step)
        optimizer.step()
    assert set(optimizer.state) == set(model.parameters())
    for p, state in optimizer.state.items():
        assert [value.shape for value in state.values()] == [p.shape]


@pytest.mark.parametrize('make', [SGDW, lambda groups, lr: torch.optim.AdamW(groups, lr, fused=True)],
                         ids=['sgdw', 'adamw'])
def test_state_dict_continues_exactly(make, tmp_path):
    """Four steps, a checkpoint through a file, and four more are eight steps, to the last bit"""
    def train(model, optimizer, steps):
        for step in steps:
            backward(model, step)
            for group in optimizer.param_groups:
                group['lr'] = rate(step) * group['lr_ratio']
            optimizer.step()

    straight = small_gpt('s5')
    train(straight, make(param_groups(straight, 0.1, {'ffn': 0.5}), lr=0.1), range(8))
    first = small_gpt('s5')
    optimizer = make(param_groups(first, 0.1, {'ffn': 0.5}), lr=0.1)
    train(first, optimizer, range(4))
    torch.save((first.state_dict(), optimizer.state_dict()), tmp_path / 'state.pt')
    second = small_gpt('s5')
    optimizer = make(param_groups(second, 0.1, {'ffn': 0.5}), lr=0.1)
    for target, state in zip((second, optimizer), torch.load(tmp_path / 'state.pt', weights_only=True)):
        target.load_state_dict(state)
    train(second, optimizer, range(4, 8))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters()))


@pytest.mark.parametrize('wrong', [dict(lr=-0.1), dict(lr=0.1, momentum=1.0), dict(lr=0.1, momentum=-0.1),
                                   dict(lr=0.1, weight_decay=-1.0)])
def test_sgdw_refuses(wrong):
    name = list(wrong)[-1]
    with pytest.raises(ValueError, match=f'{name}={wrong[name]}'):
        SGDW([torch.nn.Parameter(torch.ones(1))], **wrong)


# ----------------------------------------------------------------------------- groups

def kind_of(name):
    """The block type of a parameter, by the papers: a second opinion on model.block_type."""
    parts = name.split('.')
    if any(part.endswith('_norm') for part in parts):
        return 'norm'
    return {'wte': 'emb', 'wpe': 'emb', 'lm_head': 'head', 'wq': 'qk', 'wk': 'qk', 'wv': 'vo', 'wo': 'vo',
            'w1': 'ffn', 'w2': 'ffn', 'w3': 'ffn'}[parts[-2]]


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('arch', ARCHS)
def test_groups_hold_every_parameter_once(arch, bias):
    """A parameter that is in no group is never trained; one that is in two is trained twice"""
    model = small_gpt(arch, bias=bias)
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.3), lr=0.1)
    groups = optimizer.param_groups
    held = [(name, p, group) for group in groups for name, p in zip(group['param_names'], group['params'])]
    assert sorted(name for name, _, _ in held) == sorted(named)
    assert len({(group['block_type'], group['weight_decay']) for group in groups}) == len(groups)
    for name, p, group in held:
        assert p is named[name]
        assert group['block_type'] == kind_of(name)
        assert group['weight_decay'] == (0.3 if p.dim() == 2 else 0.0)
        assert group['lr_ratio'] == 1.0


@pytest.mark.parametrize('make', [torch.optim.AdamW, SGDW], ids=['adamw', 'sgdw'])
def test_ratios_set_the_rate_of_each_block_type(make):
    """Blockwise LR: with lr × lr_ratio, a type of ratio 0 stays, and the others move as they do alone"""
    ratios = {'emb': 10.0, 'qk': 0.0, 'ffn': 6.0, 'vo': 4.0}
    model = small_gpt('llama', torch.float64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make(param_groups(model, 0.0, ratios), lr=1.0)
    for group in optimizer.param_groups:
        assert group['lr_ratio'] == ratios.get(group['block_type'], 1.0)
        group['lr'] = 1e-3 * group['lr_ratio']
    backward(model, 0)
    optimizer.step()
    for name, p in model.named_parameters():
        moved, ratio = (p.detach() - before[name]).abs().max().item(), ratios.get(kind_of(name), 1.0)
        size = 1.0 if make is torch.optim.AdamW else p.grad.abs().max().item()      # Adam's first step is lr · sign(g)
        assert moved == pytest.approx(1e-3 * ratio * size, rel=1e-3, abs=1e-12), name


def test_a_parameter_of_no_block_type_is_an_error():
    """A new module must be given a block type: silence would leave it out of Blockwise LR and of every measurement"""
    model = small_gpt('pre')
    model.h[0].adapter = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r'h\.0\.adapter\.weight'):
        param_groups(model, 0.1)


# ----------------------------------------------------------------------------- schedules

HALF, EIGHTH = math.cos(math.pi / 4), math.cos(math.pi / 8)


@pytest.mark.parametrize('schedule, wanted', [
    # rates for learning_rate 1, min_lr 0.2, of iterations 4, 5, 6, 8, 12 and beyond, where decay runs from 4 to 12
    ('cosine', [1.0, 0.6 + 0.4 * EIGHTH, 0.6 + 0.4 * HALF, 0.6, 0.2, 0.2]),
    ('linear', [1.0, 0.9, 0.8, 0.6, 0.2, 0.2]),
    ('constant', [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
])
@pytest.mark.parametrize('warmup', [4, 0])
def test_schedule_by_hand(schedule, wanted, warmup):
    """The same decay with warm-up before it and, moved to the left, without"""
    args = dict(schedule=schedule, learning_rate=1.0, min_lr=0.2, warmup_iters=warmup, lr_decay_iters=8 + warmup)
    assert [lr_at(it + warmup, **args) for it in (0, 1, 2, 4, 8, 1000)] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_warm_up(schedule):
    """Equal steps from nothing: the first iteration already learns, the peak comes right after the last"""
    args = dict(schedule=schedule, learning_rate=1.0, min_lr=0.5, warmup_iters=4, lr_decay_iters=20)
    assert [lr_at(it, **args) for it in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], rel=1e-12)


@pytest.mark.parametrize('warmup', [0, 1, 7])
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_schedule_rises_and_then_falls(schedule, warmup):
    """Between its ends and never beyond them"""
    args = dict(schedule=schedule, learning_rate=0.3, min_lr=0.01, warmup_iters=warmup, lr_decay_iters=50)
    rates = [lr_at(it, **args) for it in range(80)]
    assert all(a < b for a, b in zip(rates[:warmup], rates[1:warmup + 1]))
    assert all(a >= b for a, b in zip(rates[warmup:], rates[warmup + 1:]))
    assert rates[warmup] == max(rates) == pytest.approx(0.3)
    assert min(rates[warmup:]) >= 0.01 - 1e-15


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('warmup, decay', [(10, 10), (10, 4), (0, 0)])
def test_schedule_without_room_for_a_decay(schedule, warmup, decay):
    """A run of nothing but warm-up, as a quick test is one, divides by nothing and stays finite"""
    args = dict(schedule=schedule, learning_rate=1.0, min_lr=0.1, warmup_iters=warmup, lr_decay_iters=decay)
    assert all(0.0 < lr_at(it, **args) <= 1.0 for it in range(20))
