"""
data/text.py and the data/*/prepare.py that go through it: the tokens of a data set are those of its documents, all of them, each
once and in their order, whatever the tokenizer and however many processes; and what cannot be read says so in one line.
"""
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import tiktoken
from helpers import ROOT, call, run_alone
from pyarrow import parquet

from data import text
from data.text import TextFiles, load_tokenizer, pieces, split, train_bpe, write_text
from data.tokens import read_meta

END = '<|endoftext|>'
STRANGE = 'abcab é ∇L ⊙ 日本\r\n\0 \U0001f600  x , y . \n\n'

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


def write_jsonl(path, texts, column='text'):
    return write(path, ''.join(json.dumps({'id': i, column: t}) + '\n' for i, t in enumerate(texts)))


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
    """To the letter, spaces before a comma and all, and nothing is added to it or to the empty text"""
    tokenizer = tokenizer_of(name)
    assert (tokenizer.vocab_size, tokenizer.end) == NAMES[name]
    ids = tokenizer.encode(STRANGE)
    assert name != 'bytes' or ids == list(STRANGE.encode())
    assert len(tokenizer.encode('abcab')) == (5 if name in ('bytes', 'char') else 2), 'merges are used'
    assert tokenizer.decode(ids) == STRANGE and tokenizer.end not in ids[-1:] and max(ids) < tokenizer.vocab_size
    assert tokenizer.encode('') == [] and tokenizer.decode([]) == ''
    assert all(type(i) is int for i in ids)


@pytest.mark.parametrize('name', NAMES)
def test_padding_decodes_to_nothing(name):
    """A model's vocabulary may be larger than the tokenizer's, and a fresh model draws all of it"""
    tokenizer = tokenizer_of(name)
    a, b = tokenizer.encode('ab'), tokenizer.encode('日')
    top = tokenizer.vocab_size
    assert tokenizer.decode([top, *a, top + 1, *b[:1], 100000, *b[1:], top + 60]) == 'ab日'
    if name == 'wide':
        assert tokenizer.decode([258, *a, 69999]) == 'ab'           # so has the tokenizer's own, below its last


@pytest.mark.parametrize('name', ['bytes', 'tiny', 'ending', 'endless'])
def test_half_a_character_is_a_replacement_character(name):
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode('x日')
    assert tokenizer.decode(ids[:2]) == tokenizer.decode(ids[:3]) == 'x\N{REPLACEMENT CHARACTER}'


def test_char_is_its_table():
    """The ids are the places in the table, whatever its order, and what is not there is an error, or the first of them"""
    tokenizer = load_tokenizer('char', 'zé a')
    assert tokenizer.encode('a éz') == [3, 2, 1, 0] and tokenizer.decode([0, 4, 1]) == 'zé' and tokenizer.vocab_size == 4
    with pytest.raises(ValueError, match="'!' is none of the 4 characters that this data set has: 'zé a'"):
        tokenizer.encode('a?z!')
    assert load_tokenizer('char', 'zé a', replace=True).encode('a?') == [3, 0]


@pytest.mark.parametrize('name', ['tiny', 'ending'])
def test_text_cannot_end_a_document(name):
    """The end of a document, spelt out in somebody's text as HTML's </s> is, is letters and signs"""
    tokenizer = tokenizer_of(name)
    end = tokenizer.decode([tokenizer.end])
    ids = tokenizer.encode(end)
    assert end and tokenizer.end not in ids and tokenizer.decode(ids) == end


def test_offline_tiktoken_is_one_line(monkeypatch):
    def offline(name):
        raise ConnectionError('a long story\nof many lines')

    monkeypatch.setattr(tiktoken, 'get_encoding', offline)
    with pytest.raises(OSError, match="tokenizer='gpt2': .*needs the network once.*TIKTOKEN_CACHE_DIR") as error:
        load_tokenizer('gpt2')
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', ['gtp2', 'folder'])
def test_unknown_tokenizer_names_the_choices(name, monkeypatch):
    """Among them those of tiktoken's plugins; what is none of them is looked for on the Hub, or where it says"""
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    os.mkdir('folder')
    with pytest.raises(ValueError, match=f"tokenizer='{name}' .*bytes, char.*gpt2.*tiny.*Hugging Face's") as error:
        load_tokenizer(name)
    assert '\n' not in str(error.value)


# ----------------------------------------------------------------------------- files

