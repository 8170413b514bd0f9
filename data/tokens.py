"""
A data set of text is a folder data/<name> with train.bin, val.bin and perhaps test.bin, which hold tokens as plain uint16 or
uint32, and meta.json. This file reads windows of a data set, in an order that depends only on the seed, and writes a data set.
"""
import errno
import functools
import glob
import hashlib
import json
import os
from contextlib import contextmanager, suppress

import numpy as np
import torch

from data.lock import lock_folder

SPLITS = ('train', 'val')               # of every data set
TEXT_SPLITS = (*SPLITS, 'test')         # text may have a test split, which no decision depends on
SAMPLES, SAMPLE_SIZE = 64, 2 ** 14      # blocks of a file that each start checks, and bytes per block


# ----------------------------------------------------------------------------- reading

def is_prepared(name):
    return os.path.exists(os.path.join('data', name, 'meta.json'))


def load_meta(name):
    """Read data/<name>/meta.json. Data of another program may have the fingerprint '' and no samples. Raise ValueError, with the
    remedy, if the file is missing or damaged."""
    folder = os.path.join('data', name)
    if os.path.isabs(name) or '..' in name.split(os.sep):
        raise ValueError(f'dataset={name!r}: wants the name of a folder in data/')
    if not is_prepared(name):
        from data.nanogpt import adopt  # here, for it imports this file
        if adopt(folder):
            return load_meta(name)
        if os.path.exists(script := f'{folder}/prepare.py'):
            raise ValueError(f'{folder} is not prepared: run  python {script}')
        if not os.path.isdir('data'):
            raise ValueError(f'dataset={name!r}: there is no folder data here: run this from the root of the repository')
        prepared = sorted(os.path.basename(os.path.dirname(file)) for file in glob.glob('data/*/meta.json'))
        raise ValueError(f'dataset={name!r}: there is no {folder}/meta.json: choose one that is prepared, '
                         f'{", ".join(prepared) or "of which there is none yet"}; docs/data.md lists others')
    try:
        with open(os.path.join(folder, 'meta.json'), encoding='utf-8') as f:
            return {'fingerprint': '', 'samples': {}, 'chars': '', **json.load(f)}
    except (ValueError, TypeError) as error:
        raise ValueError(f'{folder}/meta.json is damaged, prepare {folder} again: {error}') from error


def read_meta(name):
    """Read data/<name>/meta.json of tokens: vocab_size, tokenizer (and its chars, for 'char'), dtype, tokens per split, and the
    fingerprint."""
    meta = load_meta(name)
    try:
        return dict(
            meta, dtype=np.dtype(meta['dtype']), vocab_size=int(meta['vocab_size']),
            tokens={split: int(meta['tokens'][split]) for split in TEXT_SPLITS if split in SPLITS or split in meta['tokens']},
            tokenizer=str(meta['tokenizer']))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f'data/{name}/meta.json is damaged, prepare data/{name} again: {error}') from error


