"""
Write a data set of text: a folder data/<name> with train.bin, val.bin and perhaps test.bin, which hold tokens as plain uint16 or
uint32, and meta.json.
"""
import hashlib
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from data.lock import lock_folder

SPLITS = ('train', 'val')               # of every data set
TEXT_SPLITS = (*SPLITS, 'test')         # text may have a test split, which no decision depends on
SAMPLES, SAMPLE_SIZE = 64, 2 ** 14      # blocks of a file that each start checks, and bytes per block


def sample_hash(path):
    """Hash evenly spread blocks of a file; up to 1 MiB, all of it."""
    content, last = hashlib.blake2b(digest_size=16), max(0, os.path.getsize(path) - SAMPLE_SIZE)
    with open(path, 'rb') as f:
        for i in range(SAMPLES):
            f.seek(last * i // (SAMPLES - 1))
            content.update(f.read(SAMPLE_SIZE))
    return content.hexdigest()


def write_tokens(folder, splits, vocab_size, tokenizer, fingerprint='', **more):
    """Write train.bin, val.bin, test.bin if `splits` has it, and meta.json. `splits` maps each split to an iterable of integer
    arrays or bytes. `more`: further entries of meta.json. Raise ValueError for a split of fewer than two tokens, an input and its
    target, for a fingerprint other than the given one, if any, or if another process prepares data there. The old data stay until
    all is written; an error or Ctrl-C leaves them as they were, and a kill a folder *.tmp, which nothing reads."""
    dtype = np.uint16 if vocab_size <= 2 ** 16 else np.uint32
    tokens, samples, content = {}, {}, hashlib.blake2b(digest_size=16)
    os.makedirs(folder, exist_ok=True)
    with lock_folder(folder, 'preparing data'), TemporaryDirectory('.tmp', dir=folder) as new:
        for split in [split for split in TEXT_SPLITS if split in splits]:
            name, tokens[split] = f'{split}.bin', 0
            with open(f'{new}/{name}', 'wb') as f:
                for ids in splits[split]:
                    ids = np.frombuffer(ids, np.uint8) if isinstance(ids, bytes) else np.asarray(ids)
                    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                        raise ValueError(f'{folder}: ids from {ids.min()} to {ids.max()} are not within vocab_size={vocab_size}')
                    ids = ids.astype(dtype)
                    f.write(ids)
                    content.update(ids)
                    tokens[split] += len(ids)
            if tokens[split] < 2:
                raise ValueError(f'{folder}: {tokens[split]} tokens are too few for {name}, which needs an input and its target: '
                                 f'give more text' + (', or a larger part of it to validation' if split == 'val' else ''))
            samples[name] = sample_hash(f'{new}/{name}')
        meta = dict(vocab_size=vocab_size, tokenizer=tokenizer, **more, dtype=np.dtype(dtype).name, tokens=tokens)
        content.update(json.dumps(meta).encode())
        if fingerprint not in ('', content.hexdigest()):
            raise ValueError(f'{folder}: this data has the fingerprint {content.hexdigest()}, where {fingerprint} is expected: '
                             f'another archive, or another version of this code, has given other tokens')
        Path(new, 'meta.json').write_text(json.dumps({**meta, 'fingerprint': content.hexdigest(), 'samples': samples}, indent=1))
        for split in TEXT_SPLITS:                       # at no moment are all .bin files there without meta.json
            Path(folder, f'{split}.bin').unlink(missing_ok=True)
        for name in ('meta.json', *samples):
            os.replace(f'{new}/{name}', f'{folder}/{name}')
    counts = ', '.join(f'{count:,} in {split}.bin' for split, count in tokens.items())
    print(f'{folder}: {counts}, tokens of a vocabulary of {vocab_size:,}')
