"""
Convert text to tokens and back: the tokenizers, and the conversion of documents to train.bin and val.bin in each prepare.py.
"""
import glob
import json
import math
import os
import signal
import sys
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from itertools import chain, islice
from multiprocessing import parent_process
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, NamedTuple

import numpy as np

from data.tokens import write_tokens

os.environ.setdefault('HF_HUB_VERBOSITY', 'error')              # errors only: our own line reports the last one
os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')        # the processes here are parallel already


# ----------------------------------------------------------------------------- tokenizers

class Tokenizer(NamedTuple):
    encode: Callable            # str → list of ids
    decode: Callable            # list of ids → str; ids without text, such as a vocabulary's padding, give ''
    vocab_size: int
    end: int | None             # the id that ends a document
    special: frozenset = frozenset()        # special ids of Hugging Face's tokenizers, which are not text


def load_tokenizer(name, chars='', replace=False):
    """Return the Tokenizer for 'bytes', 'char' (with the table `chars`), a tiktoken name, or a Hugging Face name or folder. For
    a character that is not in the table, raise ValueError, or with `replace` use the table's first character."""
    if name == 'bytes':
        return Tokenizer(lambda text: list(text.encode('utf-8', 'replace')),
                         lambda ids: bytes(i for i in ids if i < 256).decode('utf-8', 'replace'), vocab_size=256, end=0)
    if name == 'char':
        return char_tokenizer(chars, replace)
    import tiktoken
    return tiktoken_tokenizer(name) if name in tiktoken.list_encoding_names() else hugging_face_tokenizer(name)


def char_tokenizer(chars, replace=False):
    table = {c: i for i, c in enumerate(chars)}

    def encode(text):
        unknown = set() if replace else set(text) - set(chars)
        if unknown:
            raise ValueError(f'{min(unknown)!r} is none of the {len(chars)} characters that this data set has: {chars!r}')
        return [table.get(c, 0) for c in text]

    return Tokenizer(encode, lambda ids: ''.join(chars[i] for i in ids if i < len(chars)), len(chars), end=None)


def tiktoken_tokenizer(name):
    import tiktoken
    try:
        encoding = tiktoken.get_encoding(name)
    except OSError as error:
        raise OSError(f'tokenizer={name!r}: tiktoken could not fetch its vocabulary ({type(error).__name__}); '
                      f'it needs the network once and keeps it under TIKTOKEN_CACHE_DIR') from error

    def known(look_up, otherwise):
        try:
            return look_up()
        except KeyError:
            return otherwise

    def decode(ids):
        return b''.join(known(lambda: encoding.decode_single_token_bytes(i), b'') for i in ids).decode('utf-8', 'replace')

    return Tokenizer(encoding.encode_ordinary, decode, encoding.n_vocab, known(lambda: encoding.eot_token, None))


def hugging_face_tokenizer(name):
    import tiktoken
    from transformers import AutoTokenizer
    try:
        theirs = AutoTokenizer.from_pretrained(name, trust_remote_code=False)      # a tokenizer needs no code of the folder
        theirs.model_max_length = 10 ** 30      # no limit on the length of documents
        letter = theirs.encode('a', add_special_tokens=False)
    except Exception as error:                          # a damaged folder fails in many ways
        known = ', '.join(['bytes', 'char', *tiktoken.list_encoding_names()])
        raise ValueError(f"tokenizer={name!r} is none of {known}, and could not be loaded as one of Hugging Face's: "
                         f'{type(error).__name__}: {" ".join(str(error).split())[:300]}') from error
    if not letter:
        raise ValueError(f'tokenizer={name!r} knows no letters: its folder holds a model but no tokenizer, save one there')
    end = theirs.eos_token_id
    path = os.path.join(name, 'config.json')
    if end is None and os.path.exists(path):            # the model's config may have it, and chat models have several
        with open(path, encoding='utf-8') as f:
            end = json.load(f).get('eos_token_id')
        end = end[0] if isinstance(end, list) else end
    theirs.split_special_tokens = True          # '</s>' in a text is text
    return Tokenizer(lambda text: theirs.encode(text, add_special_tokens=False),
                     lambda ids: theirs.decode([i for i in ids if i < len(theirs)], clean_up_tokenization_spaces=False),
                     len(theirs), end, frozenset(theirs.all_special_ids))


