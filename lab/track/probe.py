"""
Print, as JSON, what an entry's code says of it. lab.track runs this text in a checkout of that code, by python -c. Arguments:
the division's config file, the entry's, and [[weight decay, learning rate, seed], …] of runs.
"""
from configurator import parse_args

import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from engine.code import code_hash
from engine.keys import gpt_config
from lab.sweep.plan import make_run, script_defaults
from model import GPT


def differ(a, b):
    return not torch.allclose(a, b, rtol=1e-3, atol=1e-3)


def faults(model):
    """Return what no block may do: change the loss, or look at a target, a later token or another sample."""
    c = model.config
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():                    # gains of 0 would hide a branch
            p.add_(0.05 * torch.randn_like(p))
        x, y = torch.randint(c.vocab_size, (2, 1, c.block_size))
        others, targets = torch.randint(c.vocab_size, (2, 8, c.block_size))
        same = torch.arange(c.block_size) < torch.randint(1, c.block_size, (8, 1))      # each sample differs from here on
        logits, loss = model.eval()(x, y)
        changed, in_training = model(torch.where(same, x, others), targets)[0], model.train()(x, y)[1]
    if differ(logits.expand_as(changed)[same], changed[same]):
        yield 'its logits depend on targets, later tokens or other samples'
    if differ(loss, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())) or differ(loss, in_training) or model.aux:
        yield 'its loss is not the cross-entropy of its logits alone'


def flops_per_token(model):
    """Return the FLOPs of the matrix products of a forward and backward pass, per token."""
    x = torch.randint(model.config.vocab_size, (1, model.config.block_size))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(x, x)[1].backward()
    return counter.get_total_flops() / x.numel()


def main(division, entry, places):
    config, keys = parse_args([division, entry], script_defaults('train.py')), []
    for decay, rate, seed in json.loads(places):
        values = dict(weight_decay=decay, learning_rate=rate, seed=seed, data_seed=seed)
        keys.append(make_run({}, [division, entry, *(f'--{key}={value}' for key, value in values.items())], 'train.py')['keys'])
    model = GPT(gpt_config(config))
    print(json.dumps(dict(code=code_hash('train.py'), keys=keys, parameters=sum(p.numel() for p in model.parameters()),
                          flops_per_token=flops_per_token(model), faults=[*faults(model)], config=config)))


main(*sys.argv[1:])
