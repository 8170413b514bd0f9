"""
data/tokens.py and data/pycode/prepare.py: what is written comes back, what is damaged says so, and the order of the windows is
what lets runs of any number of ranks see the same batches.
"""
import json
import os
import resource
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT

from data.lock import lock_folder
from data.tokens import Tokens, read_meta, write_tokens


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    """data/ is looked for in the current folder; here one with the prepare.py of a data set, tiny, and of another."""
    monkeypatch.chdir(tmp_path)
    for name in ('other', 'tiny'):
        (tmp_path / 'data' / name).mkdir(parents=True)
        (tmp_path / 'data' / name / 'prepare.py').touch()


def make(train, val=range(20), vocab_size=1000, name='tiny'):
    write_tokens(f'data/{name}', {'train': [list(train)], 'val': [list(val)]}, vocab_size, 'bytes')


def tokens(block_size=4, split='train', vocab_size=1000):
    return Tokens('tiny', split, block_size=block_size, vocab_size=vocab_size)


def starts_of(inputs):
    """Where windows begin, in a split whose tokens count up from 0."""
    return inputs[:, 0].tolist()


# ----------------------------------------------------------------------------- writing and reading

@pytest.mark.parametrize('vocab_size, dtype', [(65536, 'uint16'), (65537, 'uint32')])
def test_written_tokens_come_back(vocab_size, dtype):
    """From chunks of any kind and length, up to the largest id of the vocabulary"""
    top = vocab_size - 1
    chars = '\n"\\é\u2028\U0001f600\0'
    write_tokens('data/tiny', {'train': [[1, 2], np.array([top, 0]), b'\x00\xff', [], (3,)], 'val': iter([[top, 5]])},
                 vocab_size, 'char', chars=chars)
    meta = json.loads(Path('data/tiny/meta.json').read_text())
    assert read_meta('tiny') == meta and meta.pop('fingerprint') and meta.pop('samples')
    assert meta == dict(vocab_size=vocab_size, tokenizer='char', chars=chars, dtype=dtype, tokens={'train': 7, 'val': 2})
    assert np.fromfile('data/tiny/train.bin', dtype).tolist() == [1, 2, top, 0, 0, 255, 3]
    assert np.fromfile('data/tiny/val.bin', dtype).tolist() == [top, 5]
    inputs, targets = tokens(block_size=6, vocab_size=vocab_size).read([0])
    assert inputs.tolist() == [[1, 2, top, 0, 0, 255]] and targets.tolist() == [[2, top, 0, 0, 255, 3]]
    assert inputs.dtype == targets.dtype == torch.int64


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def interrupted():
    yield [1, 2, 3]
    raise KeyboardInterrupt


@pytest.mark.parametrize('val, kind, words', [
    (interrupted, KeyboardInterrupt, None),
    # in uint16 the latter two would wrap around, to ids that nobody would wonder at
    ([[1, 1000]], ValueError, 'are not within vocab_size=1000'), ([[66000, 1]], ValueError, 'are not within vocab_size=1000'),
    ([[-1, 2]], ValueError, 'are not within vocab_size=1000'), ([[1]], ValueError, '1 tokens are too few for val.bin')])
def test_what_fails_leaves_what_was_there(val, kind, words):
    """Nothing half, and nothing less than before, whether the folder has old data or none"""
    for _ in range(2):
        before = content('data/tiny')
        with pytest.raises(kind, match=words):
            write_tokens('data/tiny', {'train': [[1, 2, 3]], 'val': val() if val is interrupted else val}, 1000,
                         'bytes')
        assert content('data/tiny') == before
        make(range(20))


@pytest.mark.parametrize('at', range(3))
def test_half_replaced_never_looks_whole(at, monkeypatch):
    """A kill while the old files give way to the new ones leaves no older meta.json beside newer tokens, nor the reverse"""
    make(range(20))
    replace, left = os.replace, iter(range(at))

    def killed(*paths):
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, 'replace', killed)
    with pytest.raises(KeyboardInterrupt):
        make(range(100, 120))
    left = content('data/tiny').keys()
    assert 'meta.json' in left or not {'train.bin', 'val.bin'} <= left, 'they would look like data of nanoGPT'
    with pytest.raises(ValueError, match='is not prepared|meta.json wants .* prepare data/tiny again'):
        tokens()


