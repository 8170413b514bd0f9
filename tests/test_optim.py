"""
optim.py: the optimizers against their definitions in plain float64 lines, the partition of a model's parameters, and
the schedules against values worked out by hand.
"""
from configurator import TRAIN, defaults_of, read_config

import math
import re
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from helpers import ROOT

from model import GPT, GPTConfig
from optim import CHANGES, OPTIMIZERS, SCHEDULES, AdamMini, lr_at, make_optimizer, param_groups

ARCHS = sorted(path.stem for path in (ROOT / 'config' / 'arch').glob('*.py'))
BETA1, BETA2, MOMENTUM = 0.8, 0.95, 0.7             # no defaults, so that they must be passed on
KEYS = {**defaults_of(TRAIN, GPTConfig), **dict(learning_rate=0.1, beta1=BETA1, beta2=BETA2, momentum=MOMENTUM, compile=False,
                                               n_embd=8, n_head=2)}


def small_gpt(arch, dtype=torch.float32, **more):
    """A GPT of this fragment of config/arch, small, with weights that are a function of nothing but the fragment."""
    names = {f.name for f in fields(GPTConfig)}
    fragment = read_config(str(ROOT / 'config' / 'arch' / f'{arch}.py'), {'model': 'gpt'})
    choices = {key: value for key, value in fragment.items() if key in names}
    torch.manual_seed(0)
    config = GPTConfig(**{**choices, **dict(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8), **more})
    return GPT(config).to(dtype)


def make(name, model, weight_decay=0.1, ratios={}, **keys):
    """The optimizer as train.py makes it."""
    return OPTIMIZERS[name](param_groups(model, weight_decay, ratios), {**KEYS, **vars(model.config), **keys})


def backward(model, step):
    """Gradients of the model's loss on a batch of its own for each step."""
    idx = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(step)) % model.config.vocab_size
    model.zero_grad()
    loss = model(idx[:, :-1], idx[:, 1:])[1]
    loss.backward()
    return loss


def rate(step):
    return 0.3 / (1 + step) + 0.05


def set_rate(optimizer, step):
    for group in optimizer.param_groups:
        group['lr'] = rate(step) * group['lr_ratio']


# ----------------------------------------------------------------------------- the optimizers as their papers state them
# (w, g, s, lr, decay, name, head_dim) → w after one step, s being what the optimizer remembers of this parameter

def sgdw(w, g, s, lr, decay, name, head_dim):
    s['m'] = MOMENTUM * s['m'] + g if s else g
    return (1 - lr * decay) * w - lr * s['m']


def lion(w, g, s, lr, decay, name, head_dim):
    m = s.get('m', 0)
    s['m'] = BETA2 * m + (1 - BETA2) * g
    return (1 - lr * decay) * w - lr * torch.sign(BETA1 * m + (1 - BETA1) * g)


def normuon(w, g, s, lr, decay, name, head_dim):
    if not orthogonalized(name):
        return adamw(w, g, s, lr, decay, name, head_dim)
    s['m'] = MOMENTUM * s.get('m', 0) + g
    u = quintic(g + MOMENTUM * s['m'])
    s['v'] = BETA2 * s.get('v', 0) + (1 - BETA2) * u.square().mean(1, keepdim=True)
    u = u / (s['v'].sqrt() + 1e-8)
    return (1 - lr * decay) * w - lr * 0.2 * math.sqrt(w.numel()) * u / u.norm()        # as large as 0.2 in each element


def cautious(step):
    """The optimizer `step` that decays a weight only where its update has its sign"""
    def changed(w, g, s, lr, decay, name, head_dim):
        undecayed = step(w, g, s, lr, 0.0, name, head_dim)
        return undecayed - lr * decay * torch.where((w - undecayed) * w >= 0, w, 0.0)

    return changed


def on_a_ball(step):
    """The optimizer `step` whose matrices of blocks keep their norm R: R N(w − lr·R·N(u))"""
    def changed(w, g, s, lr, decay, name, head_dim):
        if not orthogonalized(name):
            return step(w, g, s, lr, decay, name, head_dim)
        radius = s.setdefault('radius', w.norm())
        u = w - step(w, g, s.setdefault('own', {}), lr, 0.0, name, head_dim)
        moved = w - lr * radius * u / u.norm()
        return radius * moved / moved.norm()

    return changed


