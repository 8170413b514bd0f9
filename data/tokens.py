"""
A data set of text is a folder data/<name> with train.bin, val.bin and perhaps test.bin, which hold tokens as plain uint16 or
uint32, and meta.json. This file reads a data set as batches, in an order that depends only on the seed, and writes one.
"""
import functools
import glob
import hashlib
import json
import math
import os
import signal
import sys
from contextlib import contextmanager, suppress

import numpy as np
import torch

from engine.lock import lock_folder

SPLITS = ('train', 'val')               # of every data set
TEXT_SPLITS = (*SPLITS, 'test')         # text may have a third one, which no choice is made on
KINDS = {'tokens': 'gpt', 'images': 'vit'}      # what data sets hold, a key of meta.json → the model that is trained on it


# ----------------------------------------------------------------------------- reading

def a_count(value):
    return type(value) is int and 0 < value < 2 ** 63


def a_text(value):
    return isinstance(value, str)


def counts(value):
    return isinstance(value, dict) and {*SPLITS} <= value.keys() <= {*TEXT_SPLITS} and all(map(a_count, value.values()))


TOKENS = dict(vocab_size=a_count, tokenizer=a_text, chars=a_text, dtype=('uint16', 'uint32').__contains__, tokens=counts,
              fingerprint=a_text)


def is_prepared(name):
    return os.path.exists(os.path.join('data', name, 'meta.json'))


def load_meta(name, kind, wants, fits, **defaults):
    """data/<name>/meta.json, of a data set of this kind, as {key: value}: the keys of `wants`, {key: whether a value is right},
    whose values together pass fits(meta). Keys with a default may be missing. ValueError if the file is missing, with how to
    make it, if it is damaged, or if it is of another kind."""
    folder = os.path.join('data', name)
    prepare = os.path.join(folder, 'prepare.py')
    path = os.path.join(folder, 'meta.json')
    if not is_prepared(name):
        if os.path.exists(prepare):
            raise ValueError(f'{folder} is not prepared: run  python {prepare}')
        files = glob.glob('data/*/prepare.py') + glob.glob('data/*/meta.json')
        choices = sorted({os.path.basename(os.path.dirname(file)) for file in files})
        raise ValueError(f'dataset={name!r}: choose one of {", ".join(choices)}' if choices else
                         f'dataset={name!r}: there is no folder data here: run this from the root of the repository')
    meta = None
    if os.path.isfile(path):
        try:
            with open(path, encoding='utf-8') as f:
                meta = json.load(f)
        except (ValueError, RecursionError):
            pass
    if isinstance(meta, dict):
        for other, model in KINDS.items():
            if other in meta and kind not in meta:
                raise ValueError(f'dataset={name!r} holds {other}, which are for --model={model}')
        meta = {**defaults, **meta}
        if all(key in meta and right(meta[key]) for key, right in wants.items()) and fits(meta):
            return {key: meta[key] for key in wants}
    raise ValueError(f'{path} is damaged: prepare {folder} again')


def read_meta(name):
    """data/<name>/meta.json of tokens: vocab_size, tokenizer (with its chars, if that is 'char'), dtype, tokens of each split,
    and the fingerprint of all of it ('' in data of older versions). The tokenizer '.' there is the data set's own folder, here
    data/<name>."""
    def fits(meta):
        return meta['tokenizer'] != 'char' or len({*meta['chars']}) == len(meta['chars']) == meta['vocab_size']

    meta = load_meta(name, 'tokens', TOKENS, fits, chars='', fingerprint='')
    own = dict(tokenizer=os.path.join('data', name)) if meta['tokenizer'] == '.' else {}
    return {**meta, **own, 'dtype': np.dtype(meta['dtype'])}


def check_size(path, wanted):
    found = os.path.getsize(path) if os.path.exists(path) else 0
    if found != wanted or not found:
        raise ValueError(f'{path} has {found} bytes, but meta.json wants {wanted}: prepare {os.path.dirname(path)} again')


class Stored:
    """The array of `count` items of this shape in a file. [i] and [i:j] read items when they are asked for. ValueError if the
    file has become shorter, where np.memmap, which is no faster, would end the process by SIGBUS."""

    def __init__(self, path, dtype, count, shape=()):
        self.path, self.dtype, self.count, self.shape = path, np.dtype(dtype), count, shape
        self.item = self.dtype.itemsize * math.prod(shape)      # bytes
        self.file = open(path, 'rb', buffering=0)

    def __len__(self):
        return self.count

    def __getitem__(self, which):
        if not isinstance(which, slice):
            return self.read([range(self.count)[which]])[0, 0]         # an IndexError behind the end
        first, end, _ = which.indices(self.count)
        return self.read([first], max(0, end - first))[0]

    def read(self, firsts, length=1):
        """`length` items from each of `firsts` on → (len(firsts), length, *shape)"""
        rows = np.empty((len(firsts), length, *self.shape), self.dtype)
        for row, first in zip(rows.view(np.uint8).reshape(len(firsts), length * self.item), firsts):
            done = 0
            while done < len(row):
                count = os.preadv(self.file.fileno(), [row[done:]], first * self.item + done)
                if not count:
                    raise ValueError(f'{self.path} has become shorter while it was read: prepare {os.path.dirname(self.path)} '
                                     f'again')
                done += count
        return rows


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

    def read_padded(self, starts, size):
        """As `read`, but `size` windows: after those asked for, they come again with −1 as their targets, and do not count."""
        x, y = self.read(np.resize(starts, size))
        y[len(starts):] = -1
        return x, y


