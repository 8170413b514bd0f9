"""data/text.py and data/prepare.py: the tokens of a data set are those of its documents, all of them, once and in their order."""
import os
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import tiktoken
from helpers import ROOT, call

from data.prepare import HUB, from_files, split, write_text
from data.text import load_tokenizer
from data.tokens import read_meta

END = '<|endoftext|>'
STRANGE = 'abcab é ∇L ⊙ 日本\r\n\0 \U0001f600  x , y . <|endoftext|> \n\n'
# byte-level BPEs of tiktoken with two merges and an end of text, one of them with a large vocabulary
ENCODINGS = {name: tiktoken.Encoding(name, pat_str=r'\w+|\W+', special_tokens={END: end}, mergeable_ranks={
    **{bytes([i]): i for i in range(256)}, b'ab': 256, b'abc': 257}) for name, end in (('tiny', 258), ('wide', 70000))}


def hugging_face_folder(folder, end=None, normalizer=None):
    """A byte-level BPE with two merges, as Hugging Face's tokenizers are saved. It adds its end, if it has one; it removes
    the space before a comma, unless it is told not to."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), 'ab', 'abc']
    bpe = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocabulary)}, [('a', 'b'), ('ab', 'c')]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if normalizer:
        bpe.normalizer = getattr(normalizers, normalizer)()
    if end:
        bpe.add_special_tokens([end])
        bpe.post_processor = processors.TemplateProcessing(single=f'$A {end}', special_tokens=[(end, bpe.token_to_id(end))])
    cleans = dict(clean_up_tokenization_spaces=True, clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True)
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, model_max_length=16, **cleans).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: [*ENCODINGS])
    monkeypatch.setattr(tiktoken, 'get_encoding', ENCODINGS.get)


def write(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize('name, vocab_size, end', [
    ('bytes', 256, 0), ('char', len(set(STRANGE)), None), ('tiny', 259, 258), ('wide', 70001, 70000), ('ending', 259, 258),
    ('endless', 258, None)])
def test_text_goes_round(name, vocab_size, end):
    """To the letter, spaces before a comma and all; nothing is added to it, and the end of a document that is spelt out in it, as
    HTML's </s> is, is letters and signs. Ids of a model's padding decode to nothing, half a character to its replacement"""
    if name.startswith('end'):
        hugging_face_folder(name, END if name == 'ending' else None)
    tokenizer = load_tokenizer(name, ''.join(sorted(set(STRANGE))) if name == 'char' else '')
    assert (tokenizer.vocab_size, tokenizer.end) == (vocab_size, end)
    ids = tokenizer.encode(STRANGE)
    assert name != 'bytes' or ids == list(STRANGE.encode())
    assert len(tokenizer.encode('abcab')) == (5 if name in ('bytes', 'char') else 2), 'merges are used'
    assert tokenizer.decode(ids) == STRANGE and max(ids) < tokenizer.vocab_size and tokenizer.encode('') == []
    assert tokenizer.end not in (ids[-1:] if name == 'bytes' else ids) and all(type(i) is int for i in ids)
    a, b, top = tokenizer.encode('ab'), tokenizer.encode('日'), tokenizer.vocab_size
    assert tokenizer.decode([top, *a, top + 1, *b[:1], 100000, *b[1:], top + 60]) == 'ab日'
    assert name == 'char' or tokenizer.decode(b[:1]) == '\N{REPLACEMENT CHARACTER}'


def test_char_is_its_table():
    """The ids are the places in the table, and what is not there is an error, or the first of them"""
    assert load_tokenizer('char', 'zé a', replace=True).encode('a éz?') == [3, 2, 1, 0, 0]
    with pytest.raises(ValueError, match="'!' is none of the 4 characters that this data set has: 'zé a'"):
        load_tokenizer('char', 'zé a').encode('a?z!')


def test_documents_of_files():
    """A .txt is one, a row of the others is one; in the order of the patterns, and of the names that match one. A file is read
    once, blank lines are none, and a byte order mark is no text at the start of one"""
    write('in/b[1].txt', 'first\r\nline\n')
    write('in/deep/er/a.txt', '\ufeffé\N{LINE SEPARATOR}\ufeff')
    write('in/rows.jsonl', '\ufeff{"body": "one"}\n{"id": 1, "body": ""}\n{"body": "\\ufeffth\\nree"}\n\n  \n')
    rows = [f'row {i}' for i in range(8)]
    pyarrow.parquet.write_table(pyarrow.table({'id': range(8), 'body': rows}), 'in/rows.parquet', row_group_size=3)
    files = from_files(['in/*.parquet', 'in/b[1].txt', 'in/**/*.txt', os.path.abspath('in/b[1].txt'), 'in/rows.jsonl'], 'body')
    assert list(files) == list(files) == [*rows, 'first\r\nline\n', 'é\N{LINE SEPARATOR}\ufeff', 'one', '', 'th\nree']
    assert list(from_files(['in/rows.jsonl'], 'body', limit=1)) == ['one']


@pytest.mark.parametrize('name, content, says', [
    ('broken.jsonl', b'{"text": "a"}\n{"text": "b"\n', 'row 2'), ('latin.txt', b'\xe9', 'not UTF-8'),
    ('column.jsonl', b'{"body": "a"}', "row 1: must have a text in 'text'"), ('broken.parquet', b'PAR1', 'undamaged'),
    ('notes.md', b'a', 'none of .txt, .jsonl, .parquet'), ('no/*.txt', None, 'matches no file')])
def test_what_cannot_be_read(name, content, says):
    """Is an error that names the file and the row: no document is left out in silence"""
    if content:
        write(name, content)
    with pytest.raises(ValueError, match=f'{re.escape(name)}.*{says}'):
        list(from_files([name]))


def test_split_is_nanogpts():
    """As `datasets` draws documents for nanoGPT, in the order of the source; a single document's last tenth validates"""
    datasets = pytest.importorskip('datasets')
    texts = [f'document {i:05}' for i in range(2001)]
    theirs = datasets.Dataset.from_dict({'text': texts}).train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    for ours, part in ('val', 'test'), ('train', 'train'):
        assert list(split(texts)[ours]) == sorted(theirs[part]['text'])
    parts = {name: list(part) for name, part in split(texts, test=True).items()}
    assert sorted(sum(parts.values(), [])) == texts
    assert parts['val'] == sorted(theirs['test']['text']) and len(parts['test']) == len(parts['val']) == 2
    assert split(['abcdefghijk']) == dict(train=['abcdefghi'], val=['jk']) and split(['xxxy'], 0.25)['val'] == ['y']
    for count, fraction, wanted in (1000, 0.1, 100), (1000, 0.0001, 1), (3, 0.99, 2):
        train, val = map(list, split(texts[:count], fraction).values())
        assert len(val) == wanted and sorted(train + val) == texts[:count]


