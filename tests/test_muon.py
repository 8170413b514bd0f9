"""Muon in optim.py: the orthogonalization, whose parameters are whose, and several ranks. test_optim.py has its definition."""
import functools
import re

import pytest
import torch
from helpers import TINY, checkpoint, flags, rows, train
from test_optim import make, small_gpt

import optim
from model import MATRIX, PARAMS, Row
from optim import MUON_SCALES
from vision.vit import ViT, ViTConfig

# ----------------------------------------------------------------------------- a step

@pytest.mark.parametrize('scale', MUON_SCALES)
def test_beside_torchs_muon(scale):
    """Which rounds to bf16, as here if the run computes in it, and has the same settings; four steps"""
    def moved(make_optimizer):
        model = small_gpt('llama', n_embd=32, n_head=4, n_kv_head=2)
        of_blocks = {name: p for name, p in model.named_parameters() if re.fullmatch(r'h\.\d\.(attn|ffn)\.w.\.weight', name)}
        optimizer, start = make_optimizer(model, of_blocks.values()), {name: p.detach().clone() for name, p in of_blocks.items()}
        for step in range(4):
            for i, p in enumerate(model.parameters()):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + i))
            optimizer.step()
        return {name: p.detach() - start[name] for name, p in of_blocks.items()}

    keys = dict(momentum=0.95, muon_scale=scale, learning_rate=0.02)
    bf16, fp32 = (moved(lambda model, _: make('muon', model, dtype=dtype, **keys)) for dtype in (torch.bfloat16, torch.float32))
    torchs = moved(lambda _, of_blocks: torch.optim.Muon(of_blocks, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=scale))
    assert len(torchs) == 14
    for name, wanted in torchs.items():
        assert (bf16[name] - wanted).norm() < 0.02 * wanted.norm() and (fp32[name] - wanted).norm() < 0.02 * wanted.norm(), name
        assert (bf16[name] - fp32[name]).norm() > 0.005 * wanted.norm(), name


# ----------------------------------------------------------------------------- whose a parameter is

def orthogonalized(model):
    """The names of the parameters with a momentum, after a step; all others have AdamW's moments."""
    optimizer = make('muon', model, n_embd=8)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    names = {p: name for name, p in model.named_parameters()}
    keys = {names[p]: {*state} for p, state in optimizer.state.items()}
    assert keys.keys() == set(names.values())
    assert all(found in ({'momentum_buffer'}, {'step', 'exp_avg', 'exp_avg_sq'}) for found in keys.values())
    return {name for name, found in keys.items() if 'momentum_buffer' in found}


def matrices(*of_a_block):
    return {f'h.{i}.{name}.weight' for i in range(2) for name in of_a_block}


DOT = {'attn.wq', 'attn.wk', 'attn.wv', 'attn.wo', 'ffn.w1', 'ffn.w2'}


def test_the_matrices_of_a_model():
    """Without wte, wpe, patch embedding and class token, the head, gains and biases"""
    for arch, more, wanted in (
            ('pre', dict(bias=True, tie_weights=False), DOT), ('s5', {}, DOT), ('llama', dict(n_kv_head=1), DOT | {'ffn.w3'}),
            ('pre', dict(attention='l2_tied'), DOT - {'attn.wk'})):
        assert orthogonalized(small_gpt(arch, **more)) == matrices(*wanted), (arch, more)
    config = ViTConfig(n_layer=2, n_head=2, n_embd=8, image_size=8, patch_size=4, classes=3, bias=True)
    assert orthogonalized(ViT(config)) == matrices(*DOT)


def test_the_matrices_of_a_new_block_type(monkeypatch):
    """They are Muon's if their row says so, whatever their shape"""
    for row, more in (Row('adapter', 'matrix'), set()), (MATRIX('adapter'), {'h.1.adapter.weight'}):
        monkeypatch.setitem(PARAMS, 'adapter', row)
        model = small_gpt('s5')
        model.h[1].adapter = torch.nn.Linear(8, 3)
        assert orthogonalized(model) == matrices(*DOT) | more


# ----------------------------------------------------------------------------- ranks

def count_matrices():
    """Prints how many matrices this rank orthogonalizes at a time."""
    function = optim.newton_schulz

    @functools.wraps(function)
    def counted(x):
        if x.size(-2) <= x.size(-1):
            print(f'orthogonalizes {len(x)} of {x.size(-1)}')
        return function(x)

    optim.newton_schulz = counted


def test_two_ranks_and_then_one(place):
    """Under DDP, two ranks share the matrices and give the numbers of one, as does a run that goes on with another number.
    test_fsdp.py has the same for FSDP"""
    keys = flags(**{**TINY, 'n_layer': 3, 'max_iters': 4, 'eval_interval': 2}, optimizer='muon')
    train(place, *keys, '--out_dir=one')
    out, _ = train(place, *keys, '--out_dir=two', '--max_iters=2', ranks=2, through=(count_matrices,))
    assert {*re.findall(r'orthogonalizes (\d+) of \d+', out)} == {'3', '2'}         # of 6 W_q and W_k, and of 3 W_1
    train(place, 'two/config.json', '--init_from=resume', '--max_iters=4')
    for ours, theirs in zip(rows(place / 'two'), rows(place / 'one'), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    ours, theirs = (checkpoint(place / name)['model'] for name in ('two', 'one'))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6, msg=name)
