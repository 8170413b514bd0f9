"""
data/text.py, data/prepare.py and the data/*/prepare.py that go through it: the tokens of a data set are those of its documents,
all of them, each once and in their order, whatever the tokenizer; and what cannot be read says so in one line.
"""
import importlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import tiktoken
from helpers import ROOT, call, run_alone
from pyarrow import parquet

from data import prepare as prepare_module
from data.prepare import from_files, pieces, split, write_text
from data.text import load_tokenizer
from data.tokens import read_meta

END = '<|endoftext|>'
STRANGE = 'abcab é ∇L ⊙ 日本\r\n\0 \U0001f600  x , y . <|endoftext|> \n\n'

# a plugin of tiktoken's: byte-level BPEs with two merges and an end of text, one of them with a large vocabulary
PLUGIN = '''
def encoding(name, end):
    ranks = {bytes([i]): i for i in range(256)} | {b'ab': 256, b'abc': 257}
    return dict(name=name, pat_str=r'\\w+|\\W+', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': end})


ENCODING_CONSTRUCTORS = {'tiny': lambda: encoding('tiny', 258), 'wide': lambda: encoding('wide', 70000)}
'''


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


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    """A folder with the plugin, to be put on PYTHONPATH, and with two tokenizers of Hugging Face's."""
    folder = tmp_path_factory.mktemp('home')
    (folder / 'tiktoken_ext').mkdir()
    (folder / 'tiktoken_ext' / 'of_the_tests.py').write_text(PLUGIN, encoding='utf-8')
    hugging_face_folder(folder / 'ending', END)
    hugging_face_folder(folder / 'endless')
    return folder


@pytest.fixture(autouse=True)
def current_folder(home, tmp_path, monkeypatch):
    """A folder of its own for each test, in which tiktoken knows the plugin and the two tokenizers are at hand."""
    monkeypatch.chdir(tmp_path)
    for name in ('ending', 'endless'):
        shutil.copytree(home / name, name)
    monkeypatch.setattr(sys, 'path', [*sys.path, str(home)])
    importlib.invalidate_caches()
    tiktoken.registry._available_plugin_modules.cache_clear()
    monkeypatch.setattr(tiktoken.registry, 'ENCODING_CONSTRUCTORS', None)       # looks for plugins anew
    yield
    tiktoken.registry._available_plugin_modules.cache_clear()


