"""Tell whether a batch or the weights caused a spike, by the checkpoints before and after it."""
from configurator import TRAIN, script_of

from statistics import median
from time import monotonic

import torch

from data.tokens import Tokens
from engine.checkpoint import checkpoint_paths, load_checkpoint, load_run
from engine.code import code_hashes

AROUND = 5              # micro-batches before and after the spike's, with which these are compared
SECONDS = 60            # for one checkpoint; the micro-batches that fit count
ODD = 1.3               # factor over the median loss


@torch.no_grad()
def replay_spike(case, it):
    """Return a sentence about the batches between the row before iteration `it` of the log and this one."""
    if script_of(case.config) != 'train.py':
        return 'not replayed: only batches of train.py are'
    if case.about.get('code') != code_hashes(TRAIN):
        return 'not replayed: the code at hand is not the run\'s'
    steps, size, seed = (case.config[key] for key in ('gradient_accumulation_steps', 'batch_size', 'data_seed'))
    earlier = [row['iter'] for row in case.rows if 'loss' in row and row['iter'] < it]
    first, end = steps * (max(earlier, default=it - 1) + 1), steps * (it + 1)       # numbers of micro-batches
    numbers = [*range(max(0, first - AROUND), first), *range(end, end + AROUND), *range(first, end)]
    try:
        paths = {load_checkpoint(path, mmap=True, whole=False)['iter']: path for path in checkpoint_paths(case.folder)}
        before, after = (sorted(at for at in paths if (at > it) == is_after) for is_after in (False, True))
        texts, is_odd = [], False
        for path in (paths[at] for at in before[-1:] + after[:1]):
            model, state = load_run(path)
            model.eval()
            data = Tokens(case.config['dataset'], 'train', model.config.block_size, model.config.vocab_size)
            losses, deadline = {}, monotonic() + SECONDS
            for number in numbers:
                if monotonic() < deadline:
                    losses[number] = model(*data.shuffled(number * size, size, seed))[1].item()
            tried = [loss for number, loss in losses.items() if first <= number < end]
            if not tried:
                return 'not replayed: it would take too long on this machine'
            is_odd |= max(tried) > ODD * median(losses.values())
            texts.append(f'{max(tried):.3g} by the weights of iteration {state["iter"]} (median, with those around, '
                         f'{median(losses.values()):.3g})')
    except (ValueError, OSError) as error:
        return f'not replayed: {error}'
    if not texts:
        return 'not replayed: there is no checkpoint'
    verdict = 'It is odd' if is_odd else 'It is ordinary: the weights moved, or an edit changed the batch'
    missing = '' if before else '; --keep_every=50 keeps weights from before a spike'
    return f'replayed: the largest loss of {len(tried)} of {end - first} micro-batches is {", ".join(texts)}. {verdict}{missing}'
