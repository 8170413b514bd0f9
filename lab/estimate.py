"""
Estimate, without running anything, the memory that a GPU needs for a config. Compiled models need less for activations:

    python -m lab.estimate config/train_ldnt_xl_sgd.py                              # one GPU
    python -m lab.estimate config/train_ldnt_xl_sgd.py --parallel=fsdp --gpus=8     # each of 8 GPUs that share a model
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.estimate')

from configurator import TRAIN, at_least, configure

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from engine.device import autocast, pick_dtype, state_bytes, storage_bytes
from engine.keys import check_keys, gpt_config
from model import GPT, GPTConfig
from optim import make_optimizer, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
gpus = 1                            # GPUs over which parallel=fsdp spreads the model
# -----------------------------------------------------------------------------

def memory(model, config, dtype, ranks):
    """Return {part: bytes} for one iteration. A GPU has its share of parameters, gradients and state, and two whole blocks if
    there are several ranks: one computes while the next is gathered."""
    weights, kept, inputs, c = [*model.parameters()], [], [], model.config
    optimizer = make_optimizer(param_groups(model, config['weight_decay'], keys=config), {**config, 'compile': False})
    x, y = torch.zeros(2, config['batch_size'], c.block_size, dtype=torch.long)
    model.recompute = config['recompute']
    model.h[0].register_forward_pre_hook(lambda block, given: inputs.append(given))
    keep = saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with keep, autocast(torch.device('cpu'), dtype, cache=not config['recompute']):
        loss = model(x, y)[1]
        if config['recompute']:                         # only blocks' inputs are kept; one block at a time runs again
            model.h[0](*inputs[0])
    loss.backward()
    optimizer.step()
    block = sum(p.numel() for p in model.h[0].parameters()) * (dtype.itemsize + 4)         # with its gradient in fp32
    return {'parameters': storage_bytes(weights) / ranks, 'gradients': storage_bytes([p.grad for p in weights]) / ranks,
            f'state of {config["optimizer"]}': state_bytes(optimizer) / ranks,
            'copy for update norms': storage_bytes(weights) / ranks,            # behind an evaluation
            'gathered blocks': 2 * block if ranks > 1 else 0,
            'activations': storage_bytes(kept + weights) - storage_bytes(weights),
            "the logits' gradient": 4 * config['batch_size'] * c.block_size * c.vocab_size}


def main():
    config = configure(globals(), GPTConfig, TRAIN)
    check_keys(config)
    at_least(config, gpus=1)
    with torch.device('meta'):
        model = GPT(gpt_config(config))
    dtype = pick_dtype('bfloat16' if config['dtype'] == 'auto' else config['dtype'], torch.device('cpu'))      # as on a GPU
    print(f'{model.num_params():,} parameters, micro-batches of {config["batch_size"] * model.config.block_size:,} tokens, '
          f'{str(dtype)[6:]}, eager, {config["parallel"]} on {gpus} GPUs')
    with FakeTensorMode(allow_non_fake_inputs=True):    # tensors that have shapes but no data
        model.to_empty(device='cpu')
        if model.config.tie_weights:                    # to_empty unties
            model.lm_head.weight = model.wte.weight
        parts = memory(model, config, dtype, gpus if config['parallel'] == 'fsdp' else 1)
    for name, size in {**parts, 'in all': sum(parts.values())}.items():
        print(f'{name:24}{size / 2 ** 30:9.3f} GiB')


if __name__ == '__main__':
    main()