def adamw(w, g, s, lr, decay, name, head_dim, square=lambda g, name, head_dim: g * g):
    t = s['t'] = s.get('t', 0) + 1
    s['m'] = BETA1 * s.get('m', 0) + (1 - BETA1) * g
    s['v'] = BETA2 * s.get('v', 0) + (1 - BETA2) * square(g, name, head_dim)
    m, v = s['m'] / (1 - BETA1 ** t), s['v'] / (1 - BETA2 ** t)
    return (1 - lr * decay) * w - lr * m / (torch.sqrt(v) + 1e-8)


def adam_mini(w, g, s, lr, decay, name, head_dim):
    return adamw(w, g, s, lr, decay, name, head_dim, mean_square)


def muon(w, g, s, lr, decay, name, head_dim):
    if not orthogonalized(name):
        return adamw(w, g, s, lr, decay, name, head_dim)
    s['m'] = MOMENTUM * s.get('m', 0) + g
    return (1 - lr * decay) * w - lr * 0.2 * max(w.shape) ** 0.5 * quintic(g + MOMENTUM * s['m'])


def orthogonalized(name):
    """Whether a parameter is a matrix of a block"""
    return re.search(r'^h\..*\.w.\.weight|norm\.(down|up)\.', name) is not None


def quintic(u):
    """U p(p(p(p(p(S))))) Vᵀ for the SVD of u / ‖u‖"""
    left, sigma, right = torch.linalg.svd(u / (u.square().sum().sqrt() + 1e-7), full_matrices=False)
    for _ in range(5):
        sigma = 3.4445 * sigma - 4.7750 * sigma ** 3 + 2.0315 * sigma ** 5
    return left * sigma @ right


def mean_square(g, name, head_dim):
    """g², each element replaced by the mean over its block."""
    g2, module = g * g, name.split('.')[-2]
    if name.endswith('.bias'):
        return g2
    if module.endswith('_norm') or module == 'wpe':
        return torch.full_like(g2, g2.mean())
    rows = head_dim if module in ('wq', 'wk') else 1
    for first in range(0, len(g2), rows):
        g2[first:first + rows] = g2[first:first + rows].mean()
    return g2


# Those of the repository; what must hold for an optimizer that you add too is tested over OPTIMIZERS
DEFINITIONS = {'adamw': adamw, 'sgdw': sgdw, 'lion': lion, 'adam_mini': adam_mini, 'muon': muon, 'normuon': normuon}
CHANGED = {**{(name, 'cautious_decay'): cautious(step) for name, step in DEFINITIONS.items()},
           **{(name, 'hyperball'): on_a_ball(step) for name, step in DEFINITIONS.items()}}


@pytest.fixture
def in_float64():
    """So that optimizers of PyTorch keep their numbers in it too"""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize('arch, more', [('pre', dict(bias=True)), ('pre', dict(bias=True, tie_weights=False)), ('s5', {}),
                                        ('stable', dict(n_kv_head=1)), ('gatednorm', dict(n_kv_head=2))],
                         ids=['pre-bias', 'pre-untied', 's5', 'stable-gqa', 'gatednorm-gqa'])
@pytest.mark.parametrize('name', DEFINITIONS)
def test_optimizer_is_its_definition(name, arch, more, in_float64):
    """12 steps of changing lr in float64, decayed or not; a parameter without a gradient stays as it is, memory and all"""
    check_definition(name, DEFINITIONS[name], arch, more)


@pytest.mark.parametrize('name, key', CHANGED)
def test_a_changed_step_is_its_definition(name, key, in_float64):
    check_definition(name, CHANGED[name, key], 'gatednorm', dict(n_kv_head=2), **{key: True})


def check_definition(name, definition, arch, more, **keys):
    model = small_gpt(arch, torch.float64, **{**dict(n_embd=24, n_head=4, d_ff=10), **more})
    optimizer = make(name, model, **keys)
    theirs = {key: p.detach().clone() for key, p in model.named_parameters()}
    memory = {key: {} for key in theirs}
    assert {p.dim() for p in theirs.values()} == {1, 2}
    for step in range(12):
        backward(model, step)
        set_rate(optimizer, step)
        if step in (0, 7):                              # so that parameters count their steps differently
            model.h[0].attn.wq.weight.grad = model.final_norm.weight.grad = None
            for p in (p for block in model.h for p in block.ffn.parameters() if step == 7):             # a whole group
                p.grad = None
        for key, p in model.named_parameters():
            if p.grad is not None:
                decay = 0.1 if p.dim() == 2 else 0.0
                theirs[key] = definition(theirs[key], p.grad, memory[key], rate(step), decay, key, 6)
        optimizer.step()
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), theirs[key], rtol=1e-11, atol=1e-12, msg=lambda text: f'{key}: {text}')