END = '<|endoftext|>'


def train_bpe(texts, size, folder):
    """Train a byte-level BPE of `size` entries: the end of a document, the 256 bytes, and frequent pairs in the texts. Save it
    in the folder as a Hugging Face tokenizer. The same texts give the same tokenizer. Raise ValueError if they have too few
    pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet,
                                                       special_tokens=[END], show_progress=False))
    if bpe.get_vocab_size() != size:
        raise ValueError(f'bpe={size}: this text gives a vocabulary of {bpe.get_vocab_size()}, choose that or fewer')
    special = dict.fromkeys(('bos_token', 'eos_token', 'pad_token'), END)
    PreTrainedTokenizerFast(tokenizer_object=bpe, split_special_tokens=True, **special).save_pretrained(folder)


# ----------------------------------------------------------------------------- documents

def from_hub(source, split, limit=0, processes=0, count=0, **where):
    """Return the texts of a data set on the Hugging Face Hub. With a limit, fetch only that many documents. Without one, raise
    ValueError if there are fewer than `count`: copies that others made may lack files."""
    from datasets import Dataset, load_dataset
    print(f'loading {source}, {split}', flush=True)
    try:
        if limit:
            rows = Dataset.from_list(list(load_dataset(source, split=split, streaming=True, **where).take(limit)))
        else:
            rows = load_dataset(source, split=split, num_proc=processes or os.cpu_count(), **where)
    except ConnectionError as error:
        raise OSError(f'could not reach {source} on the Hugging Face Hub: this needs the network') from error
    except OSError as error:
        raise OSError(f'could not load {source}: {" ".join(str(error).split())}') from error
    if not limit and len(rows) < count:
        raise ValueError(f'{source} has {count:,} documents, but only {len(rows):,} came: the copy is incomplete')
    return rows['text']


class TextFiles:
    """The documents in files: each .txt is one; .jsonl and .parquet have one per row, in `column`. A file that several paths or
    links name counts once. `limit` keeps the first documents."""

    def __init__(self, patterns, column='text', limit=0):
        self.column, self.limit, paths = column, limit, []
        for pattern in patterns:
            matches = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
            if not matches:
                raise ValueError(f'{pattern!r} matches no file: name some .txt, .jsonl or .parquet')
            paths += matches
        files = {}                                      # {(device, inode): the file's first path}
        for path in paths:
            if os.path.splitext(path)[1] not in READERS:
                raise ValueError(f'{path!r} is none of {", ".join(READERS)}')
            if not os.path.isfile(path):
                raise ValueError(f'{path!r} is no file but a folder, a broken link or a device: leave it out')
            about = os.stat(path)
            files.setdefault((about.st_dev, about.st_ino), path)
        self.paths = list(files.values())

    def __iter__(self):
        return islice(self.texts(), self.limit or None)

    def texts(self):
        for path in self.paths:
            for place, text in READERS[os.path.splitext(path)[1]](path, self.column):
                if not isinstance(text, str):
                    raise ValueError(f'{path}, {place}: wants a text in {self.column!r}')
                yield text.removeprefix('\ufeff')       # the byte order mark that some editors write


# Readers yield (place, text) for each document. TextFiles raises an error if a text is not a string.

def read_txt(path, column):
    try:
        with open(path, encoding='utf-8', newline='') as f:
            yield 'as a whole', f.read()
    except UnicodeDecodeError as error:
        raise ValueError(f'{path} is not UTF-8: {error}') from None


def read_jsonl(path, column):
    with open(path, 'rb') as f:
        for number, line in enumerate(f, 1):
            if line.strip():
                try:
                    text = json.loads(line)[column]
                except (ValueError, TypeError, KeyError, RecursionError):
                    text = None
                yield f'line {number}', text


def read_parquet(path, column):
    from pyarrow import ArrowException, parquet
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches(columns=[column]):
            for text in batch.column(0).to_pylist():
                number += 1
                yield f'row {number}', text
    except (ArrowException, IndexError, OSError):
        raise ValueError(f'{path}: wants an undamaged parquet file with a column {column!r}') from None


READERS = {'.txt': read_txt, '.jsonl': read_jsonl, '.parquet': read_parquet}


class Part:
    """The documents with these numbers or, with `others`, all other documents."""

    def __init__(self, documents, numbers, count, others=False):
        self.documents, self.numbers, self.count, self.others = documents, numbers, count, others

    def __len__(self):
        return self.count - len(self.numbers) if self.others else len(self.numbers)

    def __iter__(self):
        return (text for i, text in enumerate(self.documents) if (i in self.numbers) != self.others)


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
    return {'train': Part(documents, set(drawn), count, others=True),
            **{name: Part(documents, set(drawn[i * some:(i + 1) * some]), count) for i, name in enumerate(names)}}


# ----------------------------------------------------------------------------- documents to tokens

PIECE = 2 ** 18         # characters; longer documents are cut at line ends, so that several processes can share them


def pieces(documents):
    """Cut documents into pieces, and yield (text, whether it ends a document)."""
    for text in documents:
        begin = 0
        while len(text) - begin > PIECE:
            end = text.rfind('\n', begin, begin + PIECE) + 1 or begin + PIECE
            yield text[begin:end], False
            begin = end
        yield text[begin:], True


def batches(pieces):
    """Yield lists of pieces with PIECE to 2 · PIECE characters in total; the last may have fewer."""
    batch, size = [], 0
    for text, last in pieces:
        batch.append((text, last))
        size += len(text)
        if size >= PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def progress_bar(title, total, unit, done=0):
    """Return a tqdm bar for the terminal. In a log file, print it after 30 seconds and every 30 seconds. Without tqdm, print
    nothing."""
    try:
        from tqdm import tqdm
    except ImportError:                                 # a rented GPU may have PyTorch and NumPy alone
        return nullcontext(SimpleNamespace(update=lambda count: None))
    pause = 0.1 if sys.stderr.isatty() else 30
    return tqdm(desc=title, total=total, unit=f' {unit}', initial=done, mininterval=pause, delay=pause)


def start_worker(*tokenizer):
    global worker
    follow_parent()
    worker = load_tokenizer(*tokenizer)


def follow_parent():
    """Leave Ctrl-C to the parent, which ends its workers. Reset its handlers of other signals, and end when it dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent():
    parent_process().join()                             # returns even if the parent was killed
    os._exit(1)