class Tokens(Split):
    """One split of a data set: windows of block_size tokens, and for each token the next one as its target."""

    def __init__(self, name, split, block_size, vocab_size):
        meta = read_meta(name)
        self.path, self.fingerprint = os.path.join('data', name, f'{split}.bin'), meta['fingerprint']
        self.block_size, self.vocab_size = block_size, vocab_size
        if meta['vocab_size'] > vocab_size:
            raise ValueError(f'vocab_size={vocab_size} is less than the {meta["vocab_size"]} of dataset={name}: '
                             f'set --vocab_size={meta["vocab_size"]} or more')
        check_size(self.path, meta['tokens'][split] * meta['dtype'].itemsize)
        if meta['tokens'][split] <= block_size:
            raise ValueError(f'block_size={block_size} is too long for the {meta["tokens"][split]} tokens of {self.path}: '
                             f'at most {meta["tokens"][split] - 1}')
        self.tokens = Stored(self.path, meta['dtype'], meta['tokens'][split])
        self.length = len(self.tokens)
        self.windows = (self.length - 1) // block_size          # that do not overlap

    def read(self, starts):
        """Windows that start at these tokens → inputs and targets, int64 (len(starts), block_size) each."""
        rows = self.tokens.read(starts, self.block_size + 1).astype(np.int64)
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

def end_by_exit(number, frame):
    signal.signal(number, signal.SIG_IGN)               # schedulers may send it more than once
    sys.exit(128 + number)


@contextmanager
def preparing(folder):
    """Makes the folder, and lets no other process prepare data there meanwhile (ValueError). SIGTERM and SIGHUP end the process
    as Ctrl-C does, so that what was begun is removed. Only main threads can catch them."""
    new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    lock = lock_folder(folder, 'preparing data')
    caught = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end_by_exit)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):               # on a disk without locks another process may have been here
            os.remove(lock.name)
        lock.close()
        if new and not os.listdir(folder):
            os.rmdir(folder)
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def replacing(folder, names, others=()):
    """Yields {name: path} of temporary files to write. The old files stay until all are written. Then the old file of the last
    name, which is meta.json for a data set, is removed first, and the new one comes last. Between, the old files of `others` that
    are not written anew are removed. An error or interrupt leaves no partial files."""
    path = {name: os.path.join(folder, name) for name in names}
    try:
        yield {name: file + '.tmp' for name, file in path.items()}
        if os.path.exists(path[names[-1]]):
            os.remove(path[names[-1]])
        for name in {*others} - {*names}:
            with suppress(FileNotFoundError):
                os.remove(os.path.join(folder, name))
        for name in path.values():
            os.replace(name + '.tmp', name)
    finally:
        for name in path.values():
            if os.path.exists(name + '.tmp'):
                os.remove(name + '.tmp')


def write_tokens(folder, splits, vocab_size, tokenizer, beside=None, fingerprint='', **more):
    """Writes train.bin, val.bin, test.bin if `splits` has it, and meta.json, as `replacing` does. meta.json takes `more` too.
    `splits` maps each split to an iterable of integer arrays or bytes. `beside` are other files to write there, {name: bytes}.
    ValueError for a split of fewer than two tokens, an input and its target, and for another fingerprint than the one that is
    given, if any."""
    dtype = np.uint16 if vocab_size <= 2 ** 16 else np.uint32
    tokens, content = {}, hashlib.blake2b(digest_size=16)
    names, beside = [split for split in TEXT_SPLITS if split in splits], beside or {}
    with preparing(folder), replacing(folder, [*(f'{split}.bin' for split in names), *beside, 'meta.json'], ['test.bin']) as path:
        for split in names:
            tokens[split] = 0
            with open(path[f'{split}.bin'], 'wb') as f:
                for ids in splits[split]:
                    ids = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
                    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                        raise ValueError(f'{folder}: ids from {ids.min()} to {ids.max()} are not within vocab_size={vocab_size}')
                    ids = ids.astype(dtype)
                    ids.tofile(f)
                    content.update(ids)
                    tokens[split] += len(ids)
                f.flush()
                os.fsync(f.fileno())
            if tokens[split] < 2:
                raise ValueError(f'{folder}: {tokens[split]} tokens are too few for {split}.bin, which needs an input and its '
                                 f'target: give more text' + (', or a larger part of it to validation' if split == 'val' else ''))
        for name, data in beside.items():
            with open(path[name], 'wb') as f:
                f.write(data)
        meta = dict(vocab_size=vocab_size, tokenizer=tokenizer, **more, dtype=np.dtype(dtype).name, tokens=tokens)
        content.update(json.dumps(meta).encode())
        if fingerprint not in ('', content.hexdigest()):
            raise ValueError(f'{folder}: this data has the fingerprint {content.hexdigest()}, where {fingerprint} is expected: '
                             f'another archive, or another version of this code or of tokenizers, has given other tokens')
        with open(path['meta.json'], 'w', encoding='utf-8') as f:
            json.dump({**meta, 'fingerprint': content.hexdigest()}, f, indent=1)
    *some, last = [f'{tokens[split]:,} {kind}' for split, kind in zip(names, ('training', 'validation', 'test'))]
    print(f'{folder}: {", ".join(some)} and {last} tokens, of a vocabulary of {vocab_size:,}')