# ----------------------------------------------------------------------------- what holds for each of them


@pytest.mark.parametrize('name, low, high', [('adamw', 8, 8.01), ('sgdw', 4, 4), ('lion', 4, 4), ('adam_mini', 4, 4.1),
                                             ('muon', 4.54, 4.55), ('normuon', 4.54, 4.6)])
def test_bytes_of_state_per_parameter(name, low, high):
    """The memory that they save beside AdamW is the reason to train with them"""
    model = small_gpt('llama', n_embd=128, n_head=4, n_kv_head=2, vocab_size=300, block_size=32)
    optimizer = make(name, model)
    for step in range(2):
        backward(model, step)
        optimizer.step()
    assert set(optimizer.state) == set(model.parameters())
    tensors = [x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
    assert low <= sum(x.numel() * x.element_size() for x in tensors) / model.num_params() <= high


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_in_a_notebook(name):
    """The model's sizes and a learning rate are enough; all other keys have train.py's defaults"""
    model, other = small_gpt('s5'), small_gpt('s5')
    few = OPTIMIZERS[name](param_groups(model, 0.1), dict(learning_rate=0.1, n_embd=8, n_head=2))
    every = OPTIMIZERS[name](param_groups(other, 0.1), {**defaults_of(TRAIN, GPTConfig), **dict(
        learning_rate=0.1, compile=False, n_embd=8, n_head=2)})
    for step in range(2):
        for network, optimizer in ((model, few), (other, every)):
            backward(network, step)
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize('key', CHANGES)
def test_a_change_that_an_optimizer_does_not_know_is_refused(key, monkeypatch):
    """It would be passed over in silence; so would one on a matrix that stays at 0, or whose rate muP scales"""
    model = small_gpt('s5')
    monkeypatch.setitem(OPTIMIZERS, 'nadam', lambda groups, c: torch.optim.NAdam(groups, c['learning_rate']))
    with pytest.raises(ValueError, match=f'{key}=True: optimizer=nadam does not know it'):
        make_optimizer(param_groups(model, 0.1), {**KEYS, 'optimizer': 'nadam', key: True})
    make_optimizer(param_groups(model, 0.1), {**KEYS, 'optimizer': 'adamw', key: True})
    if key == 'hyperball':
        optimizer = make('sgdw', model, hyperball=True)
        torch.nn.init.zeros_(model.h[0].attn.wo.weight)
        backward(model, 0)
        with pytest.raises(ValueError, match='starts at 0 and would stay there'):
            optimizer.step()
        with pytest.raises(ValueError, match='muP does not scale'):
            param_groups(small_gpt('pre', mup_base_width=4, mup_base_head_dim=2), 0.1, keys={**KEYS, 'hyperball': True})


@pytest.mark.parametrize('arch', ARCHS)
def test_every_parameter_is_in_one_group_and_moves(arch):
    """One that is in no group is never trained; one that is in two is trained twice. The step is under bf16 autocast"""
    model = small_gpt(arch, bias=True)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for key, p in named.items():
            if key.endswith(('_gain.weight', '.beta', '.wa', '.wb', '_residual.w', '.x0_gain', '.query')):     # which start at 0
                p.copy_(0.5 + torch.rand_like(p))
    before = {name: p.detach().clone() for name, p in named.items()}
    optimizer = make('adamw', model, weight_decay=0.3, learning_rate=1e3)
    held = [(name, p, group) for group in optimizer.param_groups for name, p in zip(group['param_names'], group['params'])]
    assert sorted(name for name, _, _ in held) == sorted(named)
    assert len({(group['block_type'], group['weight_decay']) for group in optimizer.param_groups}) == len(optimizer.param_groups)
    for name, p, group in held:
        assert p is named[name] and group['block_type'] == kind_of(name) and group['lr_ratio'] == 1.0
        assert group['weight_decay'] == (0.3 if p.dim() == 2 and kind_of(name) not in ('gain', 'norm') else 0.0)
    for group in optimizer.param_groups:
        group['weight_decay'] = 0.0
    with torch.autocast('cpu', torch.bfloat16):
        backward(model, 0)
    optimizer.step()                                    # LN Off has gradients of 1e-11 at W_q
    for name, p in named.items():
        only_one = arch == 'attnres' and name.startswith('h.0.attn_residual.')      # its first branch reads the mean of one
        assert torch.isfinite(p).all() and torch.equal(p, before[name]) == only_one, name


# ----------------------------------------------------------------------------- groups

def kind_of(name):
    """The block type of a parameter, by the papers: a second opinion on model.block_type."""
    parts = name.split('.')
    if 'norm.down' in name or 'norm.up' in name or parts[-1] in ('w', 'wa', 'wb'):        # of GatedNorm, hyper-connections, mHC
        return 'mix'
    if any(part.endswith('norm') for part in parts):
        return 'norm'
    if parts[-1].endswith('_gain') or any(part.endswith(('_gain', '_residual')) for part in parts):
        return 'gain'
    return {'wte': 'emb', 'wpe': 'pos', 'lm_head': 'head', 'wq': 'qk', 'wk': 'qk', 'wv': 'vo', 'wo': 'vo', 'wg': 'vo',
            'w1': 'ffn', 'w2': 'ffn', 'w3': 'ffn'}[parts[-2]]


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_ratios_set_the_rate_of_each_block_type(name):
    """Blockwise LR: with lr × lr_ratio, a type of ratio 0 stays, and the others move that much further in the first step"""
    ratios = {'emb': 10.0, 'qk': 0.0, 'ffn': 6.0, 'vo': 4.0}
    moved = []
    for given in ({}, ratios):
        model = small_gpt('llama', torch.float64)
        before = {key: p.detach().clone() for key, p in model.named_parameters()}
        optimizer = make(name, model, weight_decay=0.0, ratios=given)
        for group in optimizer.param_groups:
            assert group['lr_ratio'] == given.get(group['block_type'], 1.0)
        set_rate(optimizer, 0)
        backward(model, 0)
        optimizer.step()
        moved.append({key: p.detach() - before[key] for key, p in model.named_parameters()})
    for key in before:
        torch.testing.assert_close(moved[1][key], ratios.get(kind_of(key), 1.0) * moved[0][key], rtol=1e-9, atol=1e-14)
        assert moved[0][key].any(), key


def test_what_has_no_block_type_is_an_error():
    """Silence would leave a new module out of Blockwise LR and of every measurement, and Adam-mini would guess its blocks"""
    model, matrix = small_gpt('pre'), torch.nn.Parameter(torch.ones(9, 8))
    with pytest.raises(ValueError, match="'attn' is no block type: choose among emb, .*qk"):
        param_groups(model, 0.1, {'attn': 2.0})
    model.h[0].adapter = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r'h\.0\.adapter\.weight'):
        param_groups(model, 0.1)
    named = [dict(params=[('h.0.attn.wq.weight', matrix)], block_type='qk')]
    for params, says in ([matrix], 'param_groups'), (named, 'head_dim'):
        with pytest.raises(ValueError, match=says):     # W_q and W_k have one second moment per head
            AdamMini(params, lr=0.1, head_dim=4)


