"""
Prepare text for training: a data set of the Hugging Face Hub, or your own files. The tokens go to data/NAME.

    python data/prepare.py --name=openwebtext                   # or fineweb, minipile, c4; needs the network and 100 GB of disk
    python data/prepare.py --name=openwebtext --limit=10000     # a trial
    python data/prepare.py --name=mine --files='books/*.txt,more/**/*.jsonl' --tokenizer=gpt2

Each .txt file is a document, and so is each row of a .jsonl or .parquet file. Where no split validates, documents are split as
nanoGPT splits OpenWebText and Shakespeare. Text may be larger than the memory, for a batch of documents is tokenized at a time.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from configurator import at_least, configure

import glob
import json
import math
import os
from itertools import chain, islice

import numpy as np

from data.text import load_tokenizer
from data.write import SPLITS, write_tokens

name = ''                           # of HUB, or of your own data
files = ''                          # your own files: paths or patterns, separated by commas
column = 'text'                     # the field or column of a row that holds its text
tokenizer = ''                      # bytes | char | a tiktoken name | a Hugging Face name or folder; empty: gpt2, for c4 T5's
limit = 0                           # only this many documents of each split, for a trial; 0: all
val_fraction = 0.0                  # share of your documents (or of the only one) for validation; 0: nanoGPT's, 0.0005 (or 0.1)

BATCH = 256             # documents that are tokenized at once
C4 = {'train': [f'en/c4-train.{i:05}-of-01024.json.gz' for i in range(160)], 'val': ['en/c4-validation.00000-of-00008.json.gz']}
HUB = {                 # name: repository, arguments, its splits, whether to draw a test split, how many documents (0: any)
    'openwebtext': ('Skylion007/openwebtext', {}, ['train'], False, 8_013_769),
    'fineweb': ('HuggingFaceFW/fineweb', dict(name='sample-10BT'), ['train'], True, 14_868_862),
    'minipile': ('JeanKaddour/minipile', {}, ['train', 'validation'], False, 0),
    'c4': ('allenai/c4', dict(data_files=C4), ['train', 'val'], False, 0)}       # 24 billion tokens, for the largest config


class Documents:
    """The texts that read() yields, anew for each iteration."""

    def __init__(self, read):
        self.read = read

    def __iter__(self):
        return iter(self.read())

    def __len__(self):
        return sum(1 for _ in self)


def from_hub(source, part, where, limit=0, count=0):
    """Return the texts of a part of a data set on the Hugging Face Hub. With a limit, fetch only that many. Without one, raise
    ValueError if there are fewer than `count`: copies that others made may lack files."""
    from datasets import Dataset, load_dataset
    from tqdm import tqdm
    try:
        if limit:
            rows = Dataset.from_list(list(load_dataset(source, split=part, streaming=True, **where).take(limit)))
        else:
            rows = load_dataset(source, split=part, num_proc=os.cpu_count(), **where)
    except OSError as error:
        raise OSError(f'could not load {source} from the Hugging Face Hub, which needs the network: '
                      f'{" ".join(str(error).split())}') from error
    if not limit and len(rows) < count:
        raise ValueError(f'{source} has {count:,} documents, but only {len(rows):,} came: the copy is incomplete')
    return tqdm(rows['text'], desc=part, unit=' documents', disable=None)       # None: no bar in a log file


def from_files(patterns, column='text', limit=0):
    """Return the documents in files: each .txt is one; the others have one per row, in `column`. A file that several patterns
    or links name counts once. `limit` keeps the first documents."""
    files = {}                                          # its real path → the path by which it was found
    for pattern in patterns:
        paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not paths or any(os.path.splitext(path)[1] not in READERS for path in paths):
            raise ValueError(f'{pattern!r} matches no file, or one that is none of {", ".join(READERS)}; all such files in a '
                             f"folder are 'FOLDER/**/*.txt'")
        files |= {os.path.realpath(path): path for path in paths}

    def texts():
        for path in files.values():
            for number, text in enumerate(READERS[os.path.splitext(path)[1]](path, column), 1):
                if not isinstance(text, str):
                    raise ValueError(f'{path}, row {number}: must have a text in {column!r}')
                yield text.removeprefix('\ufeff')       # the byte order mark that some editors write

    return Documents(lambda: islice(texts(), limit or None))


def read_txt(path, column):
    try:
        with open(path, encoding='utf-8', newline='') as f:
            yield f.read()
    except UnicodeDecodeError as error:
        raise ValueError(f'{path} is not UTF-8: {error}') from None


def read_jsonl(path, column):
    with open(path, 'rb') as f:
        for line in filter(bytes.strip, f):
            try:
                yield json.loads(line)[column]
            except (ValueError, TypeError, KeyError):
                yield None


def read_parquet(path, column):
    from pyarrow import ArrowException, parquet
    try:
        for batch in parquet.ParquetFile(path).iter_batches(columns=[column]):
            yield from batch.column(column).to_pylist()
    except (ArrowException, KeyError, OSError):
        raise ValueError(f'{path}: must be an undamaged file with a column {column!r}') from None


READERS = {'.txt': read_txt, '.jsonl': read_jsonl, '.parquet': read_parquet}


def split(documents, val_fraction=0.0, test=False):
    """Split documents as nanoGPT does: 0.05% are for validation, drawn with its seed for OpenWebText. Of a single document, as
    Shakespeare is, the last tenth is for validation. `val_fraction` is another share; 0: nanoGPT's. With `test`, as many
    documents are for a test split. Raise ValueError if there are none."""
    if not 0 <= val_fraction < 1:
        raise ValueError(f'val_fraction={val_fraction}: must be a share between 0 and 1, or 0 for the shares of nanoGPT')
    count = len(documents)
    if count == 0:
        raise ValueError('there is no document in these files')
    if count == 1:
        text, = documents
        cut = int((1 - (val_fraction or 0.1)) * len(text))
        return {'train': [text[:cut]], 'val': [text[cut:]]}
    names = ['val', 'test'] if test else ['val']
    some = min(math.ceil((val_fraction or 0.0005) * count), (count - 1) // len(names))
    drawn = np.random.default_rng(2357).permutation(count)[:len(names) * some].tolist()
    split_of = {number: names[i // some] for i, number in enumerate(drawn)}

    def part(name):
        return Documents(lambda: (text for i, text in enumerate(documents) if split_of.get(i, 'train') == name))

    return {name: part(name) for name in ('train', *names)}


def write_text(folder, splits, tokenizer):
    """Write the tokens of {'train': texts, 'val': texts}, perhaps with 'test', into the folder. `tokenizer` is a name for
    load_tokenizer, whose `end` follows each document."""
    chars = ''.join(sorted(set(chain.from_iterable(chain.from_iterable(splits.values()))))) if tokenizer == 'char' else ''
    tokens = load_tokenizer(tokenizer, chars)
    end = [] if tokens.end is None else [tokens.end]
    encode_all = tokens.encode_all or (lambda texts: map(tokens.encode, texts))

    def ids_of(name):
        texts = iter(splits[name])
        while batch := list(islice(texts, BATCH)):
            for ids in encode_all(batch):
                yield np.array(ids + end, dtype=np.uint32)

    write_tokens(folder, {name: ids_of(name) for name in splits}, tokens.vocab_size, tokenizer,
                 **(dict(chars=chars) if chars else {}))


if __name__ == '__main__':
    at_least(configure(globals()), limit=0)
    if not name or (name in HUB) == bool(files):
        raise ValueError(f"name={name!r}: choose one of {', '.join(HUB)}, or another with your --files='books/*.txt,more.jsonl'")
    if os.path.basename(name) != name:
        raise ValueError(f'name={name!r}: must be the name of a folder in data/')
    texts = [from_files(files.split(','), column, limit)] if files else []
    tokenizer = tokenizer or ('google-t5/t5-base' if name == 'c4' else 'gpt2')
    load_tokenizer(tokenizer)           # raises for a wrong tokenizer before documents are fetched
    source, where, parts, test, count = HUB.get(name, ('', {}, [], False, 0))
    texts += [from_hub(source, part, where, limit, count) for part in parts]
    splits = dict(zip(SPLITS, texts)) if len(texts) > 1 else split(*texts, val_fraction, test)
    write_text(Path(__file__).parent / name, splits, tokenizer)
