"""What device='auto' and dtype='auto' mean on the machine at hand."""
from contextlib import nullcontext

import torch

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


def choose_kernels(device, block_size):
    """For training: TF32 where a product is in fp32; on a CPU plain products for the attention of up to 128 tokens."""
    torch.set_float32_matmul_precision('high')
    if device.type == 'cpu' and block_size <= 128:
        torch.backends.cuda.enable_flash_sdp(False)     # also the CPU's, whose backward only pays for longer sequences


def autocast(device, dtype):
    """The context of a forward pass in dtype; the weights stay as they are."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