def write(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(path, texts, column='text'):
    parquet.write_table(pyarrow.table({'id': range(len(texts)), column: texts}), path, row_group_size=3)
    return path


# ----------------------------------------------------------------------------- tokenizers

NAMES = {'bytes': (256, 0), 'char': (len(set(STRANGE)), None), 'tiny': (259, 258), 'wide': (70001, 70000), 'ending': (259, 258),
         'endless': (258, None)}           # name: vocab_size, end


def tokenizer_of(name, chars=''.join(sorted(set(STRANGE)))):
    return load_tokenizer(name, chars if name == 'char' else '')


@pytest.mark.parametrize('name', NAMES)
def test_text_goes_round(name):
    """To the letter, spaces before a comma and all; nothing is added to it, and the end of a document that is spelt out in it, as
    HTML's </s> is, is letters and signs"""
    tokenizer = tokenizer_of(name)
    assert (tokenizer.vocab_size, tokenizer.end) == NAMES[name]
    ids = tokenizer.encode(STRANGE)
    assert name != 'bytes' or ids == list(STRANGE.encode())
    assert len(tokenizer.encode('abcab')) == (5 if name in ('bytes', 'char') else 2), 'merges are used'
    assert tokenizer.decode(ids) == STRANGE and max(ids) < tokenizer.vocab_size and tokenizer.encode('') == []
    assert tokenizer.end not in (ids[-1:] if name == 'bytes' else ids)
    assert all(type(i) is int for i in ids)


@pytest.mark.parametrize('name', NAMES)
def test_any_ids_decode(name):
    """A model's vocabulary may be larger than the tokenizer's, and a fresh model draws all of it: padding is nothing, and half a
    character is a replacement character"""
    tokenizer = tokenizer_of(name)
    a, b, top = tokenizer.encode('ab'), tokenizer.encode('日'), tokenizer.vocab_size
    assert tokenizer.decode([top, *a, top + 1, *b[:1], 100000, *b[1:], top + 60]) == 'ab日'
    assert name == 'char' or tokenizer.decode(b[:1]) == '\N{REPLACEMENT CHARACTER}'


def test_char_is_its_table():
    """The ids are the places in the table, whatever its order, and what is not there is an error, or the first of them"""
    tokenizer = load_tokenizer('char', 'zé a')
    assert tokenizer.encode('a éz') == [3, 2, 1, 0] and tokenizer.decode([0, 4, 1]) == 'zé' and tokenizer.vocab_size == 4
    with pytest.raises(ValueError, match="'!' is none of the 4 characters that this data set has: 'zé a'"):
        tokenizer.encode('a?z!')
    assert load_tokenizer('char', 'zé a', replace=True).encode('a?') == [3, 0]


# ----------------------------------------------------------------------------- files

def test_documents_of_files():
    """A .txt is one, a row of the others is one; in the order of the patterns, and of the names that match one. A file is read
    once, blank lines are none, and a byte order mark is no text at the start of one; a limit reads no more than it needs"""
    write('in/b[1].txt', 'first\r\nline\n')
    write('in/deep/er/a.txt', '\ufeffé\N{LINE SEPARATOR}\ufeff')
    write('in/rows.jsonl', '\ufeff{"body": "one"}\n{"id": 1, "body": ""}\n{"body": "\\ufeffth\\nree"}\n\n  \n')
    rows = [f'row {i}' for i in range(8)]
    write_parquet('in/rows.parquet', rows, column='body')
    patterns = ['in/*.parquet', 'in/b[1].txt', 'in/**/*.txt', os.path.abspath('in/b[1].txt'), 'in/rows.jsonl']
    files = from_files(patterns, column='body')
    assert list(files) == list(files) == [*rows, 'first\r\nline\n', 'é\N{LINE SEPARATOR}\ufeff', 'one', '', 'th\nree']
    write('broken.jsonl', '{"text": "a"}\nbroken\n')
    assert list(from_files(['broken.jsonl'], limit=1)) == ['a']


def test_what_cannot_be_read():
    """Is an error that names the file and the line: no document is left out in silence"""
    write('broken.jsonl', '{"text": "a"}\n{"text": "b"\n')
    write('latin.txt', 'é'.encode('latin-1'))
    write_parquet('null.parquet', ['a', None])
    for pattern, says in {'broken.jsonl': 'row 2', 'null.parquet': 'row 2', 'latin.txt': 'UTF-8', 'no/*.txt': 'no file'}.items():
        with pytest.raises(ValueError) as error:
            list(from_files([pattern]))
        assert pattern in str(error.value) and says in str(error.value)


def test_folders():
    """All files below, in the order of their names, and what `datasets` has saved to disk, but not what it caches there"""
    datasets = pytest.importorskip('datasets')
    write('in/b.txt', 'b')
    write('in/notes.md', 'no')
    write('in/deep/a.jsonl', '{"text": "a"}\n')
    rows = datasets.Dataset.from_dict({'id': range(9), 'text': [f'row {i}' for i in range(9)]}).select(range(8, -1, -1))
    rows.save_to_disk('in/saved', num_shards=2)
    datasets.load_from_disk('in/saved').map(lambda row: {'text': 'cached'})
    assert list(Path('in/saved').glob('cache-*.arrow'))
    assert list(from_files(['in'])) == ['b', 'a', *(f'row {i}' for i in range(8, -1, -1))]


# ----------------------------------------------------------------------------- splits

@pytest.mark.parametrize('count', [2, 2001])
def test_split_is_nanogpts(count):
    """The validation documents are those that `datasets` draws for nanoGPT; the order is that of the source"""
    datasets = pytest.importorskip('datasets')
    texts = [f'document {i:05}' for i in range(count)]
    theirs = datasets.Dataset.from_dict({'text': texts}).train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    for ours, part in ('val', 'test'), ('train', 'train'):
        assert list(split(texts)[ours]) == sorted(theirs[part]['text']) and split(texts)[ours].total == len(theirs[part])


def test_a_test_split_takes_nothing_from_validation():
    texts = [f'document {i:05}' for i in range(2001)]
    parts = {name: list(part) for name, part in split(texts, test=True).items()}
    assert sorted(sum(parts.values(), [])) == texts
    assert parts['val'] == list(split(texts)['val']) and len(parts['test']) == len(parts['val']) == 2


@pytest.mark.parametrize('count, fraction, wanted', [(1000, 0.1, 100), (1000, 0.0001, 1), (10, 0.25, 3), (3, 0.99, 2)])
def test_split_by_a_fraction(count, fraction, wanted):
    """Of the documents, at least one for each split, which lose nothing; of one document its last part, by default a tenth, as
    nanoGPT's shakespeare_char cuts it"""
    texts = [f'document {i:05}' for i in range(count)]
    parts = split(texts, fraction)
    train, val = list(parts['train']), list(parts['val'])
    assert len(val) == wanted and sorted(train + val) == texts and train
    for length, fraction, last in (11, 0, 2), (100, 0.25, 25), (3, 0.99, 2):
        whole = ''.join(map(chr, 97 + np.arange(length) % 26))
        parts = split([whole], fraction)
        assert list(parts['train']) == [whole[:-last]] and list(parts['val']) == [whole[-last:]]


# ----------------------------------------------------------------------------- documents to tokens

def read_back(folder):
    """The tokens of each split, as meta.json says they are stored, and its tokenizer, as sample.py makes it."""
    meta = read_meta(Path(folder).name)
    ids = {name: np.fromfile(Path(folder) / f'{name}.bin', meta['dtype']).tolist() for name in meta['tokens']}
    assert {name: len(ids[name]) for name in ids} == meta['tokens']
    tokenizer = load_tokenizer(meta['tokenizer'], meta['chars'])
    assert tokenizer.vocab_size == meta['vocab_size']
    return ids, tokenizer


def documents(ids, tokenizer):
    """The texts that tokens hold, each closed by the tokenizer's end."""
    assert ids[-1] == tokenizer.end
    ends = np.flatnonzero(np.array(ids) == tokenizer.end)
    return [tokenizer.decode(part[:-1].tolist()) for part in np.split(ids, ends[:-1] + 1)]


def texts(count):
    """Documents of many lengths"""
    rng = np.random.default_rng(0)
    words = STRANGE.replace('\0', '').split(' ')
    return [' '.join(rng.choice(words, 3000 if i == 0 else rng.integers(0, 20))) for i in range(count)]


@pytest.fixture
def folder():
    os.makedirs('data/mine')
    return 'data/mine'


@pytest.mark.parametrize('name', NAMES)
def test_tokens_are_those_of_a_plain_loop(name, folder, monkeypatch):
    """Batch by batch; long documents are cut and lose nothing"""
    monkeypatch.setattr(prepare_module, 'PIECE', 1000)
    monkeypatch.setattr(prepare_module, 'BATCH', 7)
    splits = {'train': texts(60), 'val': ['only here: ~', *texts(9), *('line\n' * n for n in range(300, 310))]}
    assert all(len(piece) <= 1000 for piece, _ in pieces(splits['train']))
    write_text(folder, splits, name)
    ids, tokenizer = read_back(folder)
    assert tokenizer.end == NAMES[name][1]
    for part in splits:
        end = [] if tokenizer.end is None else [tokenizer.end]
        assert ids[part] == [i for text in splits[part] for i in tokenizer.encode(text) + end]
    meta = json.loads(Path(folder, 'meta.json').read_text())
    assert meta['dtype'] == ('uint32' if name == 'wide' else 'uint16')
    assert meta.get('chars') == (''.join(sorted(set(''.join(sum(splits.values(), []))))) if name == 'char' else None)
    assert sorted(os.listdir(folder)) == ['meta.json', 'train.bin', 'val.bin']


STOPPED = '''
import os
import signal
from configurator import configure
from data.prepare import Documents, write_text


def documents():
    yield from ['text'] * 1000
    {what}
    yield 'more'


if __name__ == '__main__':
    configure(globals())
    write_text('data/mine', dict(train=Documents(documents), val=['text']), 'bytes')
'''


@pytest.mark.parametrize('number, says', [('SIGINT', 'interrupted\n'), ('SIGKILL', '')])
def test_a_signal_leaves_what_was_there(number, says, folder):
    """When the documents are half read; a kill leaves a temporary file too"""
    write_text(folder, {'train': ['before'], 'val': ['the signal']}, 'bytes')
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    script = write('stopped.py', STOPPED.format(what=f'os.kill(os.getpid(), signal.{number})'))
    code, _, err = run_alone(os.path.abspath(script))
    assert (code, err) == (-getattr(signal, number), says)
    left = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name not in ('.lock', 'train.bin.tmp')}
    assert left == before and (number == 'SIGKILL') == os.path.exists(f'{folder}/train.bin.tmp')


