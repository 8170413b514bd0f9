"""
What the prepare.py of each data set shares: documents from the Hugging Face Hub or from files, their splits, and their tokens.

Documents are read again for each split, and tokenized batch by batch, so that text may be larger than the memory. A document,
such as a .txt file, must fit into it.
"""
import glob
import json
import math
import os
from itertools import chain, islice

import numpy as np

from data.text import load_tokenizer
from data.tokens import write_tokens

PIECE = 2 ** 18         # characters; longer documents are cut at line ends, so that the cores share them
BATCH = 256             # pieces that are tokenized at once


class Documents:
    """Texts that read() yields anew for each iteration: `total` of them, or None if unknown."""

    def __init__(self, read, total=None):
        self.read, self.total = read, total

    def __iter__(self):
        return iter(self.read())


# ----------------------------------------------------------------------------- where documents come from

def from_hub(source, split, limit=0, count=0, **where):
    """Return the texts of a data set on the Hugging Face Hub. With a limit, fetch only that many documents. Without one, raise
    ValueError if there are fewer than `count`: copies that others made may lack files."""
    from datasets import Dataset, load_dataset
    print(f'loading {source}, {split}', flush=True)
    try:
        if limit:
            rows = Dataset.from_list(list(load_dataset(source, split=split, streaming=True, **where).take(limit)))
        else:
            rows = load_dataset(source, split=split, num_proc=os.cpu_count(), **where)
    except OSError as error:
        raise OSError(f'could not load {source} from the Hugging Face Hub, which needs the network: '
                      f'{" ".join(str(error).split())}') from error
    if not limit and len(rows) < count:
        raise ValueError(f'{source} has {count:,} documents, but only {len(rows):,} came: the copy is incomplete')
    return rows['text']


def from_files(patterns, column='text', limit=0):
    """Return the documents in files, also those of folders: each .txt is one; the others have one per row, in `column`. A file
    that several patterns or links name counts once. `limit` keeps the first documents."""
    files = {}                                          # its real path → the path by which it was found first
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        paths = [path for match in matches for path in files_below(match)]
        if not paths:
            raise ValueError(f'{pattern!r} matches no file: name some {", ".join(READERS)}')
        for path in paths:
            if os.path.splitext(path)[1] not in READERS:
                raise ValueError(f'{path!r} is none of {", ".join(READERS)}')
            files.setdefault(os.path.realpath(path), path)

    def texts():
        for path in files.values():
            for number, text in enumerate(READERS[os.path.splitext(path)[1]](path, column), 1):
                if not isinstance(text, str):
                    raise ValueError(f'{path}, row {number}: wants a text in {column!r}')
                yield text.removeprefix('\ufeff')       # the byte order mark that some editors write

    return Documents(lambda: islice(texts(), limit or None))


def files_below(path):
    """Return [path], or the files in this folder that have a reader, without what `datasets` caches beside its data."""
    if not os.path.isdir(path):
        return [path]
    files = sorted(file for kind in READERS for file in glob.glob(f'{glob.escape(path)}/**/*{kind}', recursive=True))
    return [file for file in files if not os.path.basename(file).startswith('cache-')]


# Readers yield the text of each document. from_files raises an error if it is no string.

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
            except (ValueError, TypeError, KeyError, RecursionError):
                yield None


def read_table(path, column):
    from pyarrow import ArrowException, ipc, memory_map, parquet
    try:
        is_arrow = path.endswith('.arrow')              # of save_to_disk of `datasets`
        for batch in ipc.open_stream(memory_map(path)) if is_arrow else parquet.ParquetFile(path).iter_batches(columns=[column]):
            yield from batch.column(column).to_pylist()
    except (ArrowException, KeyError, OSError):
        raise ValueError(f'{path}: wants an undamaged file with a column {column!r}') from None


READERS = {'.txt': read_txt, '.jsonl': read_jsonl, '.parquet': read_table, '.arrow': read_table}


# ----------------------------------------------------------------------------- splits