def test_documents_of_files():
    """A .txt is one, a row of the others is one; in the order of the patterns, and of the names that match one. A name may have
    brackets, and blank lines are none"""
    write('in/b[1].txt', 'first\r\nline\n')
    write('in/deep/er/a.txt', 'é\N{LINE SEPARATOR}')
    write_jsonl('in/rows.jsonl', ['one', '', 'th\nree'], column='body')
    with open('in/rows.jsonl', 'a') as f:
        f.write('\n  \n')
    rows = [f'row {i}' for i in range(8)]
    write_parquet('in/rows.parquet', rows, column='body')
    files = TextFiles(['in/*.parquet', 'in/b[1].txt', 'in/**/*.txt', 'in/rows.jsonl'], column='body')
    assert list(files) == [*rows, 'first\r\nline\n', 'é\N{LINE SEPARATOR}', 'one', '', 'th\nree']
    assert list(files) == list(files), 'they are read more than once'


@pytest.mark.parametrize('limit, wanted', [(0, 'abcdef'), (3, 'abc'), (4, 'abcd'), (9, 'abcdef')])
def test_limit(limit, wanted):
    """The first documents, over all files"""
    write_jsonl('1.jsonl', 'abc')
    write('2.txt', 'd')
    write_parquet('3.parquet', ['e', 'f'])
    assert list(TextFiles(['*.jsonl', '*.txt', '*.parquet'], limit=limit)) == list(wanted)


def test_no_more_is_read_than_the_limit():
    write('1.jsonl', b'{"text": "a"}\n{"text": "b"}\nbroken\n')
    write('2.txt', b'\xff')
    assert list(TextFiles(['1.jsonl', '2.txt'], limit=2)) == ['a', 'b']


def test_a_file_with_several_names_is_one_document():
    """By its path or by links of either kind, in any folder, under whichever pattern"""
    write('in/a.txt', 'a')
    write('in/b.txt', 'a')                              # another file with the same text
    os.symlink('a.txt', 'in/symbolic.txt')
    os.link('in/a.txt', 'in/hard.txt')
    os.symlink('in', 'folder')
    patterns = ['in/*.txt', './in/a.txt', os.path.abspath('in/a.txt'), 'folder/*.txt', 'folder/../in/a.txt']
    assert list(TextFiles(patterns)) == ['a', 'a']
    assert list(TextFiles(patterns[::-1])) == ['a', 'a']


def test_a_byte_order_mark_is_dropped():
    """Only at the start of a text"""
    write('1.txt', b'\xef\xbb\xbfa\xef\xbb\xbf')
    write('2.jsonl', b'\xef\xbb\xbf{"text": "b"}\n{"text": "\\ufeffc"}\n')
    write_parquet('3.parquet', ['\ufeffd'])
    assert list(TextFiles(['1.txt', '2.jsonl', '3.parquet'])) == ['a\ufeff', 'b', 'c', 'd']


class Kills(list):
    """Documents that come while a system that is short of memory kills the processes."""

    def __iter__(self):
        yield 'a' * 2 ** 18
        for child in multiprocessing.active_children():
            child.kill()
        yield from ['b' * 2 ** 18] * 100


def test_a_process_that_dies_ends_all(folder):
    """With an error, where it might wait forever"""
    with pytest.raises(OSError, match='a process that tokenizes died'):
        write_text(folder, {'train': Kills(['a'] * 101), 'val': ['a']}, 'bytes', 2)
    assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize('pattern, says', [
    ('fifo.txt', "'fifo.txt' is no file"),              # it would be waited for without end
    ('nothing/*.txt', "'nothing/*.txt' matches no file"),
    ('in.csv', "'in.csv' is none of .txt, .jsonl, .parquet"),
    ('broken.jsonl', "broken.jsonl, line 3: wants a text in 'text'"),
    ('lacks.jsonl', "lacks.jsonl, line 2: wants a text in 'text'"),
    ('number.jsonl', "number.jsonl, line 1: wants a text in 'text'"),
    ('null.parquet', "null.parquet, row 1: wants a text in 'text'"),
    ('cut.parquet', "cut.parquet: wants an undamaged parquet file"),
    ('latin.txt', 'latin.txt is not UTF-8'),
    ('body.parquet', "body.parquet: wants an undamaged parquet file with a column 'text'"),
])
def test_what_cannot_be_read(pattern, says):
    """Names the file, the line, and what is wanted there"""
    write('in.csv', 'a,b')
    write('in/ok.txt', 'a')
    write('broken.jsonl', '{"text": "a"}\n{"text": "b"}\n{"text": "c"\n')
    write('lacks.jsonl', '{"text": "a"}\n{"body": "b"}\n')
    write('number.jsonl', '{"text": 3}\n')
    write('latin.txt', 'é'.encode('latin-1'))
    write_parquet('body.parquet', ['a'], column='body')
    write_parquet('null.parquet', [None, None])
    write('cut.parquet', Path('body.parquet').read_bytes()[:-20])
    os.mkfifo('fifo.txt')
    with pytest.raises(ValueError) as error:
        list(TextFiles(['in/ok.txt', pattern]))
    assert says in str(error.value) and '\n' not in str(error.value)


