"""Tokenizers: text to tokens and back."""
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from data.tokens import Tokens, read_meta

os.environ.setdefault('HF_HUB_VERBOSITY', 'error')              # errors only: our own line reports the last one
os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')


class Tokenizer(NamedTuple):
    encode: Callable            # str → list of ids
    decode: Callable            # list of ids → str; ids without text, such as a vocabulary's padding, give ''
    vocab_size: int
    end: int | None             # the id that ends a document
    end_text: str = ''          # the same as a text, such as '<|endoftext|>'
    encode_all: Callable | None = None      # list of str → lists of ids, on all cores, if the tokenizer can


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


def check_tokenizer(name, learned, dataset):
    """Raise ValueError if the tokens of a data set stand for other text than those that a model has `learned`, the arguments of
    load_tokenizer. Equal tokenizers may have different names."""
    meta = read_meta(dataset)
    if (meta['tokenizer'], meta['chars']) != learned:
        theirs, ours = load_tokenizer(*learned, replace=True), load_tokenizer(meta['tokenizer'], meta['chars'])
        text = meta['chars'] or ours.decode(Tokens(dataset, 'train', 1, meta['vocab_size']).tokens[:1000].tolist())
        if theirs.encode(text) != ours.encode(text):
            raise ValueError(f'dataset={dataset} has other tokens ({meta["tokenizer"]}) than {name} has learned: prepare it '
                             f'with the same tokenizer')


def char_tokenizer(chars, replace):
    table = {c: i for i, c in enumerate(chars)}

    def encode(text):
        if (unknown := set(text) - table.keys()) and not replace:
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

    def decode(ids):
        text = b''
        for i in ids:
            with suppress(KeyError):                    # padding, or a gap in the vocabulary
                text += encoding.decode_single_token_bytes(i)
        return text.decode('utf-8', 'replace')

    end = encoding.eot_token if '<|endoftext|>' in encoding.special_tokens_set else None
    return Tokenizer(encoding.encode_ordinary, decode, encoding.n_vocab, end, '' if end is None else '<|endoftext|>',
                     lambda texts: encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count()))


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
    end, path = theirs.eos_token_id, Path(name, 'config.json')
    if end is None and path.exists():                   # the model's config may have it, and chat models have several
        end = json.loads(path.read_text(encoding='utf-8')).get('eos_token_id')
        end = end[0] if isinstance(end, list) else end
    theirs.split_special_tokens = True          # '</s>' in a text is text
    return Tokenizer(lambda text: theirs.encode(text, add_special_tokens=False),
                     lambda ids: theirs.decode([i for i in ids if i < len(theirs)], clean_up_tokenization_spaces=False),
                     len(theirs), end, '' if end is None else theirs.convert_ids_to_tokens(end),
                     lambda texts: theirs(texts, add_special_tokens=False, return_attention_mask=False)['input_ids'])
