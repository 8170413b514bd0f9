"""
A data set of text is a folder data/<name> with train.bin and val.bin, which hold tokens as plain uint16 or uint32, and
meta.json. This file reads a data set as batches, in an order that depends only on the seed, and writes one.
"""
import functools
import glob
import json
import os
from contextlib import contextmanager

import numpy as np
import torch

SPLITS = ('train', 'val')


# ----------------------------------------------------------------------------- reading

def load_meta(name):
    """The content of data/<name>/meta.json, or None if it is damaged. If it is missing, the error says how to make it."""
    folder = os.path.join('data', name)
    prepare = os.path.join(folder, 'prepare.py')
    path = os.path.join(folder, 'meta.json')
    if not os.path.exists(path):
        if os.path.exists(prepare):
            raise ValueError(f'{folder} is not prepared: run  python {prepare}')
        files = glob.glob('data/*/prepare.py') + glob.glob('data/*/meta.json')
        choices = sorted({os.path.basename(os.path.dirname(file)) for file in files})
        raise ValueError(f'dataset={name!r}: choose one of {", ".join(choices)}' if choices else
                         f'dataset={name!r}: there is no folder data here: run this from the root of the repository')
    try:
        with open(path, encoding='utf-8') as f:
            return json.load(f)
    except (ValueError, RecursionError):
        return None


def read_meta(name):
    """data/<name>/meta.json: vocab_size, tokenizer (with its chars, if that is 'char'), dtype, tokens of each split."""
    meta = load_meta(name)
    if isinstance(meta, dict) and 'images' in meta:
        raise ValueError(f'dataset={name!r} holds images, which are for --model=vit')
    try:
        meta = dict(vocab_size=int(meta['vocab_size']), tokenizer=str(meta['tokenizer']), chars=str(meta.get('chars', '')),
                    dtype=np.dtype(meta['dtype']), tokens={split: int(meta['tokens'][split]) for split in SPLITS})
        if meta['dtype'] in (np.uint16, np.uint32) and meta['vocab_size'] > 0:
            return meta
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f'{os.path.join("data", name, "meta.json")} is damaged: prepare {os.path.join("data", name)} again')


def check_size(path, wanted):
    found = os.path.getsize(path) if os.path.exists(path) else 0
    if found != wanted or not found:
        raise ValueError(f'{path} has {found} bytes, but meta.json wants {wanted}: prepare {os.path.dirname(path)} again')


