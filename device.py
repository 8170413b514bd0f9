"""What device='auto' and dtype='auto' mean on the machine at hand, and which kernels are fast there."""
import ctypes
import sys
from contextlib import nullcontext

import torch

from model import L2Attention

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


def pick_device(name, index=0):
    """auto | cpu | cuda | cuda:1 | mps … → torch.device; a plain GPU gets this index. ValueError where there is none."""
    if name == 'auto':
        name = 'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'
    try:
        device = torch.device(name, index) if name == 'cuda' else torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'device={name!r} is not at hand ({reason}): choose auto, cpu, cuda or mps') from None
    return device


def pick_dtype(name, device):
    """auto | float32 | bfloat16 | float16 → torch.dtype; auto takes bfloat16 where the hardware computes in it."""
    if name != 'auto':
        if name not in DTYPES:
            raise ValueError(f'dtype={name!r}: choose one of auto, {", ".join(DTYPES)}')
        return DTYPES[name]
    if device.type == 'cuda':
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    capabilities = torch.cpu.get_capabilities() if device.type == 'cpu' and hasattr(torch.cpu, 'get_capabilities') else {}
    return torch.bfloat16 if capabilities.get('amx_bf16') or capabilities.get('avx512_bf16') else torch.float32


def choose_kernels(device, model):
    """What trains fastest: TF32 where a product is in fp32, and on a CPU plain products for the attention over up to 512 tokens,
    because its fused kernel is slow backward, and freed memory that stays with the process."""
    torch.set_float32_matmul_precision('high')
    if device.type != 'cpu':
        return
    for block in model.h:
        if not isinstance(block.attn, L2Attention):     # whose logits would lose their precision to bf16
            block.attn.fused = model.config.block_size > 512
    if sys.platform == 'linux':
        mallopt = getattr(ctypes.CDLL(None), 'mallopt', lambda *_: None)        # musl has none
        mallopt(-3, 2 ** 25)            # M_MMAP_THRESHOLD: activations of up to 32 MB are not pages of their own, which
        mallopt(-1, 2 ** 31 - 1)        # M_TRIM_THRESHOLD: the system would take back and fill with zeros, each iteration


def autocast(device, dtype):
    """The context of a forward pass in dtype; the weights stay as they are."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


PEAKS = {       # dense bf16, TFLOP/s, from the vendors' data sheets; a name that holds another comes before it
    'B200': 2250, 'GH200': 989, 'H200': 989, 'H100 PCIe': 756, 'H100 NVL': 835, 'H100': 989, 'H800': 989, 'H20': 148,
    'A100': 312, 'A800': 312, 'A40': 150, 'A30': 165, 'A10G': 70, 'A10': 125, 'L40S': 362, 'L40': 181, 'L4': 121,
    'RTX 4090': 165, 'RTX 3090': 71, 'MI300X': 1307, 'MI250': 362,
}


def vendors_peak(device):
    """FLOP/s that the vendor promises of this GPU for dense products in bf16, or None for a device that is not known."""
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else ''
    return next((1e12 * peak for key, peak in PEAKS.items() if key in name), None)
