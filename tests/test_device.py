"""engine/device.py: how products are rounded. model.py: which kernel computes attention."""

import os

import pytest
import torch
from torch.nn import functional as F

import model
from engine.device import tune_for_training
from test_model import CHOICES, build


@pytest.fixture(autouse=True)
def as_before():
    """The settings of a process are left as they were"""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    torch._inductor.config.deterministic = False


def test_how_products_are_rounded_and_repeated():
    """cuBLAS repeats its bits only with a workspace of its own size, see PyTorch's page on reproducibility"""
    for keys in dict(), dict(tf32=False, deterministic=True), dict():
        tune_for_training(torch.device('cpu'), **keys, compile=True)
        assert torch.get_float32_matmul_precision() == ('highest' if keys else 'high')
        assert torch.are_deterministic_algorithms_enabled() == torch._inductor.config.deterministic == bool(keys)
        assert not keys or os.environ.pop('CUBLAS_WORKSPACE_CONFIG') == ':4096:8'


@pytest.mark.parametrize('attention', CHOICES['attention'])
@pytest.mark.parametrize('dtype, longest', [(torch.bfloat16, 512), (torch.float32, 128)])
def test_plain_products_are_for_short_sequences_and_not_for_l2(attention, dtype, longest, monkeypatch):
    used = []
    monkeypatch.setattr(model, 'plain_attention', lambda *args, **more: used.append('plain') or args[0])
    attn = build(attention=attention, block_size=513, n_head=2, n_kv_head=0).h[1].attn
    for length in longest, longest + 1:
        q = torch.zeros(1, 2, length, attn.head_dim, dtype=dtype)
        attn.kernel(q, q, q, is_causal=True, scale=1.0, enable_gqa=False, dropout_p=0.0)
    assert used == [] if attention.startswith('l2') else ['plain']
    assert attention[:2] != 'l2' or attn.kernel is F.scaled_dot_product_attention


@pytest.mark.skipif(not torch.cuda.is_available(), reason='it needs a GPU')
@pytest.mark.parametrize('attention', CHOICES['attention'])
def test_attention_is_one_kernel_on_a_gpu(attention):
    """And does not fall back to products and a softmax"""
    network = build(attention=attention, block_size=256, n_embd=128, n_head=2, n_kv_head=0).float().cuda()
    idx = torch.zeros(2, 256, dtype=torch.int64, device='cuda')
    with torch.profiler.profile() as found, torch.autocast('cuda', torch.bfloat16):
        network(idx, idx)[1].backward()
    names = {event.name for event in found.events() if 'scaled_dot_product' in event.name}
    assert names and not any('math' in name for name in names), names