def read_back(folder):
    """The tokens of each split, as meta.json says they are stored, and its tokenizer, as sample.py makes it."""
    meta = read_meta(Path(folder).name)
    tokenizer = load_tokenizer(meta['tokenizer'], meta['chars'])
    assert tokenizer.vocab_size == meta['vocab_size']
    return {name: np.fromfile(Path(folder) / f'{name}.bin', meta['dtype']).tolist() for name in meta['tokens']}, tokenizer


def texts(count):
    """Documents of many lengths"""
    rng = np.random.default_rng(0)
    words = STRANGE.replace('\0', '').split(' ')
    return [' '.join(rng.choice(words, 3000 if i == 0 else rng.integers(0, 20))) for i in range(count)]


def ids_of(texts, tokenizer):
    return [i for text in texts for i in [*tokenizer.encode(text), *([] if tokenizer.end is None else [tokenizer.end])]]


@pytest.mark.parametrize('name', ['bytes', 'char', 'wide', 'ending'])
def test_tokens_are_those_of_a_plain_loop(name):
    """Batch by batch"""
    hugging_face_folder('ending', END)
    splits = {'train': texts(600), 'val': ['only here: ~', *texts(9)]}
    write_text('data/mine', splits, name)
    ids, tokenizer = read_back('data/mine')
    assert ids == {part: ids_of(splits[part], tokenizer) for part in splits}


def prepare(script, *arguments, **more):
    """Copies of data/prepare.py and of the script, so that nothing is written into the repository's folder"""
    for name in {'data/prepare.py', script}:
        write(name, (ROOT / name).read_bytes())
    return call(script, *arguments, **more)


def test_shakespeare_char():
    """From the input.txt that lies beside it: nanoGPT's tokens, its characters in their order"""
    play = ('First Citizen:\nBefore we proceed, hear me speak.\n' * 50) + 'Exeunt\n'
    write('data/shakespeare_char/input.txt', play)
    prepare('data/shakespeare_char/prepare.py')
    stoi, n = {c: i for i, c in enumerate(sorted(set(play)))}, int(len(play) * 0.9)
    assert read_back('data/shakespeare_char')[0] == {'train': [stoi[c] for c in play[:n]], 'val': [stoi[c] for c in play[n:]]}


@pytest.mark.parametrize('name', HUB)
def test_data_of_the_hub(name, monkeypatch):
    """A limit is for each split. Where no split validates, nanoGPT's is drawn, and the count must be that of the source"""
    datasets = pytest.importorskip('datasets')
    splits, (source, where, parts, test, count) = dict(train=texts(2500), validation=texts(7), val=texts(5)), HUB[name]

    def load_dataset(path, split, streaming=False, num_proc=None, **more):
        assert (path, more) == (source, where)
        rows = datasets.Dataset.from_dict({'text': splits[split]})
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
    script = ('data/openwebtext/prepare.py',) if name == 'openwebtext' else ('data/prepare.py', f'--name={name}')
    if count:
        assert 'but only 2,500 came' in prepare(*script, '--tokenizer=tiny', code=1)
    prepare(*script, '--tokenizer=tiny', '--limit=2001')
    ids, tokenizer = read_back(f'data/{name}')
    train, *val = [splits[part][:2001] for part in parts]
    wanted = dict(train=train, val=val[0]) if val else split(train, test=test)
    assert ids == {part: ids_of(wanted[part], tokenizer) for part in wanted}
