"""
Estimates, without running anything, the memory that a GPU needs for a config, or the speed of many GPUs:

    python -m lab.estimate config/train_ldnt_xl_sgd.py                              # memory of one micro-batch
    python -m lab.estimate config/train_ldnt_xl_sgd.py --parallel=fsdp --gpus=8     # the same if 8 GPUs share a model
    python -m lab.estimate config/train_ldnt_xl_sgd.py --scale=1,8,16,32            # tokens per second, and traffic
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.estimate')

from configurator import TRAIN, at_least, configure

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks

from engine.device import autocast, pick_dtype, state_bytes, storage_bytes
from engine.keys import check_keys, gpt_config
from model import GPT, GPTConfig
from optim import make_optimizer, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
gpus = 1                            # GPUs over which parallel=fsdp spreads the model
scale = ''                          # numbers of GPUs, separated by commas, whose speed is estimated
gpu_peak = 989.0                    # scale: dense bf16 TFLOP/s of a GPU; an H100 or H200 has this
gpu_mfu = 0.4                       # scale: the share of gpu_peak that computing reaches
link = 450.0                        # scale: GB/s that a GPU sends to others in its node
network = 50.0                      # scale: GB/s that a GPU sends to other nodes
node = 8                            # scale: GPUs in a node
# -----------------------------------------------------------------------------

def gpu_dtype(config):
    """Return the dtype on a GPU with bfloat16, where auto means bfloat16, whatever this machine has."""
    return pick_dtype('bfloat16' if config['dtype'] == 'auto' else config['dtype'], torch.device('cpu'))


def forward(model, config):
    """Return the loss of one micro-batch, and the bytes that its backward pass needs."""
    cpu, weights, kept, inputs = torch.device('cpu'), [*model.parameters()], [], []
    compiled = config['compile'] and not config['recompute']
    run = torch.compile(model, backend='aot_eager_decomp_partition') if compiled else model
    hook = model.h[0].register_forward_pre_hook(lambda block, given: inputs.append(given)) if config['recompute'] else None
    x, y = torch.zeros(2, config['batch_size'], model.config.block_size, dtype=torch.long)
    keep = saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with keep, autocast(cpu, gpu_dtype(config), cache=not config['recompute']):
        loss = run(x, y)[1]
        if hook:                                        # only blocks' inputs are kept; one block at a time runs again
            hook.remove()
            model.h[0](*inputs[0])
    return loss, storage_bytes(kept + weights) - storage_bytes(weights)


def fake_gpt(config):
    """Return a GPT of tensors without data, in the FakeTensorMode around. Such tensors have no number to seed the weights
    with."""
    with unset_fake_temporarily(), torch.device('meta'):
        model = GPT(gpt_config(config))
    model.to_empty(device='cpu')
    if model.config.tie_weights:                        # to_empty unties
        model.lm_head.weight = model.wte.weight
    return model


def compiled_activations(config):
    """Return the bytes that the backward pass needs at the config's depth, from two shallow models: all blocks but the first need
    equally many."""
    sizes = []
    for n_layer in (2, 3):
        shallow = {**config, 'n_layer': n_layer}
        torch._dynamo.reset()
        sizes.append(forward(fake_gpt(shallow), shallow)[1])
    return sizes[0] + (config['n_layer'] - 2) * (sizes[1] - sizes[0])


def memory(config):
    """Return {part: bytes} of a GPU's memory for one micro-batch, from an iteration on tensors that have shapes but no data. With
    parallel=fsdp, a GPU has its share of the parameters, gradients and state, and two whole blocks, because one computes while
    the next is gathered."""
    dtype = gpu_dtype(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_gpt(config)
        model.recompute = config['recompute']
        optimizer = make_optimizer(param_groups(model, config['weight_decay'], keys=config), {**config, 'compile': False})
        weights = [*model.parameters()]
        loss, activations = forward(model, {**config, 'compile': False})
        loss.backward()
        optimizer.step()
        if config['compile'] and not config['recompute']:
            activations = compiled_activations(config)
        logits = config['batch_size'] * model.config.block_size * model.config.vocab_size
        ranks = config['gpus'] if config['parallel'] == 'fsdp' else 1
        block = sum(p.numel() for p in model.h[0].parameters()) * (dtype.itemsize + 4)      # with its gradient in fp32
        return {'parameters': storage_bytes(weights) / ranks, 'gradients': storage_bytes([p.grad for p in weights]) / ranks,
                f'state of {config["optimizer"]}': state_bytes(optimizer) / ranks,
                'gathered blocks': 2 * block if ranks > 1 else 0, 'activations': activations,
                "the logits' gradient": 4 * logits}


def speed(config, model, gpus):
    """Return one iteration on this many GPUs: seconds of computing, and for DDP and FSDP the bytes that a GPU sends, the seconds
    that it takes to send them, and the seconds of the iteration.

    In a ring, a GPU sends (n − 1)/n of what is gathered or reduced, over the slowest of its links. DDP all-reduces fp32 gradients
    once per iteration, which sends them twice. With ddp_overlap this goes on during the backward pass of the last micro-batch,
    two thirds of its time; without, it follows. For each micro-batch, FSDP gathers the blocks in bf16 before the forward pass and
    before the backward pass, and reduces fp32 gradients; all of that overlaps with computing.
    """
    count, micro_batches = model.num_params(), config['gradient_accumulation_steps']
    flops = micro_batches * config['batch_size'] * model.config.block_size * model.flops_per_token()
    computing = flops / (gpus * config['gpu_peak'] * 1e12 * config['gpu_mfu'])
    rate = 1e9 * (config['link'] if gpus <= config['node'] else config['network'])
    sent = [size * (gpus - 1) / gpus for size in ((4 if config['ddp_bf16'] else 8) * count, 8 * count * micro_batches / gpus)]
    ddp, fsdp = (size / rate for size in sent)
    hidden = 2 / 3 * computing * gpus / micro_batches if config['ddp_overlap'] else 0
    return computing, [(sent[0], ddp, computing + max(0, ddp - hidden)), (sent[1], fsdp, max(computing, fsdp))]


def main():
    config = configure(globals(), GPTConfig, TRAIN)
    check_keys(config)
    at_least(config, gpus=1, node=1, gpu_peak=1e-9, gpu_mfu=1e-9, link=1e-9, network=1e-9)
    numbers = [int(text) if text.isdecimal() else 0 for text in scale.split(',')] if scale else []
    if 0 in numbers:
        raise ValueError(f'scale={scale}: wants numbers of GPUs with commas between them, as in --scale=1,8,32')
    with torch.device('meta'):
        model = GPT(gpt_config(config))
    windows = config['batch_size'] * model.config.block_size
    if not numbers:
        print(f'{model.num_params():,} parameters, micro-batches of {windows:,} tokens, {str(gpu_dtype(config))[6:]}, '
              f'{"compiled" if config["compile"] else "eager"}, {config["parallel"]} on {gpus} GPUs')
        parts = memory(config)
        for name, size in {**parts, 'in all': sum(parts.values())}.items():
            print(f'{name:24}{size / 2 ** 30:9.3f} GiB')
        return
    per_iter = windows * config['gradient_accumulation_steps']
    print(f'{model.num_params():,} parameters, {per_iter:,} tokens an iteration in {config["gradient_accumulation_steps"]} '
          f'micro-batches; {gpu_peak:g} TFLOP/s at an MFU of {gpu_mfu:.0%}, {link:g} GB/s within nodes of {node}, '
          f'{network:g} between them')
    heads = ''.join(f'{f"{way}: GB sent":>16}{"s":>8}{"tokens/s":>12}{"of linear":>11}' for way in ('DDP', 'FSDP'))
    print(f'{"GPUs":>6}{"computing, s":>14}{heads}')
    for n in numbers:
        computing, ways = speed(config, model, n)
        row = f'{n:6}{computing:14.3f}'
        for sent, seconds, took in ways:
            row += f'{sent / 1e9:16.1f}{seconds:8.3f}{per_iter / took:12,.0f}{computing / took:11.0%}'
        print(row)


if __name__ == '__main__':
    main()
