"""
Data that others have prepared: folders of nanoGPT, with train.bin and val.bin, and shards of llm.c and modded-nanogpt. The first
use of such a folder writes the meta.json that data/tokens.py reads.
"""
import glob
import hashlib
import json
import os
import pickle
import time
from pathlib import Path

import numpy as np

from data.write import SPLITS, sample_hash, write_tokens

GPT2 = dict(vocab_size=50257, tokenizer='gpt2')
HEADER = 1024               # bytes at the start of a shard: llm.c's number, its version for uint16, the count of tokens, zeros


class PlainUnpickler(pickle.Unpickler):
    """Unpickle numbers, strings, lists and dicts. Anything else could run code, and is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f'it would call {module}.{name}')


def read_characters(path):
    """Return vocab_size, tokenizer and chars for meta.json from nanoGPT's meta.pkl."""
    try:
        with open(path, 'rb') as f:
            table = PlainUnpickler(f).load()['itos']
        chars = ''.join(table[i] for i in range(len(table)))
        if len(chars) != len(table):
            raise ValueError('some are several characters')
    except Exception as error:                          # unpickling garbage fails in many ways
        raise ValueError(f"{path} is refused: not nanoGPT's table of characters ({type(error).__name__}: {error})") from None
    return dict(vocab_size=len(chars), tokenizer='char', chars=chars)


def describe(folder):
    """Write the meta.json of a folder with train.bin and val.bin. Raise ValueError for tokens beyond its vocabulary."""
    table, path = Path(folder, 'meta.pkl'), Path(folder, 'meta.json')
    meta = dict(read_characters(table) if table.exists() else GPT2, dtype='uint16', tokens={}, samples={})
    for split in SPLITS:
        ids = np.memmap(file := f'{folder}/{split}.bin', np.uint16, 'r')
        if not ids[1:10 ** 5:2].any():
            raise ValueError(f'{file} holds no tokens as uint16: do they have 32 or 64 bits, half of them 0?')
        if ids.max() >= meta['vocab_size']:
            raise ValueError(f'{file} has the token {ids.max()}, beyond the {meta["vocab_size"]} of {meta["tokenizer"]!r}: '
                             f'without meta.json, a .bin file must have the tokens of GPT-2 as uint16, or those of meta.pkl')
        meta['tokens'][split], meta['samples'][f'{split}.bin'] = len(ids), sample_hash(file)
    meta['fingerprint'] = hashlib.blake2b(json.dumps(meta).encode(), digest_size=16).hexdigest()
    path.with_suffix('.tmp').write_text(json.dumps(meta, indent=1))
    path.with_suffix('.tmp').rename(path)               # whole at once, for other ranks wait for it
    source = 'the characters of meta.pkl' if table.exists() else "GPT-2's tokens, for it has no meta.pkl"
    print(f'{folder}: read as {source}; wrote {path}')


def read_shard(path):
    """Return the tokens of a shard. Raise ValueError unless its header is llm.c's for uint16 and fits the size of the file."""
    size = os.path.getsize(path)
    if np.fromfile(path, np.int32, 3).tolist() != [20240520, 1, (size - HEADER) // 2]:
        raise ValueError(f"{path} is not a shard of GPT-2's tokens with the header of llm.c, or is not complete")
    return np.memmap(path, np.uint16, 'r', offset=HEADER)


def adopt(folder):
    """Write the meta.json of a folder that others have prepared, and return whether it is one. Shards are also copied into
    train.bin and val.bin. Of several ranks on a machine, the first does it."""
    shards = {split: sorted(glob.glob(f'{glob.escape(folder)}/*_{split}*.bin')) for split in SPLITS}
    has_bins = all(Path(folder, f'{split}.bin').exists() for split in SPLITS)
    if not (has_bins or all(shards.values())):
        return False
    if os.environ.get('LOCAL_RANK', '0') != '0':        # torchrun ends this process if the first rank fails
        while not all(Path(folder, name).exists() for name in ('meta.json', 'train.bin')):
            time.sleep(0.1)
    elif has_bins:
        describe(folder)
    else:
        write_tokens(folder, {split: map(read_shard, files) for split, files in shards.items()}, **GPT2)
        print(f"{folder}: copied its shards of GPT-2's tokens into train.bin and val.bin, and wrote {folder}/meta.json")
    return True