# ----------------------------------------------------------------------------- errors

def test_the_fingerprint_is_that_of_the_content():
    """The same data prepared again has the same one, however it comes in pieces. Any other token, tokenizer or entry gives
    another, which is refused where one is expected, and the old data stay"""
    def fingerprint(train, val=range(20), vocab_size=1000, expected='', **more):
        write_tokens('data/tiny', {'train': train, 'val': [list(val)]}, vocab_size, 'bytes', expected, **more)
        return read_meta('tiny')['fingerprint']

    first = fingerprint([[1, 2, 3], [4]])
    assert fingerprint([[1], [2, 3, 4]], expected=first) == first
    before = content('data/tiny')
    with pytest.raises(ValueError, match=f'data/tiny: .* [0-9a-f]{{32}}, where {first} is expected'):
        fingerprint([[1, 2, 3, 5]], expected=first)
    assert content('data/tiny') == before
    others = [fingerprint([[1, 2, 3, 5]]), fingerprint([[1, 2, 3]], [4, *range(20)]),
              fingerprint([[1, 2, 3, 4]], vocab_size=1001), fingerprint([[1, 2, 3, 4]], kind='new')]
    assert len({first, *others}) == 5


def test_a_token_beyond_the_vocabulary():
    """It is named when it is read; on a GPU it would be an assertion in a kernel"""
    make(range(100), vocab_size=100)
    data = tokens(vocab_size=100)
    data.tokens = data.tokens + 1
    assert data.read([0, 4])[1].max() == 9
    with pytest.raises(ValueError, match='train.bin has the token 100, beyond vocab_size=100'):
        data.read([0, 95])


