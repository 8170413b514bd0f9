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
GPT_SIZES = dict(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8)


def model_of(**more):
    torch.manual_seed(0)
    return GPT(GPTConfig(**GPT_SIZES, **more))


def decays(model, **keys):
    """{parameter: its weight decay}"""
    settings = group_settings({**DEFAULTS, **GPT_SIZES, 'weight_decay': 0.1, **keys})
    return {name: group['weight_decay'] for group in param_groups(model, **settings) for name, _ in group['params']}


@pytest.mark.parametrize('decay_norms', [False, True])
def test_what_decays(decay_norms):
    """Matrices, also those of norms and residuals, and with decay_norms the gains and biases of norms, but nothing else"""
    model = model_of(bias=True, qk_norm=True, norm='gatednorm', residual='hyper')
    for name, decay in decays(model, decay_norms=decay_norms).items():
        matrix = name.endswith('.wa') or name.endswith('.weight') and block_type(name) != 'norm'
        assert decay == (0.1 if matrix or decay_norms and block_type(name) == 'norm' else 0.0), name


def test_weight_decay_per_block_type():
    ratios = dict(qk=2.0, pos=0.0, emb=0.5, head=4.0, mix=3.0, norm=5.0)
    keys = {f'wd_{kind}': ratio for kind, ratio in ratios.items()}
    for name, decay in decays(model_of(tie_weights=False, norm='gatednorm'), tie_weights=False, decay_norms=True, **keys).items():
        assert decay == pytest.approx(0.1 * ratios.get(block_type(name), 1)), name


class Keeps(torch.optim.Optimizer):
    """Keeps what others do: a state of no parameter; a momentum in bf16; text; a number per row"""

    def __init__(self, groups, lr):
        super().__init__(groups, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        shared = self.state['shared']
        shared['count'] = shared.get('count', 0) + 1
        for group in self.param_groups:
            for p in [p for p in group['params'] if p.grad is not None]:
                state = self.state[p]
                state['rows'] = state.get('rows', torch.zeros(len(p))) + 1
                state.setdefault('rule', ['momentum', {'half': torch.zeros(2, dtype=torch.bfloat16)}])
                m = state.setdefault('m', torch.zeros_like(p, dtype=torch.bfloat16)).mul_(0.9).add_(p.grad)
                p.sub_(m.float(), alpha=group['lr'] / shared['count'])


@pytest.mark.parametrize('make', [*OPTIMIZERS.values(), lambda groups, keys: Keeps(groups, 0.01)], ids=[*OPTIMIZERS, 'keeps'])
def test_state_comes_back(make, tmp_path):
    """Through a file, by name, also where groups are in another order, with the rate, while other settings are the new run's: the
    next step is the same to the last bit"""
    model, keys = model_of(), {**DEFAULTS, **GPT_SIZES, 'learning_rate': 0.01, 'compile': False}
    theirs = make(param_groups(model, 0.1)[::-1], keys)
    gradients = {n: torch.randn_like(p) for n, p in model.named_parameters()}

    def step(model, optimizer, but=''):
        for n, p in model.named_parameters():
            p.grad = gradients[n].clone() if n != but else None
        optimizer.step()

    theirs.param_groups[0]['lr'] = 0.02
    step(model, theirs, but='wpe.weight')               # which counts its steps by itself
    torch.save(theirs.state_dict(), tmp_path / 'state.pt')
    other = copy.deepcopy(model)
    ours = make(param_groups(other, 0.2), keys)
    load_state(ours, torch.load(tmp_path / 'state.pt', weights_only=True))
    assert {group['weight_decay'] for group in ours.param_groups} == {0.0, 0.2}
    for group in ours.param_groups:
        group['weight_decay'] /= 2
    step(model, theirs)
    step(other, ours)
    for (n, a), b in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(a, b), n
        kinds = [{key: (type(value), getattr(value, 'dtype', '')) for key, value in optimizer.state[p].items()}
                 for optimizer, p in ((theirs, a), (ours, b))]
        assert kinds[0] == kinds[1], n


def test_merge():
    """The authors' code for WSD: warm-up to r·L at L's slope, r·L until a third of the run, in a line to L at two thirds, and in
    a line to L/10 at the end."""
    L, r, T, warmup = 0.6, 4.0, 300, 9
    keys = dict(schedule='wsd', learning_rate=L, min_lr=L / 10, warmup_iters=warmup, lr_decay_iters=T, decay_frac=1 / 3)

    def rate(it, ratio=r):
        return lr_at(it, {**keys, 'blockwise': 'merge'}, ratio)

    slope = L / (warmup + 1)
    assert rate(0) == pytest.approx(slope) and rate(20) == pytest.approx(21 * slope)
    assert rate(60) == rate(99) == pytest.approx(r * L)
    assert rate(100) == pytest.approx(r * L) and rate(150) == pytest.approx((r * L + L) / 2) and rate(200) == pytest.approx(L)
    assert rate(250) == pytest.approx((L + L / 10) / 2) and rate(300) == pytest.approx(L / 10)
    for it in range(T):
        assert rate(it, 1.0) == pytest.approx(lr_at(it, {**keys, 'blockwise': 'ramp'}))
