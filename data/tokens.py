"""
A data set of text is a folder data/<name> with train.bin, val.bin and perhaps test.bin, which hold tokens as plain uint16 or
uint32, and meta.json. This file reads windows of a data set, in an order that depends only on the seed, and writes a data set.
"""
import functools
import glob
import hashlib
import json
import os
import re
import signal
import sys
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


def prepare_command(name):
    """Return the command that prepares a data set, as its prepare.py states it, or '' for a data set of your own."""
    base, _, size = name.partition('-bpe')              # as pysource-bpe1024
    script = f'data/{base}/prepare.py'
    if not os.path.exists(script) or size and not size.isdecimal():
        return ''
    if size:
        return f'python {script} --bpe={size} --folder=data/{name}'
    with open(script, encoding='utf-8') as f:
        stated = re.search(rf'^ +(python {script}.*?)(?: +#|$)', f.read(), re.MULTILINE)
    return stated[1] if stated else f'python {script}'


def load_meta(name, holds='fingerprint'):
    """Read data/<name>/meta.json of a data set that has the key `holds`, such as 'tokens' or 'images'. Older data has the
    fingerprint ''. Raise ValueError, with the remedy, if the file is missing or damaged, or if the data set holds something
    else."""
    folder = os.path.join('data', name)
    if not is_prepared(name):
        if command := prepare_command(name):
            raise ValueError(f'{folder} is not prepared: run  {command}')
        if not os.path.isdir('data'):
            raise ValueError(f'dataset={name!r}: there is no folder data here: run this from the root of the repository')
        prepared = sorted(os.path.basename(os.path.dirname(file)) for file in glob.glob('data/*/meta.json'))
        raise ValueError(f'dataset={name!r}: choose one that is prepared, {", ".join(prepared) or "of which there is none yet"}; '
                         f'docs/data.md lists others')
    try:
        with open(os.path.join(folder, 'meta.json'), encoding='utf-8') as f:
            meta = {'fingerprint': '', **json.load(f)}
    except (ValueError, TypeError) as error:
        raise ValueError(f'{folder}/meta.json is damaged, prepare {folder} again: {error}') from error
    if holds not in meta:
        raise ValueError(f'dataset={name!r} holds no {holds}')
    return meta


def read_meta(name):
    """Read data/<name>/meta.json of tokens: vocab_size, tokenizer (and its chars, for 'char'), dtype, tokens per split, and the
    fingerprint. The tokenizer '.' means the data set's own folder, returned as data/<name>."""
    meta = {'chars': '', **load_meta(name, 'tokens')}
    try:
        return dict(
            meta, dtype=np.dtype(meta['dtype']), vocab_size=int(meta['vocab_size']),
            tokens={split: int(meta['tokens'][split]) for split in TEXT_SPLITS if split in SPLITS or split in meta['tokens']},
            tokenizer=os.path.join('data', name) if meta['tokenizer'] == '.' else str(meta['tokenizer']))
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


def map_file(path, dtype, shape, meta):
    """Memory-map a file of the data set with this meta.json. Raise ValueError if the file has another size or other content.
    Older data has no hashes to check the content."""
    folder, name = os.path.split(path)
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    file_size = os.path.getsize(path) if os.path.exists(path) else 0
    if file_size != size or not size:
        raise ValueError(f'{path} has {file_size} bytes, but meta.json wants {size}: prepare {folder} again')
    if name in meta.get('samples', {}) and meta['samples'][name] != sample_hash(path, size):
        raise ValueError(f'{path} is not the file that belongs to {folder}/meta.json: put that one back, '
                         f'or prepare {folder} again')
    return np.memmap(path, dtype, 'r', shape=shape)


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
        self.tokens = map_file(self.path, meta['dtype'], (self.length,), meta)
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

def end_by_exit(number, frame):
    signal.signal(number, signal.SIG_IGN)               # schedulers may send it more than once
    sys.exit(128 + number)


@contextmanager
def preparing(folder):
    """Make the folder, and lock it against other processes that prepare data there (ValueError). SIGTERM and SIGHUP end the
    process as Ctrl-C does, so that partial files are removed. Only the main thread can catch them."""
    new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    lock = lock_folder(folder, 'preparing data')
    caught = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end_by_exit)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):               # without locks, another process may have removed it
            os.remove(lock.name)
        lock.close()
        if new and not os.listdir(folder):
            os.rmdir(folder)
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def replacing(folder, names, others=()):
    """Yield {name: path} of temporary files to write. The old files stay until all are written. Then remove the old file of the
    last name, which is meta.json for a data set, and move the new files into place, that one last. In between, remove those of
    `others` that are not rewritten. An error or interrupt leaves no partial files."""
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
    """Write train.bin, val.bin, test.bin if `splits` has it, and meta.json, as `replacing` does. `splits` maps each split to an
    iterable of integer arrays or bytes. `beside`: other files to write there, {name: bytes}. `more`: further entries of
    meta.json. Raise ValueError for a split of fewer than two tokens, an input and its target, or for a fingerprint other than
    the given one, if any."""
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
        samples = {f'{split}.bin': sample_hash(path[f'{split}.bin'], tokens[split] * dtype().itemsize) for split in names}
        with open(path['meta.json'], 'w', encoding='utf-8') as f:
            json.dump({**meta, 'fingerprint': content.hexdigest(), 'samples': samples}, f, indent=1)
    *some, last = [f'{tokens[split]:,} {kind}' for split, kind in zip(names, ('training', 'validation', 'test'))]
    print(f'{folder}: {", ".join(some)} and {last} tokens, of a vocabulary of {vocab_size:,}')