# ----------------------------------------------------------------------------- splits

@pytest.mark.parametrize('count', [2, 2000, 2001, 5000])
def test_split_is_nanogpts(count):
    """The validation documents are those that `datasets` draws for nanoGPT; the order is that of the source"""
    datasets = pytest.importorskip('datasets')
    texts = [f'document {i:05}' for i in range(count)]
    ours = split(texts)
    theirs = datasets.Dataset.from_dict({'text': texts}).train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    assert list(ours['val']) == sorted(theirs['test']['text'])
    assert list(ours['train']) == sorted(theirs['train']['text'])
    assert [len(ours[name]) for name in ('train', 'val')] == [len(theirs[name]) for name in ('train', 'test')]


@pytest.mark.parametrize('length', [2, 10, 11, 19, 1115394])        # the last: Tiny Shakespeare's
def test_split_of_one_document(length):
    """Its last tenth, as nanoGPT's shakespeare_char cuts it; no character is lost"""
    whole = ''.join(map(chr, 97 + np.arange(length) % 26))
    parts = split([whole])
    n = int(length * 0.9)
    assert list(parts['train']) == [whole[:n]] and list(parts['val']) == [whole[n:]]


@pytest.mark.parametrize('count, fraction, wanted', [(1000, 0.1, 100), (1000, 0.0001, 1), (10, 0.25, 3),
                                                     (3, 0.99, 2), (2, 0.5, 1)])
def test_split_by_a_fraction(count, fraction, wanted):
    """Of the documents, at least one for each split, which lose nothing"""
    texts = [f'document {i:05}' for i in range(count)]
    parts = split(texts, fraction)
    train, val = list(parts['train']), list(parts['val'])
    assert len(val) == wanted and sorted(train + val) == texts and train


@pytest.mark.parametrize('length, fraction, wanted', [(100, 0.25, 25), (100, 0.001, 1), (2, 0.9, 1), (3, 0.99, 2)])
def test_split_of_one_document_by_a_fraction(length, fraction, wanted):
    parts = split(['x' * length], fraction)
    assert [len(parts[name][0]) for name in ('train', 'val')] == [length - wanted, wanted]


def test_what_cannot_be_split():
    with pytest.raises(ValueError, match='there is no document'):
        split([])
    with pytest.raises(ValueError, match='there is no text'):
        split([''])
    for fraction in -0.1, 1.0, float('nan'):
        with pytest.raises(ValueError, match='val_fraction=.*: wants a share between 0 and 1'):
            split(['a', 'b'], fraction)


# ----------------------------------------------------------------------------- documents to tokens

def read_back(folder):
    """The tokens of each split, as meta.json says they are stored, and its tokenizer, as sample.py makes it."""
    meta = read_meta(Path(folder).name)
    ids = {name: np.fromfile(Path(folder) / f'{name}.bin', meta['dtype']).tolist() for name in ('train', 'val')}
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
    """Documents of many lengths, the first so long that those behind it are done before it."""
    rng = np.random.default_rng(0)
    words = STRANGE.replace('\0', '').split(' ')
    return [' '.join(rng.choice(words, 30000 if i == 0 else rng.integers(0, 20))) for i in range(count)]


@pytest.fixture
def folder():
    os.makedirs('data/mine')
    return 'data/mine'


@pytest.mark.parametrize('name', NAMES)
def test_tokens_are_those_of_a_plain_loop(name, folder):
    """With one process and with two, which take chunks of the documents in turn"""
    splits = {'train': texts(60), 'val': ['only here: ~', *texts(9)]}
    for processes in (1, 2):
        write_text(folder, splits, name, processes)
        ids, tokenizer = read_back(folder)
        assert tokenizer.end == NAMES[name][1]
        for part in splits:
            end = [] if tokenizer.end is None else [tokenizer.end]
            assert ids[part] == [i for text in splits[part] for i in tokenizer.encode(text) + end]
    meta = json.loads(Path(folder, 'meta.json').read_text())
    assert meta['dtype'] == ('uint32' if name == 'wide' else 'uint16')
    assert meta.get('chars') == (''.join(sorted(set(''.join(sum(splits.values(), []))))) if name == 'char' else None)
    assert sorted(os.listdir(folder)) == ['meta.json', 'train.bin', 'val.bin']


