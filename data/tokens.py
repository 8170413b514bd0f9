"""
Read windows of a data set of text, in an order that depends only on the seed. A data set is a folder data/<name>, which
data/write.py describes.
"""
import functools
import json
import os
from pathlib import Path

import numpy as np
import torch

from data.nanogpt import adopt
from data.write import SPLITS, TEXT_SPLITS, sample_hash


def is_prepared(name):
    return os.path.exists(os.path.join('data', name, 'meta.json'))


def read_meta(name):
    """Read data/<name>/meta.json: vocab_size, tokenizer (and its chars, for 'char'), dtype, tokens per split, fingerprint, and a
    hash per file; data of another program may lack these two. Raise ValueError, with the remedy, if the file is missing or
    damaged."""
    folder = os.path.join('data', name)
    if os.path.isabs(name) or '..' in name.split(os.sep):
        raise ValueError(f'dataset={name!r}: must be the name of a folder in data/')
    if not is_prepared(name) and not adopt(folder):
        if not os.path.isdir('data'):
            raise ValueError(f'dataset={name!r}: there is no folder data here: run this from the root of the repository')
        script = f'{folder}/prepare.py' if os.path.exists(f'{folder}/prepare.py') else f'data/prepare.py --name={name}'
        prepared = ', '.join(sorted(path.parent.name for path in Path('data').glob('*/meta.json'))) or 'none yet'
        raise ValueError(f'dataset={name!r} is not prepared: run  python {script}  or choose one that is: {prepared}')
    try:
        meta = json.loads(Path(folder, 'meta.json').read_text(encoding='utf-8'))
        tokens = {split: int(meta['tokens'][split]) for split in TEXT_SPLITS if split in SPLITS or split in meta['tokens']}
        return {'chars': '', 'fingerprint': '', 'samples': {}, **meta, 'dtype': np.dtype(meta['dtype']), 'tokens': tokens,
                'vocab_size': int(meta['vocab_size']), 'tokenizer': str(meta['tokenizer'])}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f'{folder}/meta.json is damaged, prepare {folder} again: {error}') from error


@functools.lru_cache(maxsize=4)
def epoch(length, block_size, number, seed):
    """Return an epoch's shift, in tokens, of all windows of block_size tokens, and the order of the windows."""
    rng = np.random.default_rng([seed, number])
    shift = int(rng.integers((length - 1) % block_size + 1))            # small enough to keep the last window
    return shift, rng.permutation((length - 1) // block_size)


def shuffled_starts(length, block_size, first, count, seed):
    """Return the starts of windows number `first`, first + 1, … in an endless sequence of windows of `length` tokens, in random
    order that depends only on the seed. Each epoch holds every window once, and shifts all of its windows by the same
    offset."""
    starts, windows = [], (length - 1) // block_size
    for number in range(first, first + count):
        shift, order = epoch(length, block_size, number // windows, seed)
        starts.append(shift + block_size * int(order[number % windows]))
    return starts


def eval_starts(windows, block_size, batches, batch_size):
    """Return at most `batches` lists of batch_size starts, evenly spread over the windows: always the same ones."""
    batch_size = min(batch_size, windows)
    batches = min(batches, windows // batch_size)
    starts = np.arange(batches * batch_size) * windows // (batches * batch_size) * block_size
    return starts.reshape(batches, batch_size)


class Tokens:
    """One split of a data set: its `tokens`, an array, and `windows`, how many windows of block_size fit without overlap."""

    def __init__(self, name, split, block_size, vocab_size):
        meta = read_meta(name)
        if split not in meta['tokens']:
            raise ValueError(f'split={split}: dataset={name} has none, only {" and ".join(meta["tokens"])}')
        self.path, self.fingerprint = os.path.join('data', name, f'{split}.bin'), meta['fingerprint']
        self.block_size, self.vocab_size, self.length = block_size, vocab_size, meta['tokens'][split]
        if meta['vocab_size'] > vocab_size:
            raise ValueError(f'vocab_size={vocab_size} is less than the {meta["vocab_size"]} of dataset={name}: '
                             f'set --vocab_size={meta["vocab_size"]} or more')
        size, hashed = meta['dtype'].itemsize * self.length, meta['samples'].get(f'{split}.bin')
        if not os.path.exists(self.path) or os.path.getsize(self.path) != size or hashed not in (None, sample_hash(self.path)):
            raise ValueError(f'{self.path} is not the file of {size} bytes that belongs to data/{name}/meta.json: put that one '
                             f'back, or prepare data/{name} again, without meta.json if another program does')
        self.tokens = np.memmap(self.path, meta['dtype'], 'r')
        if self.length <= block_size:
            raise ValueError(f'block_size={block_size} is too long for the {self.length} tokens of {self.path}: '
                             f'at most {self.length - 1}')
        self.windows = (self.length - 1) // block_size

    def read(self, starts):
        """Return inputs and targets, int64 (len(starts), block_size) each, of the windows that start at these tokens. Training,
        evaluation and measurements all read batches here. Raise ValueError for a token beyond the vocabulary."""
        rows = np.stack([self.tokens[i:i + self.block_size + 1] for i in starts]).astype(np.int64)
        if rows.max() >= self.vocab_size:               # on a GPU, the embedding's kernel would crash
            raise ValueError(f'{self.path} has the token {rows.max()}, beyond vocab_size={self.vocab_size}: prepare '
                             f'{os.path.dirname(self.path)} again')
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    def shuffled(self, first, count, seed):
        """Return the batch of windows number `first`, first + 1, … in the order of shuffled_starts."""
        return self.read(shuffled_starts(self.length, self.block_size, first, count, seed))

    def eval_batches(self, batches, batch_size):
        """Return the starts of an evaluation's batches, see eval_starts."""
        return eval_starts(self.windows, self.block_size, batches, batch_size)
