"""engine/device.py: which device, dtype and kernel a script uses."""

import os

import pytest
import torch
from torch.nn import functional as F

from engine.device import ATTENTION_BACKENDS, attention_backend_of, plain_attention, tune_for_training
from test_model import CHOICES, build


@pytest.fixture(autouse=True)
def as_before():
    """The settings of a process are left as they were"""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    torch._inductor.config.deterministic = False
    for _, enable in ATTENTION_BACKENDS.values():
        enable(True)


def test_how_products_are_rounded_and_repeated():
    """cuBLAS repeats its bits only with a workspace of its own size, see PyTorch's page on reproducibility"""
    for keys in dict(), dict(tf32=False, deterministic=True), dict():
        tune_for_training(torch.device('cpu'), build(), **keys)
        assert torch.get_float32_matmul_precision() == ('highest' if keys else 'high')
        assert torch.are_deterministic_algorithms_enabled() == torch._inductor.config.deterministic == bool(keys)
        assert not keys or os.environ.pop('CUBLAS_WORKSPACE_CONFIG') == ':4096:8'


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('keys', [dict(value_residual=True), *(dict(attention=name) for name in CHOICES['attention'])])
def test_the_kernel_that_is_recorded_is_the_one_that_runs(keys, dtype):
    model, device = build(**keys, block_size=513, n_head=2, n_kv_head=0).float(), torch.device('cpu')
    names = {'flash': 'aten::_scaled_dot_product_flash_attention_for_cpu', 'math': 'aten::_scaled_dot_product_attention_math'}
    for asked, expected in ('auto', 'flash'), ('flash', 'flash'), ('math', 'math'):
        tune_for_training(device, model, asked)
        state = torch.get_rng_state()
        assert attention_backend_of(model, device, dtype) == expected
        assert torch.equal(torch.get_rng_state(), state)
        with torch.profiler.profile() as found, torch.autocast('cpu', torch.bfloat16, enabled=dtype != torch.float32):
            model(torch.zeros(1, 513, dtype=torch.int64))
        assert {event.name for event in found.events()} & set(names.values()) == {names[expected]}
    for asked in 'cudnn', 'efficient':                  # which a CPU lacks
        tune_for_training(device, model, asked)
        with pytest.raises(ValueError, match='attention_backend: it has no kernel for n_head='):
            attention_backend_of(model, device, dtype)


@pytest.mark.parametrize('attention', CHOICES['attention'])
@pytest.mark.parametrize('block_size', [512, 513])
def test_plain_products_are_for_short_sequences_and_not_for_l2(attention, block_size):
    model = build(attention=attention, block_size=block_size)
    tune_for_training(torch.device('cpu'), model)
    plain = block_size == 512 and not attention.startswith('l2')
    assert model.h[1].attn.kernel is (plain_attention if plain else F.scaled_dot_product_attention)
