"""Is a spike of its batch, or of the weights? The weights before and after it tell, on its batch and on those around it."""
from configurator import TRAIN, script_of

import re
from statistics import fmean

import torch

from data.tokens import Tokens
from engine.checkpoint import checkpoint_paths, load_checkpoint, load_run
from engine.code import code_hashes

AROUND = 5              # iterations on either side, whose batches the spike's batch is compared with
BATCHES = 4             # micro-batches of an iteration, at most
ODD = 1.3               # factor over the largest loss around it


@torch.no_grad()
def replay_spike(case, it):
    """Return a sentence about the batch of iteration `it`, by the checkpoints before and after it."""
    if script_of(case.config) != 'train.py' or case.about.get('code') != code_hashes(TRAIN):
        return 'not replayed: the code at hand is not the run\'s'
    try:
        paths = {load_checkpoint(path, mmap=True, whole=False)['iter']: path for path in checkpoint_paths(case.folder)
                 if re.search(r'ckpt(-\d+)?\.pt$', path)}
        before, after = (sorted(at for at in paths if (at > it) == is_after) for is_after in (False, True))
        texts, is_odd = [], False
        steps, size = case.config['gradient_accumulation_steps'], case.config['batch_size']
        for at in before[-1:] + after[:1]:
            model = load_run(paths[at])[0].eval()
            data = Tokens(case.config['dataset'], 'train', model.config.block_size, model.config.vocab_size)
            losses = {i: fmean(model(*data.shuffled(number * size, size, case.config['data_seed']))[1].item()
                               for number in range(i * steps, i * steps + min(BATCHES, steps)))
                      for i in range(max(0, it - AROUND), it + AROUND + 1)}
            own, others = losses.pop(it), losses.values()
            is_odd |= own > ODD * max(others)
            texts.append(f'{own:.3g} by the weights of iteration {at} (batches around it {min(others):.3g} to {max(others):.3g})')
    except (ValueError, OSError) as error:
        return f'not replayed: {error}'
    verdict = 'odd' if is_odd else 'an ordinary one: the weights moved, or an edit changed the batch'
    missing = '' if before else '; --keep_every=50 keeps weights from before a spike'
    return f'replayed: the loss of its batch is {", ".join(texts)}. The batch is {verdict}{missing}' if texts else (
        'not replayed: there is no checkpoint')