# ----------------------------------------------------------------------------- data/*/prepare.py, as users run them

def copied(name):
    """data/<name>/prepare.py in the current folder, so that nothing is written into the repository's."""
    write(f'data/{name}/prepare.py', (ROOT / 'data' / name / 'prepare.py').read_bytes())
    return f'data/{name}/prepare.py'


def prepare(name, *arguments, **more):
    """A copy of data/<name>/prepare.py in this process"""
    return call(copied(name), *arguments, **more)


def test_shakespeare_char():
    """From the input.txt that lies beside it: nanoGPT's tokens, its characters in their order"""
    play = ('First Citizen:\nBefore we proceed, hear me speak.\n' * 50) + 'Exeunt\n'
    write('data/shakespeare_char/input.txt', play)
    call(copied('shakespeare_char'))
    ids, tokenizer = read_back('data/shakespeare_char')
    stoi, n = {c: i for i, c in enumerate(sorted(set(play)))}, int(len(play) * 0.9)
    assert ids == {'train': [stoi[c] for c in play[:n]], 'val': [stoi[c] for c in play[n:]]}
    assert tokenizer.decode(ids['train'] + ids['val']) == play


class Hub:
    """In the place of datasets.load_dataset: {split: texts}, and its calls: source, split, whether it streams, and more"""

    def __init__(self, **splits):
        self.splits, self.calls = splits, []

    def __call__(self, path, split, streaming=False, num_proc=None, **where):
        from datasets import Dataset
        self.calls.append((path, split, streaming, where))
        rows = Dataset.from_dict({'text': self.splits[split]})
        return rows.to_iterable_dataset() if streaming else rows


