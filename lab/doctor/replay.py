"""What only a replay decides: whether a token sees the future, and whether a spike is of its batch or of the weights."""
from configurator import TRAIN, script_of

import os
import re
from statistics import fmean

import torch

from data.tokens import Tokens
from engine.checkpoint import checkpoint_paths, load_run
from engine.code import code_hashes

NEIGHBOURS = 3          # iterations before and after a spike, whose batches its batch is compared with


def can_replay(case):
    """Return whether the code at hand is the run's, so that its weights mean the same here."""
    return script_of(case.config) == 'train.py' and case.about.get('code') == code_hashes(TRAIN)


@torch.no_grad()
def add_future(case):
    """Set case.future to (iteration, how much the last input changes earlier outputs, over how much it changes its own)."""
    path = os.path.join(case.folder, 'ckpt.pt')
    if not can_replay(case) or not os.path.exists(path):
        return
    model, state = load_run(path)
    x = torch.randint(model.config.vocab_size, (2, model.config.block_size), generator=torch.Generator().manual_seed(0))
    x[1, :-1], x[1, -1] = x[0, :-1], (x[0, -1] + 1) % model.config.vocab_size
    change = (model.eval()(x)[0]).diff(dim=0).square().mean((0, 2)).sqrt()
    case.future = state['iter'], (change[:-1].max() / change[-1]).item()


@torch.no_grad()
def loss_of(case, model, data, it):
    """Return the mean loss of an iteration's first micro-batches."""
    steps, size = case.config['gradient_accumulation_steps'], case.config['batch_size']
    numbers = range(it * steps, it * steps + min(4, steps))
    return fmean(model(*data.shuffled(number * size, size, case.config['data_seed']))[1].item() for number in numbers)


def replay_spike(case, it):
    """Return a sentence about the batch of iteration `it`, on the weights of the kept checkpoints before and after."""
    if not can_replay(case):
        return 'not replayed: the code at hand is not the run\'s'
    names = [re.search(r'ckpt-(\d+)\.pt$', path) for path in checkpoint_paths(case.folder)]
    kept = sorted((int(name[1]), name.string) for name in names if name)
    around = [pair for pair in kept if pair[0] <= it][-1:] + [pair for pair in kept if pair[0] > it][:1]
    if not around:
        return 'not replayed: --keep_every=50 keeps the checkpoints for it'
    texts, is_odd = [], False
    for at, path in around:
        model = load_run(path)[0].eval()
        data = Tokens(case.config['dataset'], 'train', model.config.block_size, model.config.vocab_size)
        losses = {i: loss_of(case, model, data, i) for i in range(max(0, it - NEIGHBOURS), it + NEIGHBOURS + 1)}
        own = losses.pop(it)
        is_odd = is_odd or own > 1.3 * max(losses.values())
        texts.append(f'{own:.3g} on the weights of iteration {at} ({min(losses.values()):.3g} to {max(losses.values()):.3g})')
    verdict = 'that batch is odd' if is_odd else 'that batch is an ordinary one: the weights moved, or another batch came'
    return f'replayed: the data\'s batch of iteration {it} (its neighbours) has the loss {", ".join(texts)}; {verdict}'
