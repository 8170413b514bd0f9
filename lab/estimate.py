"""
Estimate, without running anything, the memory that a GPU needs for a config:

    python -m lab.estimate config/train_ldnt_xl_sgd.py                              # one GPU
    python -m lab.estimate config/train_ldnt_xl_sgd.py --parallel=fsdp --gpus=8     # each of 8 GPUs that share a model
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
# -----------------------------------------------------------------------------

def gpu_dtype(config):
    """Return the dtype on a GPU with bfloat16, where auto means bfloat16, whatever this machine has."""
    return pick_dtype('bfloat16' if config['dtype'] == 'auto' else config['dtype'], torch.device('cpu'))


def fake_gpt(config):
    """Return a GPT of tensors without data, in the FakeTensorMode around. Such tensors cannot seed weights."""
    with unset_fake_temporarily(), torch.device('meta'):
        model = GPT(gpt_config(config))
    model.to_empty(device='cpu')
    if model.config.tie_weights:                        # to_empty unties
        model.lm_head.weight = model.wte.weight
    model.recompute = config['recompute']
    return model


def forward(model, config, run):
    """Return the loss of one micro-batch through run(x, y), and the bytes that the model's backward pass needs."""
    weights, kept, inputs = [*model.parameters()], [], []
    hook = model.h[0].register_forward_pre_hook(lambda block, given: inputs.append(given)) if config['recompute'] else None
    x, y = torch.zeros(2, config['batch_size'], model.config.block_size, dtype=torch.long)
    keep = saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with keep, autocast(torch.device('cpu'), gpu_dtype(config), cache=not config['recompute']):
        loss = run(x, y)[1]
        if hook:                                        # only blocks' inputs are kept; one block at a time runs again
            hook.remove()
            model.h[0](*inputs[0])
    return loss, storage_bytes(kept + weights) - storage_bytes(weights)


def compiled_activations(config):
    """Return the bytes that a compiled model's backward pass needs, from two shallow models: all blocks but the first need
    equally many."""
    sizes = []
    for n_layer in (2, 3):
        torch._dynamo.reset()
        model = fake_gpt({**config, 'n_layer': n_layer})
        sizes.append(forward(model, config, torch.compile(model, backend='aot_eager_decomp_partition'))[1])
    return sizes[0] + (config['n_layer'] - 2) * (sizes[1] - sizes[0])


def memory(config):
    """Return {part: bytes} of a GPU's memory for one micro-batch, from an iteration on tensors that have shapes but no data. With
    parallel=fsdp, a GPU has its share of the parameters, gradients and state, and two whole blocks, because one computes while
    the next is gathered."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_gpt(config)
        optimizer = make_optimizer(param_groups(model, config['weight_decay'], keys=config), {**config, 'compile': False})
        loss, activations = forward(model, config, model)
        loss.backward()
        optimizer.step()
        if config['compile'] and not config['recompute']:
            activations = compiled_activations(config)
        weights, ranks = [*model.parameters()], config['gpus'] if config['parallel'] == 'fsdp' else 1
        block = sum(p.numel() for p in model.h[0].parameters()) * (gpu_dtype(config).itemsize + 4)  # with its gradient in fp32
        return {'parameters': storage_bytes(weights) / ranks, 'gradients': storage_bytes([p.grad for p in weights]) / ranks,
                f'state of {config["optimizer"]}': state_bytes(optimizer) / ranks,
                'copy for update norms': storage_bytes(weights) / ranks,        # behind an evaluation
                'gathered blocks': 2 * block if ranks > 1 else 0, 'activations': activations,
                "the logits' gradient": 4 * config['batch_size'] * model.config.block_size * model.config.vocab_size}


def main():
    config = configure(globals(), GPTConfig, TRAIN)
    check_keys(config)
    at_least(config, gpus=1)
    with torch.device('meta'):
        model = GPT(gpt_config(config))
    windows = config['batch_size'] * model.config.block_size
    print(f'{model.num_params():,} parameters, micro-batches of {windows:,} tokens, {str(gpu_dtype(config))[6:]}, '
          f'{"compiled" if config["compile"] else "eager"}, {config["parallel"]} on {gpus} GPUs')
    parts = memory(config)
    for name, size in {**parts, 'in all': sum(parts.values())}.items():
        print(f'{name:24}{size / 2 ** 30:9.3f} GiB')


if __name__ == '__main__':
    main()