def test_pieces_end_with_lines(monkeypatch):
    """At most so many characters each; behind a line, where there is one to cut behind; the last one says that it is it"""
    monkeypatch.setattr(text, 'PIECE', 8)
    cut = pieces(['', 'a' * 8, 'ab\ncd\nefgh', '0123456789', 'ab\n' * 3, '\n' + 'c' * 9])
    assert list(islice(cut, 20)) == [
        ('', True), ('a' * 8, True), ('ab\ncd\n', False), ('efgh', True), ('01234567', False), ('89', True),
        ('ab\nab\n', False), ('ab\n', True), ('\n', False), ('c' * 8, False), ('c', True)]


@pytest.mark.parametrize('processes', [0, 1])
@pytest.mark.parametrize('name', ['bytes', 'tiny', 'ending'])
def test_long_documents_are_cut_and_lose_nothing(name, processes, folder, monkeypatch):
    """The pieces of a document follow each other, without an end between them. Zero processes are one a core"""
    monkeypatch.setattr(text, 'PIECE', 16)
    splits = {'train': texts(3)[1:] + ['a' * n for n in range(50)] + ['line\n' * n for n in range(20)],
              'val': ['é' * 16, '\n' * 33]}
    write_text(folder, splits, name, processes)
    ids, tokenizer = read_back(folder)
    for part in splits:
        assert documents(ids[part], tokenizer) == splits[part]


# a signal when the documents are half read: Ctrl-C, which a terminal sends to all processes, or SIGTERM, which goes to the script
# alone or, as schedulers send it, to its workers too
STOPPED = '''
import os
import signal
from configurator import configure
configure(globals())
from data import text


class Documents(list):
    def __iter__(self):
        for i in range(10 ** 6):
            if i == 30000:      # more than a pipe holds: the workers are at work
                {kill}(signal.{name})
            yield 'text'


text.write_text('data/mine', dict(train=Documents(), val=['text']), 'bytes', 2)
'''


@pytest.mark.parametrize('kill, name', [('signal.raise_signal', 'SIGTERM'), ('signal.raise_signal', 'SIGHUP'),
                                        ('(lambda number: os.killpg(0, number))', 'SIGTERM'),
                                        ('(lambda number: os.killpg(0, number))', 'SIGINT')])
def test_a_signal_leaves_what_was_there(kill, name, folder):
    """And it is one process that speaks of it"""
    write_text(folder, {'train': ['before'], 'val': ['the signal']}, 'bytes', 1)
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    code, _, err = run_alone(write('stopped.py', STOPPED.format(kill=kill, name=name)))
    assert code == -signal.SIGINT if name == 'SIGINT' else code in (128 + signal.Signals[name], 1)
    assert 'Traceback' not in err and err.count('interrupted\n') == (name == 'SIGINT')
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before


# ----------------------------------------------------------------------------- a byte-pair vocabulary of its own

CODE = ['def f(x):\n    return self.value[x]\n' * 20, 'class A:\n\tdef __init__(self): pass\r\n# é ∇L 日本\n' * 20]


def test_a_trained_bpe():
    """As many entries as wanted, of frequent pairs"""
    train_bpe(iter(CODE), 300, 'bpe')
    assert sorted(os.listdir('bpe')) == ['tokenizer.json', 'tokenizer_config.json']
    tokenizer = load_tokenizer('bpe')
    assert tokenizer.vocab_size == 300 and tokenizer.decode([tokenizer.end]) == END and len(tokenizer.encode('    return')) < 5
    for example in (STRANGE, END, *CODE, '\r\n\t \n  x', ''):
        ids = tokenizer.encode(example)
        assert tokenizer.decode(ids) == example and tokenizer.end not in ids
    with pytest.raises(ValueError, match='bpe=9999: this text gives a vocabulary of [0-9]+, choose that or fewer'):
        train_bpe(CODE, 9999, 'larger')


def write_with_bpe(folder):
    texts = {'train': [CODE[i % 2] for i in range(18)], 'val': [CODE[1]] * 2}
    train_bpe(texts['train'], 290, 'tokenizer')
    write_text(folder, texts, 'tokenizer', 1, own=True)
    return texts