# ----------------------------------------------------------------------------- schedules

def scheduled(it, schedule, ratio=1.0, blockwise='ramp', **keys):
    """Return lr_at of these keys."""
    return lr_at(it, dict(schedule=schedule, blockwise=blockwise, **keys), ratio)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_warm_up(schedule):
    """Equal steps from nothing: the first iteration already learns, the peak comes right after the last. A run of nothing but
    warm-up stays finite"""
    args = dict(schedule=schedule, learning_rate=1.0, min_lr=0.1, decay_frac=0.5, max_iters=20)
    found = [scheduled(it, warmup_iters=4, lr_decay_iters=20, **args) for it in range(5)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], rel=1e-12)
    for warmup, decay in (10, 10), (10, 4), (0, 0):
        assert all(0.0 < scheduled(it, warmup_iters=warmup, lr_decay_iters=decay, **args) <= 1.0 for it in range(20))


@pytest.mark.parametrize('warmup, lr_decay_iters, decay_frac, min_lr, wanted', [
    (4, 30, 1 / 3, 0.0, {3: 0.8, 4: 1, 12: 1, 20: 1, 21: 0.9, 25: 0.5, 29: 0.1, 30: 0, 1000: 0}),       # the paper's
    (0, 30, 1 / 3, 0.0, {0: 1, 12: 1, 20: 1, 21: 0.9, 25: 0.5, 29: 0.1, 30: 0, 1000: 0}),
    (4, 40, 0.2, 0.2, {3: 0.8, 4: 1, 32: 1, 33: 0.9, 36: 0.6, 40: 0.2, 1000: 0.2}),
    (4, 12, 1.0, 0.2, {3: 0.8, 4: 1, 5: 0.9, 8: 0.6, 12: 0.2, 1000: 0.2}),                              # linear
    (4, 12, 0.75, 0.2, {3: 0.8, 4: 1, 5: 0.9, 8: 0.6, 12: 0.2, 1000: 0.2}),       # it would fall from iteration 3
    (4, 12, 0.0, 0.2, {3: 0.8, 4: 1, 11: 1, 13: 0.2}),
])
def test_wsd_by_hand(warmup, lr_decay_iters, decay_frac, min_lr, wanted):
    """Stable up to the last decay_frac of all iterations, warm-up included, and then a line down to min_lr"""
    keys = dict(learning_rate=1.0, min_lr=min_lr, warmup_iters=warmup, lr_decay_iters=lr_decay_iters, decay_frac=decay_frac)
    rates = {it: scheduled(it, 'wsd', **keys) for it in wanted}
    assert rates == pytest.approx(wanted, rel=1e-12, abs=1e-12)