def encode(batch):
    """Return the tokens of a batch, and how many documents end in it."""
    ids = []
    for text, last in batch:
        ids += worker.encode(text)
        if last and worker.end is not None:
            ids.append(worker.end)
    return np.array(ids, dtype=np.uint32), sum(last for _, last in batch)


def in_order(pool, f, items, ahead):
    """Yield f(item) for each item, in order. The pool computes at most `ahead` items in advance."""
    waiting = deque()
    for item in items:
        waiting.append(pool.submit(f, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def write_text(folder, splits, tokenizer, processes=0, own=False, **more):
    """Write train.bin, val.bin and meta.json into the folder. `splits`: {'train': texts, 'val': texts}, perhaps with 'test';
    texts are iterated over more than once. `tokenizer`: a name for load_tokenizer, whose `end` follows each document; with
    `own`, a folder whose files are copied into the data set's. processes=0: one per core. write_tokens gets `more`."""
    chars = set()
    if tokenizer == 'char':
        for text in chain.from_iterable(splits.values()):
            chars.update(text)
    chars = ''.join(sorted(chars))
    vocab_size = load_tokenizer(tokenizer, chars).vocab_size        # load it here too, so that an error prints one line
    processes = min(processes or os.cpu_count(), 4 * os.cpu_count())
    with ProcessPoolExecutor(processes, initializer=start_worker, initargs=(tokenizer, chars)) as pool:

        def tokens(name):
            with progress_bar(name, len(splits[name]), 'documents') as progress:
                for ids, documents in in_order(pool, encode, batches(pieces(splits[name])), 4 * processes):
                    progress.update(documents)
                    yield ids

        try:
            more |= {'chars': chars} if chars else {}
            beside = {path.name: path.read_bytes() for path in Path(tokenizer).iterdir()} if own else {}
            write_tokens(folder, {name: tokens(name) for name in splits}, vocab_size, '.' if own else tokenizer, beside, **more)
        except BrokenProcessPool as error:
            if sys.version_info < (3, 11, 5):           # an older pool waits forever for the thread that feeds the dead process
                pool._call_queue._reader.close()
            raise OSError('a process that tokenizes died, perhaps out of memory: try fewer --processes') from error
        finally:
            pool.shutdown(cancel_futures=True)