def test_data_with_a_bpe_of_its_own(folder):
    """The tokenizer lies beside the tokens, and the same texts give the same files"""
    texts = write_with_bpe(folder)
    ids, tokenizer = read_back(folder)
    assert tokenizer.vocab_size == 290 and {part: documents(ids[part], tokenizer) for part in ids} == texts
    assert len(ids['val']) < 2 * len(CODE[1].encode())
    write_with_bpe('data/again')
    before, again = ({path.name: path.read_bytes() for path in Path(name).iterdir()} for name in (folder, 'data/again'))
    assert before == again


def test_a_bpe_from_training_to_an_export(folder):
    """train.py, sample.py and lab.export find it, in a repository that has moved too"""
    write_with_bpe(folder)
    call('train.py', '--dataset=mine', '--vocab_size=0', '--block_size=4', '--n_layer=1', '--n_head=2', '--n_embd=16',
         '--batch_size=2', '--gradient_accumulation_steps=1', '--max_iters=2', '--eval_iters=2', '--device=cpu',
         '--compile=False')
    os.mkdir('elsewhere')
    for name in ('data', 'out'):
        shutil.move(name, f'elsewhere/{name}')
    os.chdir('elsewhere')
    out = call('sample.py', '--start=    return self', '--num_samples=1', '--max_new_tokens=9', '--device=cpu')
    assert '    return self' in out
    call('lab.export', '--to=exported')
    ids, tokenizer = read_back(folder)
    theirs = load_tokenizer('exported')
    assert theirs.encode(CODE[0]) == tokenizer.encode(CODE[0]) and theirs.end == tokenizer.end
    assert theirs.decode(ids['val']) == tokenizer.decode(ids['val'])


# ----------------------------------------------------------------------------- data/*/prepare.py, as users run them

def copied(name):
    """data/<name>/prepare.py in the current folder, so that nothing is written into the repository's."""
    write(f'data/{name}/prepare.py', (ROOT / 'data' / name / 'prepare.py').read_bytes())
    return f'data/{name}/prepare.py'


def prepare(name, *arguments, **more):
    """A copy of data/<name>/prepare.py in this process, and in one process"""
    return call(copied(name), '--processes=1', *arguments, **more)


def test_shakespeare_char():
    """From the input.txt that lies beside it: nanoGPT's tokens, 65 characters in their order"""
    play = ('First Citizen:\nBefore we proceed, hear me speak.\n' * 50) + 'Exeunt\n'
    write('data/shakespeare_char/input.txt', play)
    call(copied('shakespeare_char'))
    ids, tokenizer = read_back('data/shakespeare_char')
    stoi = {c: i for i, c in enumerate(sorted(set(play)))}
    n = int(len(play) * 0.9)
    assert ids == {'train': [stoi[c] for c in play[:n]], 'val': [stoi[c] for c in play[n:]]}
    assert tokenizer.vocab_size == len(stoi) and tokenizer.decode(ids['train'] + ids['val']) == play
    assert Path('data/shakespeare_char/input.txt').read_text() == play


@pytest.mark.parametrize('name, arguments, says', [
    ('openwebtext', ['--tokenizer=bytes', '--limit=3'], 'Skylion007/openwebtext'),
    ('minipile', ['--tokenizer=bytes'], 'JeanKaddour/minipile'),
    ('c4', ['--tokenizer=bytes'], 'allenai/c4'),
    ('shakespeare_char', ['--url=http://127.0.0.1:9/input.txt'], 'http://127.0.0.1:9/input.txt'),
])
def test_without_network(name, arguments, says):
    """One line that says what could not be reached, and no file"""
    code, out, err = run_alone(copied(name), *arguments, HF_HUB_OFFLINE='1', HF_HOME='empty', no_proxy='*')
    assert code == 1 and err.startswith(f'error: could not reach {says}') and 'network' in err and err.count('\n') == 1
    assert out.startswith('loading ') == (name != 'shakespeare_char') and out.count('\n') <= 1
    assert os.listdir(f'data/{name}') == ['prepare.py']