# ----------------------------------------------------------------------------- Blockwise LR

RUN = dict(learning_rate=0.3, min_lr=0.01, lr_decay_iters=100, decay_frac=0.25)
RATIOS = [10.0, 1.0, 0.5, 0.03, 0.0]      # times 0.3: the last two peak below min_lr


def ramp(it, ratio, schedule, learning_rate, min_lr, warmup_iters, lr_decay_iters, decay_frac):
    """Up along the base's line, from the point where it meets the type's peak down to the lower of min_lr and that peak."""
    slope, peak = learning_rate / (warmup_iters + 1), ratio * learning_rate
    if slope * (it + 1) < peak:
        return slope * (it + 1)
    start = max(0, peak / slope - 1)
    if schedule == 'wsd':
        start = max(start, lr_decay_iters - decay_frac * lr_decay_iters)
    if schedule == 'constant' or it < start:
        return peak
    left = max(0, (lr_decay_iters - it) / (lr_decay_iters - start))
    end = min(min_lr, peak)
    return end + (peak - end) * (math.sin(left * math.pi / 2) ** 2 if schedule == 'cosine' else left)


@pytest.mark.parametrize('ratio', RATIOS)
@pytest.mark.parametrize('warmup', [0, 7])
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_ramp_is_its_closed_form(schedule, warmup, ratio):
    """And it ends where the base ends, unless its own peak is lower still"""
    rates = [scheduled(it, schedule, warmup_iters=warmup, ratio=ratio, **RUN) for it in range(130)]
    wanted = [ramp(it, ratio, schedule, warmup_iters=warmup, **RUN) for it in range(130)]
    assert rates == pytest.approx(wanted, rel=1e-10, abs=1e-15)
    if schedule != 'constant':
        assert rates[100:] == pytest.approx([min(0.01, ratio * 0.3)] * 30)


@pytest.mark.parametrize('warmup', [0, 7])
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_jump_is_a_multiple_of_the_base_after_warm_up(schedule, warmup):
    """The base to the last bit during warm-up, ratio times it from the first iteration after on, min_lr included. A ratio of one
    is the base in either mode"""
    for it in range(130):
        base = scheduled(it, schedule, warmup_iters=warmup, **RUN)
        for ratio in RATIOS:
            found = scheduled(it, schedule, warmup_iters=warmup, ratio=ratio, blockwise='jump', **RUN)
            assert found == (base if it < warmup else ratio * base)
            own = RUN | dict(learning_rate=ratio * RUN['learning_rate'])        # peak: a run of its own, with the same floor
            found = scheduled(it, schedule, warmup_iters=warmup, ratio=ratio, blockwise='peak', **RUN)
            assert found == scheduled(it, schedule, warmup_iters=warmup, **own)
        for blockwise in ('ramp', 'jump', 'peak'):
            assert scheduled(it, schedule, warmup_iters=warmup, ratio=1.0, blockwise=blockwise, **RUN) == base


def test_training_imports_no_compiler():
    """It takes two seconds, and PyTorch's optimizers import it in several of their methods"""
    code = ('import sys, torch, model, optim; m = model.GPT(model.GPTConfig(n_layer=1, n_head=1, n_embd=8, vocab_size=8))\n'
            'for name in ("adamw", "sgdw"):\n'
            '    o = optim.OPTIMIZERS[name](optim.param_groups(m, 0.1), optim.Keys(learning_rate=0.1))\n'
            '    m(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))[1].backward()\n'
            '    o.step(); o.zero_grad(); o.load_state_dict(o.state_dict())\n'
            'print("torch._dynamo" in sys.modules)')
    run = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == 'False\n', run.stderr