def sample_hash(path, size):
    """Hash evenly spread blocks of the first `size` bytes of a file; up to 1 MiB, all of them."""
    content, last = hashlib.blake2b(digest_size=16), max(0, size - SAMPLE_SIZE)
    with open(path, 'rb') as f:
        for i in range(SAMPLES):
            f.seek(last * i // (SAMPLES - 1))
            content.update(f.read(min(size, SAMPLE_SIZE)))
    return content.hexdigest()


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


def spread_starts(windows, block_size, batches, batch_size):
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
        size, file_size = meta['dtype'].itemsize * self.length, os.path.getsize(self.path) if os.path.exists(self.path) else 0
        if file_size != size or not size:
            raise ValueError(f'{self.path} has {file_size} bytes, but meta.json wants {size}: prepare data/{name} again')
        if meta['samples'].get(f'{split}.bin') not in (None, sample_hash(self.path, size)):
            raise ValueError(f'{self.path} is not the file that belongs to data/{name}/meta.json: put that one back, '
                             f'or prepare data/{name} again, without meta.json if another program does')
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

    def spread(self, batches, batch_size):
        """Return the starts of an evaluation's batches, see spread_starts."""
        return spread_starts(self.windows, self.block_size, batches, batch_size)


# ----------------------------------------------------------------------------- writing

@contextmanager
def replacing(folder, names):
    """Make the folder, and lock it against other processes that prepare data there (ValueError). Yield {name: path} of temporary
    files to write. The old data stay until all are written; then the new files take their place. An error or Ctrl-C leaves no
    partial files; a kill leaves temporary files, which nothing reads."""
    os.makedirs(folder, exist_ok=True)
    path = {name: os.path.join(folder, name) for name in names}
    with lock_folder(folder, 'preparing data') as lock:
        try:
            yield {name: f'{file}.tmp' for name, file in path.items()}
            for name in *names, 'test.bin':             # at no moment are all .bin files there without meta.json
                with suppress(FileNotFoundError):
                    os.remove(os.path.join(folder, name))
            for file in reversed(path.values()):
                os.replace(f'{file}.tmp', file)
        finally:
            for file in [*(f'{file}.tmp' for file in path.values()), lock.name]:
                with suppress(FileNotFoundError):
                    os.remove(file)


@contextmanager
def writing(path):
    """Open a file to be written in binary, and to be on the disk when this ends. A full disk's error names the file."""
    try:
        with open(path, 'wb') as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = path
        raise


def write_tokens(folder, splits, vocab_size, tokenizer, fingerprint='', **more):
    """Write train.bin, val.bin, test.bin if `splits` has it, and meta.json, as `replacing` does. `splits` maps each split to an
    iterable of integer arrays or bytes. `more`: further entries of meta.json. Raise ValueError for a split of fewer than two
    tokens, an input and its target, or for a fingerprint other than the given one, if any."""
    dtype = np.uint16 if vocab_size <= 2 ** 16 else np.uint32
    tokens, content = {}, hashlib.blake2b(digest_size=16)
    names = [split for split in TEXT_SPLITS if split in splits]
    with replacing(folder, [*(f'{split}.bin' for split in names), 'meta.json']) as path:
        for split in names:
            tokens[split] = 0
            with writing(path[f'{split}.bin']) as f:
                for ids in splits[split]:
                    ids = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
                    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                        raise ValueError(f'{folder}: ids from {ids.min()} to {ids.max()} are not within vocab_size={vocab_size}')
                    ids = ids.astype(dtype)
                    f.write(ids)
                    content.update(ids)
                    tokens[split] += len(ids)
            if tokens[split] < 2:
                raise ValueError(f'{folder}: {tokens[split]} tokens are too few for {split}.bin, which needs an input and its '
                                 f'target: give more text' + (', or a larger part of it to validation' if split == 'val' else ''))
        meta = dict(vocab_size=vocab_size, tokenizer=tokenizer, **more, dtype=np.dtype(dtype).name, tokens=tokens)
        content.update(json.dumps(meta).encode())
        if fingerprint not in ('', content.hexdigest()):
            raise ValueError(f'{folder}: this data has the fingerprint {content.hexdigest()}, where {fingerprint} is expected: '
                             f'another archive, or another version of this code, has given other tokens')
        samples = {f'{split}.bin': sample_hash(path[f'{split}.bin'], tokens[split] * dtype().itemsize) for split in names}
        with writing(path['meta.json']) as f:
            f.write(json.dumps({**meta, 'fingerprint': content.hexdigest(), 'samples': samples}, indent=1).encode())
    *some, last = [f'{tokens[split]:,} {kind}' for split, kind in zip(names, ('training', 'validation', 'test'))]
    print(f'{folder}: {", ".join(some)} and {last} tokens, of a vocabulary of {vocab_size:,}')