class Hub:
    """In the place of datasets.load_dataset: {split: texts}, its calls, and how many rows were read."""

    def __init__(self, **splits):
        self.splits, self.calls, self.rows = splits, [], 0

    def count(self, row):
        self.rows += 1
        return row

    def __call__(self, name, split, streaming=False, num_proc=None, **where):
        from datasets import Dataset
        self.calls.append((name, split, where))
        texts = self.splits[split]
        rows = Dataset.from_dict({'url': [str(i) for i in range(len(texts))], 'text': texts})
        return rows.to_iterable_dataset().map(self.count) if streaming else rows


@pytest.fixture
def hub(monkeypatch):
    datasets = pytest.importorskip('datasets')
    hub = Hub(train=texts(2500), validation=texts(7), val=texts(5))
    monkeypatch.setattr(datasets, 'load_dataset', hub)
    return hub


def test_openwebtext(hub):
    """As many documents as the limit says are fetched; they are split as nanoGPT does, and each ends"""
    prepare('openwebtext', '--tokenizer=tiny', '--limit=2001')
    assert hub.calls == [('Skylion007/openwebtext', 'train', {})]
    assert 2001 <= hub.rows <= 2002             # `datasets` looks one ahead
    ids, tokenizer = read_back('data/openwebtext')
    wanted = split(hub.splits['train'][:2001])
    assert {part: documents(ids[part], tokenizer) for part in ids} == {part: list(wanted[part]) for part in wanted}


def test_openwebtext_that_is_not_whole(hub):
    """Branches that were converted by others may lack files; without a limit the count must be that of OpenWebText"""
    assert '2,500 documents, but OpenWebText has 8,013,769' in prepare('openwebtext', '--tokenizer=tiny', code=1)
    assert os.listdir('data/openwebtext') == ['prepare.py']


FILES = {'train': ['en/c4-train.00000-of-01024.json.gz', 'en/c4-train.00001-of-01024.json.gz'],
         'val': ['en/c4-validation.00000-of-00008.json.gz']}


@pytest.mark.parametrize('name, flags, source, validation, where', [
    ('minipile', [], 'JeanKaddour/minipile', 'validation', {}),
    ('c4', ['--files=2'], 'allenai/c4', 'val', dict(data_files=FILES))])
@pytest.mark.parametrize('limit', [0, 3])
def test_data_with_a_validation_split(name, flags, source, validation, where, limit, hub):
    """The limit is for each split; without one nothing is streamed"""
    prepare(name, '--tokenizer=tiny', f'--limit={limit}', *flags)
    assert hub.calls == [(source, 'train', where), (source, validation, where)]
    assert 2 * limit <= hub.rows <= 2 * (limit + 1) * bool(limit)
    ids, tokenizer = read_back(f'data/{name}')
    assert documents(ids['train'], tokenizer) == hub.splits['train'][:limit or None]
    assert documents(ids['val'], tokenizer) == hub.splits[validation][:limit or None]


@pytest.mark.parametrize('name, argument, says', [
    ('c4', '--files=1025', 'files=1025: C4 has 1024 files'), ('c4', '--files=0', 'files=0: C4 has 1024 files'),
    ('c4', '--limit=-1', 'limit=-1: wants at least 0'), ('minipile', '--processes=-1', 'processes=-1: wants at least 0'),
    ('openwebtext', '--tokenizer=folder', "tokenizer='folder'"), ('textfiles', '--files=', 'files is empty'),
    ('textfiles', '--files=a.txt', "'a.txt' matches no file"), ('textfiles', '--limit=-1', 'limit=-1: wants at least 0'),
])
def test_wrong_keys_are_known_before_anything_is_fetched(name, argument, says, hub):
    os.mkdir('folder')
    assert says in prepare(name, '--tokenizer=bytes', argument, code=1)
    assert not hub.calls and os.listdir(f'data/{name}') == ['prepare.py']


def test_textfiles():
    """Their own folder or another, and the keys that choose among the documents"""
    write_parquet('news.parquet', ['a', 'b', 'c', 'd'], column='body')
    prepare('textfiles', '--files=news.parquet', '--column=body', '--limit=3', '--tokenizer=bytes')
    ids, tokenizer = read_back('data/textfiles')
    wanted = split(['a', 'b', 'c'])
    assert {part: documents(ids[part], tokenizer) for part in ids} == {part: list(wanted[part]) for part in wanted}
    write('more.txt', 'e')
    prepare('textfiles', '--files=news.parquet,more.txt', '--column=body', '--val_fraction=0.4', '--tokenizer=bytes',
            '--folder=data/mine')
    ids, tokenizer = read_back('data/mine')
    assert [len(documents(ids[part], tokenizer)) for part in ('train', 'val')] == [3, 2]
