"""What device='auto' and dtype='auto' mean on the machine at hand, and what trains fast there."""
import ctypes
import sys
from contextlib import nullcontext

import torch

from model import L2Attention, plain_attention

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
    """For training: TF32 where a product is in fp32; on a CPU plain products for the attention over up to 512 tokens, because
    PyTorch's kernel is slow backward there. L2 attention keeps the kernel: its logits must not be rounded to bf16."""
    torch.set_float32_matmul_precision('high')
    if device.type == 'cpu' and model.config.block_size <= 512:
        for block in model.h:
            if not isinstance(block.attn, L2Attention):
                block.attn.kernel = plain_attention


def keep_freed_memory():
    """For training on a CPU, a setting of the whole process: the activations of an iteration take the places of the last one's.
    By default the system takes large ones back and fills each page of the next with zeros."""
    if sys.platform == 'linux':
        mallopt = getattr(ctypes.CDLL(None), 'mallopt', lambda *_: None)        # musl has none
        mallopt(-3, 2 ** 25)            # M_MMAP_THRESHOLD, 32 MB, the most that it takes
        mallopt(-1, 2 ** 31 - 1)        # M_TRIM_THRESHOLD


def autocast(device, dtype, cache=True):
    """The context of forward passes in dtype; the weights stay as they are. With cache their casts are kept until it ends."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype, cache_enabled=cache)


PEAKS = {       # dense bf16, TFLOP/s, from the vendors' data sheets; a name that holds another comes before it
    'B200': 2250, 'GH200': 989, 'H200': 989, 'H100 PCIe': 756, 'H100 NVL': 835, 'H100': 989, 'H800': 989, 'H20': 148,
    'A100': 312, 'A800': 312, 'A40': 150, 'A30': 165, 'A10G': 70, 'A10': 125, 'L40S': 362, 'L40': 181, 'L4': 121,
    'RTX 4090': 165, 'RTX 3090': 71, 'MI300X': 1307, 'MI250': 362,
}


def vendors_peak(device):
    """FLOP/s that the vendor promises of this GPU for dense products in bf16, or None for a device that is not known."""
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else ''
    return next((1e12 * peak for key, peak in PEAKS.items() if key in name), None)
