"""
Replays a run in a process of its own, by the code in the folder CODE: the first iterations, with a record of what the model is
given, and its checkpoint on the validation data, if there is one. Writes the numbers to a file:

    PYTHONPATH=CODE python lab/doctor/replay.py CODE/train.py keys.json out-run/ckpt.pt numbers.json
"""
import os
import sys

sys.path.pop(0)         # PYTHONPATH names the code

import json
import runpy
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from data.tokens import read_meta
from engine.checkpoint import load_run
from engine.health import health, rms
from model import GPT

AHEAD = (0, 1, 2, 3)        # where a target may stand by mistake, from its input on; it belongs at 1
COPY = 2.0                  # nats by which a model that has learned little may tell an input itself better than the next token
FACTOR = 1e4                # on the embeddings, to see whether anything bounds what follows


@torch.no_grad()
def first_numbers(model, x):
    """Return numbers of a model at its start: `first_rms`, which the first block reads; `unbounded`, by how much the output, and
    the branches behind the first block, grow with embeddings that are FACTOR times as large; and `usual`, the RMS of branches
    and stream without scales on the stream, with Xavier's or its own initialization, whichever is smaller."""
    def numbers(model):
        read = []
        with model.h[0].register_forward_pre_hook(lambda _, args: read.append(rms(args[0]).item())):
            sizes = health(model, x)
        logits = model.eval()(x)[0]
        model.train()
        return read[0], sizes, rms(logits).item()

    read, sizes, output = numbers(model)
    with ExitStack() as stack:
        for embedding in filter(None, (model.wte, model.wpe)):
            stack.enter_context(embedding.register_forward_hook(lambda _, args, out: FACTOR * out))
        _, large, large_output = numbers(model)
    unbounded = {}
    for branch in ('attn', 'ffn'):
        factors = [b / a if a else None for a, b in zip(*(each.get(f'{branch}_rms', []) for each in (sizes, large)))]
        unbounded[branch] = [None, *factors[1:]] if factors[1:] else factors        # no norm precedes the first of Post-LN
    if any(factor for factors in unbounded.values() for factor in factors):         # not ReZero, which needs no norm
        unbounded['output'] = large_output / output
    plain = replace(model.config, residual_scale=min(1.0, model.config.residual_scale), skip_scale='one')
    usual = [numbers(GPT(config).to(x.device))[1] for config in (plain, replace(plain, init='xavier', init_gain=1.0))]
    return dict(first_rms=read, unbounded=unbounded, usual={
        name: [a and b and min(a, b) for a, b in zip(*(each[name] for each in usual))]
        for name in ('attn_rms', 'ffn_rms', 'residual_rms') if name in usual[0]})


def train(script, keys):
    """Train for a few iterations, and return numbers of the start and of what the model was given."""
    inputs, targets, forward, numbers = [], [], GPT.forward, {}

    def record(self, idx, y=None):
        if self.training and y is not None:
            if not inputs:
                GPT.forward = forward
                numbers.update(first_numbers(self, idx))
                GPT.forward = record
            inputs.append(idx.detach().cpu())
            targets.append(y.detach().cpu())
        return forward(self, idx, y)

    GPT.forward, sys.argv = record, [script, keys]
    try:
        runpy.run_path(script, run_name='__main__')
    except SystemExit:
        pass
    GPT.forward = forward
    x, y = torch.cat(inputs), torch.cat(targets)
    entropy = torch.special.entr(torch.bincount(x.flatten()) / x.numel()).sum().item()
    return dict(**numbers, batches=dict(
        entropy=entropy, agreement=(y[:, :-1] == x[:, 1:]).sum().item() / max(1, (y[:, :-1] >= 0).sum().item()),
        repeated=1 - len(x.unique(dim=0)) / len(x)))


@torch.no_grad()
def replay_checkpoint(path):
    """Return how much an output depends on a later input or on the targets, over how much it depends on its own input; and by how
    much other targets than the next token fit better, in nats."""
    model, state = load_run(path)
    size, choices = model.config.block_size, model.config.vocab_size

    def output(tokens, targets=None, training=False):
        torch.manual_seed(0)                            # for dropout and the like
        return model.train(training)(tokens, targets)[0]

    x, leaks = torch.randint(choices, (1, size), generator=torch.Generator().manual_seed(0)), []
    for at in (1, size - 1):                            # the token that changes
        changed = x.clone()
        changed[:, at] = (changed[:, at] + 1) % choices
        for training in (True, False):
            change = (output(changed, training=training) - output(x, training=training)).square().mean((0, 2)).sqrt()
            leaks.append(change[:at].max() / change[at])
    by_targets = (output(x, x) - output(x, x.roll(1))).square().mean((0, 2)).sqrt()
    leaks.append(by_targets.max() / change[-1])
    name = state['config']['dataset']
    tokens = np.fromfile(os.path.join('data', name, 'val.bin'), read_meta(name)['dtype'])     # not by code that may be edited
    starts = np.linspace(1, len(tokens) - size - max(AHEAD), 16).astype(int)
    rows = {ahead: torch.tensor(np.stack([tokens[i + ahead:i + ahead + size] for i in starts]).astype(np.int64))
            for ahead in AHEAD}
    logits = output(rows[0]).flatten(0, 1).float()
    losses = {ahead: F.cross_entropy(logits, targets.flatten()).item() for ahead, targets in rows.items()}
    return dict(future=torch.stack(leaks).max().item(), other_targets=losses[1] - min(losses[0] + COPY, losses[2], losses[3]))


script, keys, path, out = sys.argv[1:]
numbers = train(script, keys)
Path(out).write_text(json.dumps(numbers))
if os.path.exists(path):
    Path(out).write_text(json.dumps(numbers | replay_checkpoint(path)))