def split(documents, val_fraction=0.0, test=False):
    """Split documents as nanoGPT does: 0.05% are for validation, drawn with its seed for OpenWebText. Of a single document, as
    Shakespeare is, the last tenth is for validation. `val_fraction` is another share of the documents, or of a single
    document's characters; 0: nanoGPT's shares. Each split gets at least one. Raise ValueError if there are none. With `test`, as
    many of several documents are for a test split."""
    if not 0 <= val_fraction < 1:
        raise ValueError(f'val_fraction={val_fraction}: wants a share between 0 and 1, or 0 for the shares of nanoGPT')
    count = len(documents) if hasattr(documents, '__len__') else sum(1 for _ in documents)
    if count == 0:
        raise ValueError('there is no document in these files')
    if count == 1:
        text, = documents
        if len(text) < 2:
            raise ValueError('there is no text in the only document of these files')
        cut = int((1 - val_fraction) * len(text)) if val_fraction else int(0.9 * len(text))
        cut = min(max(cut, 1), len(text) - 1)
        return {'train': [text[:cut]], 'val': [text[cut:]]}
    names = ['val', 'test'] if test else ['val']
    some = min(math.ceil((val_fraction or 0.0005) * count), (count - 1) // len(names))
    drawn = np.random.default_rng(2357).permutation(count)[:len(names) * some].tolist()
    split_of = {number: names[i // some] for i, number in enumerate(drawn)}

    def part(name, total):
        return Documents(lambda: (text for i, text in enumerate(documents) if split_of.get(i, 'train') == name), total)

    return {'train': part('train', count - len(drawn)), **{name: part(name, some) for name in names}}


# ----------------------------------------------------------------------------- documents to tokens

def pieces(documents):
    """Cut documents into pieces, and yield (text, whether it ends a document)."""
    for text in documents:
        begin = 0
        while len(text) - begin > PIECE:
            end = text.rfind('\n', begin, begin + PIECE) + 1 or begin + PIECE
            yield text[begin:end], False
            begin = end
        yield text[begin:], True


def write_text(folder, splits, tokenizer):
    """Write train.bin, val.bin and meta.json into the folder. `splits`: {'train': texts, 'val': texts}, perhaps with 'test';
    texts are iterated over more than once. `tokenizer`: a name for load_tokenizer, whose `end` follows each document."""
    chars = set()
    for text in chain.from_iterable(splits.values()) if tokenizer == 'char' else ():
        chars.update(text)
    tokens = load_tokenizer(tokenizer, chars := ''.join(sorted(chars)))
    end = [] if tokens.end is None else [tokens.end]
    encode_all = tokens.encode_all or (lambda texts: map(tokens.encode, texts))

    def ids_of(documents, name):
        left = pieces(progress(documents, name))
        while batch := list(islice(left, BATCH)):
            for ids, (_, last) in zip(encode_all([text for text, _ in batch]), batch):
                yield np.array(ids + end * last, dtype=np.uint32)

    write_tokens(folder, {name: ids_of(texts, name) for name, texts in splits.items()}, tokens.vocab_size, tokenizer,
                 **({'chars': chars} if chars else {}))


def progress(documents, name):
    try:
        from tqdm import tqdm
    except ImportError:                                 # a rented GPU may have PyTorch and NumPy alone
        return documents
    total = len(documents) if hasattr(documents, '__len__') else documents.total
    return tqdm(documents, desc=name, total=total, unit=' documents', disable=None)         # None: no bar in a log file


def prepare_hub(folder, source, tokenizer, limit, splits=('train',), test=False, count=0, **where):
    """Prepare a data set of the Hub. `splits` are the names of its training and perhaps its validation split; without the latter,
    split() draws one. See from_hub."""
    load_tokenizer(tokenizer)           # raises for a wrong tokenizer before the documents are fetched
    parts = [from_hub(source, name, limit, count, **where) for name in splits]
    write_text(folder, dict(zip(('train', 'val'), parts)) if len(parts) > 1 else split(*parts, test=test), tokenizer)
