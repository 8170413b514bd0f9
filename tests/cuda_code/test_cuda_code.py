"""
What the models become on an H100 (SM=90) and an A100 (SM=80) in bf16: dtypes, kernels for attention, and what a layer moves.
"""
from configurator import read_config

from dataclasses import fields

import pytest
import torch
from fakes import SM, Operations, kernels, sources
from helpers import ROOT

from engine.device import attention_backend_of, tune_for_training
from model import GPT, NORMS, Block, GPTConfig

GPU, BF16, FP32 = torch.device('cuda'), {torch.bfloat16}, {torch.float32}
FUSED = {80: 'flash', 90: 'cudnn'}[SM]                  # PyTorch's first choice


def build(arch='pre', attention_backend='auto', deterministic=False, **keys):
    """A GPT without weights on the GPU, as train.py sets it up"""
    keys = {**read_config(str(ROOT / 'config' / 'arch' / f'{arch}.py'), {'model': 'gpt'}), **keys}
    with torch.device('meta'):
        model = GPT(GPTConfig(**{f.name: keys[f.name] for f in fields(GPTConfig) if f.name in keys}))
    tune_for_training(GPU, model, attention_backend, deterministic=deterministic)
    return model.to_empty(device=GPU)


def windows(count, length=1024):
    return torch.empty(count, length, dtype=torch.int64, device=GPU)


def operations(model):
    """Those of a forward pass"""
    with Operations() as found, torch.autocast('cuda', torch.bfloat16):
        model(windows(2), windows(2))
    return found.list


# ----------------------------------------------------------------------------- dtypes

@pytest.mark.parametrize('arch, attention', [
    ('pre', 'dot'), ('post', 'dot'), ('s5', 'dot'), ('stable', 'stable'), ('llama', 'dot'), ('pre', 'l2'), ('s5', 'l2_tied')])
def test_dtypes(arch, attention):
    """bf16 in products and attention; fp32 in norms, in their statistics, in the residual stream and in the loss"""
    model = build(arch, attention=attention, n_layer=2, vocab_size=512)
    streams, outputs = [], []
    for module in model.modules():
        if isinstance(module, (Block, *NORMS.values())):
            seen = streams if isinstance(module, Block) else outputs
            module.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(
                (output[0] if isinstance(module, Block) else output).dtype))
    found = operations(model)
    assert {*streams, *outputs} == FP32 and len(streams) == 2
    products = [o for o in found if o.name in ('aten.mm', 'aten.addmm', 'aten.bmm') or 'attention' in o.name]
    matrices = sum(p.dim() == 2 for name, p in model.named_parameters() if name.startswith('h.'))
    assert len(products) == matrices + 1 + 2            # the head, and an attention in each block
    assert all(o.inputs == BF16 for o in products)
    precise = [o for o in found if o.name in ('aten.native_layer_norm', 'aten._fused_rms_norm', 'aten._log_softmax',
                                              'aten.nll_loss_forward')]
    assert len(precise) == len(outputs) + 2
    assert all(o.inputs == o.outputs == FP32 for o in precise)


# ----------------------------------------------------------------------------- attention

ATTENTIONS = {
    'dot': {},
    'qk_norm': dict(norm='rmsnorm', qk_norm=True),
    'rope, grouped': dict(pos='rope', n_kv_head=4),
    'stable': dict(norm='stablenorm', attention='stable'),
    'l2': dict(attention='l2'),
    'l2, rope, grouped': dict(attention='l2', pos='rope', n_kv_head=4),
    'l2_tied': dict(attention='l2_tied'),
    'heads of 128': dict(n_head=6),
    'heads of 256': dict(n_head=3),
    'l2, heads of 128': dict(n_head=6, attention='l2'),
    'l2, heads of 256': dict(n_head=3, attention='l2'),
    'dropout': dict(dropout=0.1),
}
OF_2_13 = tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 13)       # what follows was found with 2.11 and with 2.13
# 2.13 gives cuDNN no dropout any more; 256 + 3 is more than flash takes
OTHERS = {'dropout': 'flash' if OF_2_13 else FUSED, 'l2, heads of 256': 'efficient'}
REFUSED = {('rope, grouped', 'efficient'), ('l2, rope, grouped', 'efficient'), *([('dropout', 'cudnn')] if OF_2_13 else [])}


def kernel_in(names):
    """The kernel for attention among operations or compiled kernels"""
    found = {name.removesuffix('.default').removesuffix('_backward') for name in names if 'attention' in name}
    return ' '.join(found).rpartition('_scaled_dot_product_')[2].removesuffix('_attention') or 'math'


