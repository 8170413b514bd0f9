"""engine/device.py: which device, dtype and kernel a script uses."""
import pytest
import torch
from torch.nn import functional as F

from engine.device import tune_for_training
from model import plain_attention
from test_model import CHOICES, build


@pytest.mark.parametrize('attention', CHOICES['attention'])
@pytest.mark.parametrize('block_size', [512, 513])
def test_plain_products_are_for_short_sequences_and_not_for_l2(attention, block_size):
    model, precision = build(attention=attention, block_size=block_size), torch.get_float32_matmul_precision()
    tune_for_training(torch.device('cpu'), model)
    torch.set_float32_matmul_precision(precision)
    plain = block_size == 512 and not attention.startswith('l2')
    assert model.h[1].attn.kernel is (plain_attention if plain else F.scaled_dot_product_attention)