def test_a_file_that_was_replaced_by_one_of_the_same_size():
    """Is noticed wherever it begins to differ"""
    make(np.arange(10 ** 6) % 1000, range(500))
    train = np.fromfile('data/tiny/train.bin', np.uint16)
    for start in (0, len(train) // 2, len(train) - 9):
        replaced = train.copy()
        replaced[start:] ^= 1
        replaced.tofile('data/tiny/train.bin')
        with pytest.raises(ValueError, match='data/tiny/train.bin is not the file'):
            tokens()


def test_a_full_disk():
    """Is named with its file, and leaves the old data as they were"""
    make(range(20))
    before, room = content('data/tiny'), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, room[1]))
    try:
        with pytest.raises(OSError, match='File too large: .data/tiny/train.bin'):
            make([1] * 100000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert content('data/tiny') == before


# ----------------------------------------------------------------------------- two processes

def test_two_at_once():
    """The second says who prepares the folder, and spoils nothing"""
    make(range(20))
    with lock_folder('data/tiny', 'preparing data'), pytest.raises(ValueError, match=f'in use: process {os.getpid()} on '):
        make(range(30))
    assert read_meta('tiny')['tokens']['train'] == 20
    make(range(30))
    assert sorted(os.listdir('data/tiny')) == ['meta.json', 'prepare.py', 'train.bin', 'val.bin']


# ----------------------------------------------------------------------------- shuffled windows

@pytest.mark.parametrize('length, block_size', [(400, 4), (401, 4), (402, 4), (50, 7), (65, 64), (20, 19)])
def test_an_epoch_holds_every_window_once(length, block_size):
    """As many windows as fit, side by side from a start of their own, in every epoch"""
    make(range(length))
    data = tokens(block_size)
    assert data.windows == (length - 1) // block_size
    for epoch in range(5):
        inputs, targets = data.shuffled(epoch * data.windows, data.windows, seed=1)
        starts = sorted(starts_of(inputs))
        assert starts == list(range(starts[0], starts[0] + data.windows * block_size, block_size))
        assert 0 <= starts[0] and starts[-1] + block_size < length
        assert inputs.tolist() == [list(range(s, s + block_size)) for s in starts_of(inputs)]
        assert torch.equal(targets, inputs + 1)


def test_each_epoch_and_seed_has_an_order_and_a_start_of_its_own():
    """Else a model of many epochs would see the same cuts of the text again and again; and epoch 1 of seed 0 must not be epoch 0
    of seed 1"""
    make(range(403))
    data = tokens()
    epochs = [starts_of(data.shuffled(i * data.windows, data.windows, seed)[0]) for i in range(10) for seed in range(3)]
    assert all(epoch != sorted(epoch) for epoch in epochs) and {min(epoch) for epoch in epochs} == {0, 1, 2}
    assert len({tuple(epoch) for epoch in epochs}) == len({tuple(np.argsort(epoch)) for epoch in epochs}) == 30


def test_windows_are_a_function_of_seed_and_number():
    """Read at once, one by one, or across an epoch's end: what makes ranks and resumed runs agree"""
    make(range(90))
    data = tokens()
    count = 3 * data.windows + 5
    whole = starts_of(data.shuffled(0, count, seed=7)[0])
    again = tokens()
    for chunk in (1, 3, data.windows + 1):
        pieces = [starts_of(again.shuffled(i, min(chunk, count - i), seed=7)[0]) for i in range(0, count, chunk)]
        assert sum(pieces, []) == whole
    assert starts_of(data.shuffled(0, count, seed=8)[0]) != whole


# ----------------------------------------------------------------------------- evaluation windows

@pytest.mark.parametrize('length, block_size, batches, batch_size, rows, columns', [
    (401, 4, 5, 3, 5, 3),               # fewer than there are: 100
    (401, 4, 20, 5, 20, 5),             # all of them
    (401, 4, 1000, 7, 14, 7),           # more than there are: whole batches of them
    (401, 4, 3, 500, 1, 100),           # a batch larger than the split
    (30, 29, 200, 12, 1, 1),            # one window in all
])
def test_evaluation_windows(length, block_size, batches, batch_size, rows, columns):
    """Always the same, without overlap, spread over the whole split and not beyond it, at most as many as wanted"""
    make(range(10, 60), val=range(length))
    data = tokens(block_size, 'val')
    starts = data.spread(batches, batch_size)
    assert starts.shape == (rows, columns)
    assert np.array_equal(starts, tokens(block_size, 'val').spread(batches, batch_size))
    flat = starts.flatten().tolist()
    assert len(set(flat)) == len(flat) and min(np.diff(sorted(flat)), default=block_size) >= block_size
    assert min(flat) == 0 and max(flat) + block_size < length
    assert length - max(flat) <= length / len(flat) + 2 * block_size
    for batch in starts:
        inputs, targets = data.read(batch)
        assert starts_of(inputs) == batch.tolist() and torch.equal(targets, inputs + 1)


# ----------------------------------------------------------------------------- data/pycode

def test_pycode(tmp_path):
    """Every tenth file validates, each ends in a zero byte, and tests are left out as not every interpreter has them. The
    interpreter itself may live below a folder of that name."""
    sources, names = tmp_path / 'test' / 'lib', [f'm{i:02d}.py' for i in range(18)] + ['package/a.py', 'package/deep/b.py']
    out = ['test/t.py', 'tests/t.py', 'package/tests/t.py', 'idlelib/idle_test/t.py', 'site-packages/x/y.py', 'notes.txt']
    for name in names + out:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes(f'# {name} é\n'.encode())
    runpy.run_path(ROOT / 'data' / 'pycode' / 'prepare.py')['prepare'](sources, 'data/tiny')
    content = {split: np.fromfile(f'data/tiny/{split}.bin', np.uint16) for split in ('train', 'val')}
    texts = {split: bytes(ids.astype(np.uint8)).decode().split('\0') for split, ids in content.items()}
    assert texts['val'] == ['# m09.py é\n', '# package/deep/b.py é\n', '']
    assert texts['train'] == [f'# {name} é\n' for name in names if name not in ('m09.py', 'package/deep/b.py')] + ['']
    meta = read_meta('tiny')
    assert meta.pop('fingerprint') and meta.pop('samples') and meta == dict(
        vocab_size=256, tokenizer='bytes', chars='', dtype='uint16', tokens={split: len(ids) for split, ids in content.items()})