class Split:
    """What Tokens and Images share: the order of `windows` windows, which start every `block_size` places in `length` places."""

    def order(self, first, count, seed):
        """Where windows number `first`, first + 1, … start, in an endless shuffled sequence that depends only on the seed. Each
        epoch of the sequence holds every window once, in its own order; all its windows are shifted by the same random offset."""
        numbers, places = np.divmod(np.arange(first, first + count), self.windows)
        starts = []
        for number in np.unique(numbers).tolist():
            shift, order = epoch(self.length, self.block_size, number, seed)
            starts += (shift + self.block_size * order[places[numbers == number]]).tolist()
        return starts

    def spread(self, batches, batch_size):
        """At most `batches` lists of batch_size starts, evenly spread over the split: always the same ones."""
        batch_size = min(batch_size, self.windows)
        batches = min(batches, self.windows // batch_size)
        starts = np.arange(batches * batch_size) * self.windows // (batches * batch_size) * self.block_size
        return starts.reshape(batches, batch_size)


class Tokens(Split):
    """One split of a data set: windows of block_size tokens, and for each token the next one as its target."""

    def __init__(self, name, split, block_size, vocab_size):
        meta = read_meta(name)
        self.path = os.path.join('data', name, f'{split}.bin')
        self.block_size, self.vocab_size = block_size, vocab_size
        if meta['vocab_size'] > vocab_size:
            raise ValueError(f'vocab_size={vocab_size} is less than the {meta["vocab_size"]} of dataset={name}: '
                             f'set --vocab_size={meta["vocab_size"]} or more')
        check_size(self.path, meta['tokens'][split] * meta['dtype'].itemsize)
        if meta['tokens'][split] <= block_size:
            raise ValueError(f'block_size={block_size} is too long for the {meta["tokens"][split]} tokens of {self.path}: '
                             f'at most {meta["tokens"][split] - 1}')
        self.tokens = np.memmap(self.path, dtype=meta['dtype'], mode='r')
        self.length = len(self.tokens)
        self.windows = (self.length - 1) // block_size          # that do not overlap

    def read(self, starts):
        """Windows that start at these tokens → inputs and targets, int64 (len(starts), block_size) each."""
        rows = np.stack([self.tokens[s:s + self.block_size + 1] for s in starts]).astype(np.int64)
        if rows.max() >= self.vocab_size:
            raise ValueError(f'{self.path} holds token {rows.max()}, which is outside of vocab_size={self.vocab_size}: '
                             f'was it made by another tokenizer? Prepare the data again')
        rows = torch.from_numpy(rows)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def shuffled(self, first, count, seed):
        """Windows number `first`, first + 1, … of the sequence of `order`, as `read` gives them."""
        return self.read(self.order(first, count, seed))


LARGE = 2 ** 24         # windows; a permutation of so many numbers takes 128 MiB on every rank, and seconds


class Permutation:
    """A random permutation of range(n) that computes the entries asked for, and takes no memory: a Feistel network over a power
    of four that holds n, repeated until the number is below n (Black and Rogaway 2002)."""

    def __init__(self, n, rng):
        self.n, self.bits = n, np.uint64(((n - 1).bit_length() + 1) // 2)
        self.keys = rng.integers(2 ** 63, size=6, dtype=np.uint64)

    def __getitem__(self, places):
        entries = np.array(places, dtype=np.uint64)
        left_over = np.full(entries.shape, True)
        while left_over.any():
            entries[left_over] = self.rounds(entries[left_over])
            left_over = entries >= self.n
        return entries.astype(np.int64)

    def rounds(self, x):
        mask = (np.uint64(1) << self.bits) - np.uint64(1)
        left, right = x >> self.bits, x & mask
        for key in self.keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)       # as splitmix64 mixes (Steele et al. 2014)
            mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ (mixed >> np.uint64(32) & mask)
        return left << self.bits | right


@functools.lru_cache(maxsize=4)
def epoch(tokens, block_size, number, seed):
    rng = np.random.default_rng([seed, number])
    shift = rng.integers((tokens - 1) % block_size + 1)         # not so far that a window is lost at the end
    windows = (tokens - 1) // block_size
    return int(shift), rng.permutation(windows) if windows < LARGE else Permutation(windows, rng)


# ----------------------------------------------------------------------------- writing

@contextmanager
def replacing(folder, names):
    """Yields {name: path} of temporary files to write; meta.json must be the last name. The old files stay until all are written.
    Then the old meta.json is removed first, and the new one comes last. An error or interrupt leaves no partial files."""
    path, new = {name: os.path.join(folder, name) for name in names}, not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        yield {name: file + '.tmp' for name, file in path.items()}
        if os.path.exists(path['meta.json']):
            os.remove(path['meta.json'])
        for name in path.values():
            os.replace(name + '.tmp', name)
    finally:
        for name in path.values():
            if os.path.exists(name + '.tmp'):
                os.remove(name + '.tmp')
        if new and not os.listdir(folder):
            os.rmdir(folder)


def write_tokens(folder, splits, vocab_size, tokenizer, **more):
    """Writes train.bin, val.bin and meta.json, as `replacing` does. meta.json takes `more` too. `splits` maps each split to an
    iterable of integer arrays or bytes."""
    dtype = np.uint16 if vocab_size <= 2 ** 16 else np.uint32
    tokens = {}
    with replacing(folder, [*(f'{split}.bin' for split in SPLITS), 'meta.json']) as path:
        for split in SPLITS:
            tokens[split] = 0
            with open(path[f'{split}.bin'], 'wb') as f:
                for ids in splits[split]:
                    ids = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
                    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                        raise ValueError(f'{folder}: ids from {ids.min()} to {ids.max()} are not within vocab_size={vocab_size}')
                    ids.astype(dtype).tofile(f)
                    tokens[split] += len(ids)
                f.flush()
                os.fsync(f.fileno())
            if not tokens[split]:
                raise ValueError(f'{folder}: there is nothing to write into {split}.bin')
        meta = dict(vocab_size=vocab_size, tokenizer=tokenizer, **more, dtype=np.dtype(dtype).name, tokens=tokens)
        with open(path['meta.json'], 'w', encoding='utf-8') as f:
            json.dump(meta, f, indent=1)
    print(f'{folder}: {tokens["train"]:,} training and {tokens["val"]:,} validation tokens')