@pytest.mark.parametrize('kind', ATTENTIONS)
def test_attention_is_fused(kind):
    """And run.json says by which kernel"""
    model = build(**ATTENTIONS[kind], n_layer=1, vocab_size=512)
    assert kernel_in(o.name for o in operations(model)) == OTHERS.get(kind, FUSED)
    with Operations():
        assert attention_backend_of(model, GPU, torch.bfloat16) == OTHERS.get(kind, FUSED)


@pytest.mark.parametrize('backend', ['flash', 'cudnn', 'efficient', 'math'])
@pytest.mark.parametrize('kind', ['dot', 'rope, grouped', 'stable', 'l2', 'l2, rope, grouped', 'dropout'])
def test_attention_backend(kind, backend):
    """The key decides, or is refused before training starts"""
    model = build(**ATTENTIONS[kind], attention_backend=backend, n_layer=1, vocab_size=512)
    if (kind, backend) in REFUSED:
        with Operations(), pytest.raises(ValueError, match='attention_backend'):
            attention_backend_of(model, GPU, torch.bfloat16)
        return
    with Operations():
        assert attention_backend_of(model, GPU, torch.bfloat16) == backend
    assert kernel_in(o.name for o in operations(model)) == backend


@pytest.mark.parametrize('kind, backend', [*(('dot', backend) for backend in ('auto', 'flash', 'cudnn', 'efficient', 'math')),
                                           ('l2', 'auto'), ('l2', 'flash'), ('stable', 'auto'), ('stable', 'efficient')])
def test_attention_backend_compiled(kind, backend):
    model = build(**ATTENTIONS[kind], attention_backend=backend, n_layer=1, vocab_size=512)
    for found in kernels(model, windows(2), windows(2)):
        assert kernel_in(k.name for k in found) == (FUSED if backend == 'auto' else backend)


@pytest.mark.parametrize('kind', ['dot', 'stable', 'l2'])
def test_deterministic(kind):
    """No atomic additions, whose order differs from run to run, and flash, whose backward pass has a way without them"""
    for deterministic in False, True:
        model = build(**ATTENTIONS[kind], n_layer=1, vocab_size=512, deterministic=deterministic)
        for found in kernels(model, windows(2), windows(2)):
            assert kernel_in(k.name for k in found) == ('flash' if deterministic else FUSED)
        assert any('tl.atomic_add(' in source for source in sources) != deterministic


# ----------------------------------------------------------------------------- what a layer moves
# {arch: (kernels and GB of a layer, kernels and GB of all else)}, forward and backward, outside of products and attention. They
# are what this test found with PyTorch 2.13, and with 2.11 where that fuses otherwise; `-s` prints them. No buffer here
# has more than the 10⁹ elements at which Inductor stops counting. GB are what each kernel reads and writes at least, as Inductor
# counts it. A layer is half of the difference between four layers and two. 1% is less than what the smallest activation adds
# if it is written and read once more. TORCH_LOGS=output_code shows the code. After a change that moves less, lower the figures.
BUDGET = {
    'pre': (22, 1.00, 14, 5.37),
    's5': (28, 1.08, 16, 5.50) if OF_2_13 else (27, 1.05, 17, 5.54),
    'stable': (28, 1.16, 14, 5.37),
}


@pytest.mark.skipif(SM != 90, reason='an A100 has the same')
@pytest.mark.parametrize('arch', BUDGET)
def test_budget(arch):
    """10 windows of 1024 tokens at width 768. The gradient of logits that nobody reads would be another GB in `all else`."""
    count, moved = {}, {}
    for layers in (2, 4):
        forward, backward = kernels(build(arch, n_layer=layers), windows(10), windows(10))
        products = [k for k in forward + backward if k.name == 'extern_kernels.mm']
        assert len(products) == 3 * (6 * layers + 1) and all(k.inputs == BF16 for k in products)
        others = [k for k in forward + backward if k not in products and 'attention' not in k.name]
        count[layers], moved[layers] = len(others), sum(k.bytes for k in others) / 1e9
    layer = [(of[4] - of[2]) / 2 for of in (count, moved)]
    rest = [of[2] - 2 * one for of, one in zip((count, moved), layer)]
    print(f'\n{arch}:', *(f'{number:.3f}' for number in layer + rest))
    assert all(number <= 1.01 * budget for number, budget in zip(layer + rest, BUDGET[arch]))