@pytest.fixture
def hub(monkeypatch):
    datasets = pytest.importorskip('datasets')
    hub = Hub(train=texts(2500), validation=texts(7), val=texts(5))
    monkeypatch.setattr(datasets, 'load_dataset', hub)
    return hub


@pytest.mark.parametrize('name, source, count, where, test', [
    ('openwebtext', 'Skylion007/openwebtext', '8,013,769', {}, False),
    ('fineweb', 'HuggingFaceFW/fineweb', '14,868,862', dict(name='sample-10BT'), True)])
def test_data_without_a_split(name, source, count, where, test, hub):
    """As many documents as the limit says are fetched; they are split as nanoGPT does, and each ends. Branches that others
    converted may lack files: without a limit the count must be that of the source"""
    assert f'{source} has {count} documents, but only 2,500 came' in prepare(name, '--tokenizer=tiny', code=1)
    assert os.listdir(f'data/{name}') == ['prepare.py']
    prepare(name, '--tokenizer=tiny', '--limit=2001')
    assert hub.calls[-1] == (source, 'train', True, where)
    ids, tokenizer = read_back(f'data/{name}')
    wanted = split(hub.splits['train'][:2001], test=test)
    assert {part: documents(ids[part], tokenizer) for part in ids} == {part: list(wanted[part]) for part in wanted}


FILES = {'train': ['en/c4-train.00000-of-01024.json.gz', 'en/c4-train.00001-of-01024.json.gz'],
         'val': ['en/c4-validation.00000-of-00008.json.gz']}


@pytest.mark.parametrize('name, flags, source, validation, where, limit', [
    ('minipile', [], 'JeanKaddour/minipile', 'validation', {}, 0),
    ('c4', ['--files=2'], 'allenai/c4', 'val', dict(data_files=FILES), 3)])
def test_data_with_a_validation_split(name, flags, source, validation, where, limit, hub):
    """The limit is for each split; without one nothing is streamed"""
    prepare(name, '--tokenizer=tiny', f'--limit={limit}', *flags)
    assert hub.calls == [(source, split, limit > 0, where) for split in ('train', validation)]
    ids, tokenizer = read_back(f'data/{name}')
    assert documents(ids['train'], tokenizer) == hub.splits['train'][:limit or None]
    assert documents(ids['val'], tokenizer) == hub.splits[validation][:limit or None]
