"""
data/write.py, data/tokens.py and data/pycode/prepare.py: what is written comes back, what is damaged says so, and the order of
the windows is what lets runs of any number of ranks see the same batches.
"""
import json
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT

from data.lock import lock_folder
from data.tokens import Tokens, read_meta
from data.write import write_tokens


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    """data/ is looked for in the current folder"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'data' / 'tiny').mkdir(parents=True)


def make(train, val=range(20), vocab_size=1000):
    write_tokens('data/tiny', {'train': [list(train)], 'val': [list(val)]}, vocab_size, 'bytes')


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
    assert np.fromfile('data/tiny/val.bin', dtype).tolist() == [top, 5]
    inputs, targets = tokens(block_size=6, vocab_size=vocab_size).read([0])
    assert inputs.tolist() == [[1, 2, top, 0, 0, 255]] and targets.tolist() == [[2, top, 0, 0, 255, 3]]
    assert inputs.dtype == targets.dtype == torch.int64


def content():
    return {path.name: path.read_bytes() for path in Path('data/tiny').iterdir() if path.name != '.lock'}


def interrupted():
    yield [1, 2, 3]
    raise KeyboardInterrupt


@pytest.mark.parametrize('val, words', [
    (interrupted(), None), ([[1]], '1 tokens are too few for val.bin'),
    # in uint16 the latter two would wrap around, to ids that nobody would wonder at
    *(([[1, wrong]], 'are not within vocab_size=1000') for wrong in (1000, 66000, -1))])
def test_what_fails_leaves_what_was_there(val, words):
    """Nothing half, and nothing less than before"""
    make(range(20))
    before = content()
    with pytest.raises((KeyboardInterrupt, ValueError), match=words):
        write_tokens('data/tiny', {'train': [[1, 2, 3]], 'val': val}, 1000, 'bytes')
    assert content() == before


@pytest.mark.parametrize('at', range(3))
def test_half_replaced_never_looks_whole(at, monkeypatch):
    """A kill while the old files give way to the new ones leaves no older meta.json beside newer tokens, nor the reverse"""
    make(range(20))
    moves = iter([os.replace] * at)
    monkeypatch.setattr(os, 'replace', lambda *paths: next(moves)(*paths))
    with pytest.raises(StopIteration):
        make(range(100, 120))
    with pytest.raises(ValueError, match='is not the file of 40 bytes .* prepare data/tiny again'):
        tokens(), tokens(split='val')


def test_the_fingerprint_is_that_of_the_content():
    """However it comes in pieces. Any other token, tokenizer or entry gives another, which is refused where one is expected"""
    def fingerprint(train, val=range(20), vocab_size=1000, expected='', **more):
        write_tokens('data/tiny', {'train': train, 'val': [list(val)]}, vocab_size, 'bytes', expected, **more)
        return read_meta('tiny')['fingerprint']

    first = fingerprint([[1, 2, 3], [4]])
    assert fingerprint([[1], [2, 3, 4]], expected=first) == first
    with pytest.raises(ValueError, match=f'data/tiny: .* [0-9a-f]{{32}}, where {first} is expected'):
        fingerprint([[1, 2, 3, 5]], expected=first)
    others = [fingerprint([[1, 2, 3, 5]]), fingerprint([[1, 2, 3]], [4, *range(20)]),
              fingerprint([[1, 2, 3, 4]], vocab_size=1001), fingerprint([[1, 2, 3, 4]], kind='new')]
    assert len({first, *others}) == 5


def test_a_token_beyond_the_vocabulary():
    """It is named when it is read; on a GPU it would be an assertion in a kernel"""
    make(range(100), vocab_size=100)
    data = tokens(vocab_size=100)
    data.tokens = data.tokens + 1
    with pytest.raises(ValueError, match='train.bin has the token 100, beyond vocab_size=100'):
        data.read([0, 95])


def test_a_file_that_was_replaced_by_one_of_the_same_size():
    """Is noticed wherever it begins to differ"""
    make(np.arange(10 ** 6) % 1000, range(500))
    train = np.fromfile('data/tiny/train.bin', np.uint16)
    for start in (0, len(train) // 2, len(train) - 9):
        np.r_[train[:start], train[start:] ^ 1].tofile('data/tiny/train.bin')
        with pytest.raises(ValueError, match='data/tiny/train.bin is not the file'):
            tokens()


def test_two_at_once():
    """The second says who prepares the folder, and spoils nothing"""
    make(range(20))
    with lock_folder('data/tiny', 'preparing data'), pytest.raises(ValueError, match=f'in use: process {os.getpid()} on '):
        make(range(30))
    assert read_meta('tiny')['tokens']['train'] == 20
    make(range(30))


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
        assert inputs.tolist() == [list(range(s, s + block_size)) for s in starts_of(inputs)]
        assert torch.equal(targets, inputs + 1)


def test_windows_are_a_function_of_seed_and_number():
    """Read at once, one by one, or across an epoch's end: what makes ranks and resumed runs agree. Each epoch and seed has an
    order and a start of its own: else a model of many epochs would see the same cuts of the text again and again"""
    make(range(403))
    data = tokens()
    epochs = [starts_of(data.shuffled(i * data.windows, data.windows, seed)[0]) for seed in range(3) for i in range(10)]
    assert all(epoch != sorted(epoch) for epoch in epochs) and {min(epoch) for epoch in epochs} == {0, 1, 2}
    assert len({tuple(epoch) for epoch in epochs}) == len({tuple(np.argsort(epoch)) for epoch in epochs}) == 30
    again, count = tokens(), 3 * data.windows + 5
    for chunk in (1, 3, data.windows + 1):
        pieces = [starts_of(again.shuffled(i, min(chunk, count - i), seed=2)[0]) for i in range(0, count, chunk)]
        assert sum(pieces, []) == sum(epochs[20:24], [])[:count]


# ----------------------------------------------------------------------------- evaluation windows

@pytest.mark.parametrize('length, block_size, batches, batch_size, rows, columns', [
    (401, 4, 5, 3, 5, 3),               # fewer than there are: 100
    (401, 4, 1000, 7, 14, 7),           # more than there are: whole batches of them
    (401, 4, 3, 500, 1, 100),           # a batch larger than the split
    (30, 29, 200, 12, 1, 1),            # one window in all
])
def test_evaluation_windows(length, block_size, batches, batch_size, rows, columns):
    """Without overlap, spread over the whole split and not beyond it, at most as many as wanted"""
    make(range(10, 60), val=range(length))
    data = tokens(block_size, 'val')
    starts = data.eval_batches(batches, batch_size)
    assert starts.shape == (rows, columns)
    flat = starts.flatten().tolist()
    assert len(set(flat)) == len(flat) and min(np.diff(sorted(flat)), default=block_size) >= block_size
    assert min(flat) == 0 and max(flat) + block_size < length
    assert length - max(flat) <= length / len(flat) + 2 * block_size


# ----------------------------------------------------------------------------- data/pycode

def test_pycode(tmp_path):
    """Every tenth file validates, each ends in a zero byte, and tests are left out as not every interpreter has them. The
    interpreter itself may live below a folder of that name."""
    sources, names = tmp_path / 'test' / 'lib', [f'm{i:02d}.py' for i in range(18)] + ['package/a.py', 'package/deep/b.py']
    for name in [*names, 'test/t.py', 'package/tests/t.py', 'idlelib/idle_test/t.py', 'site-packages/x/y.py', 'notes.txt']:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes(f'# {name} é\n'.encode())
    runpy.run_path(ROOT / 'data' / 'pycode' / 'prepare.py')['prepare'](sources, 'data/tiny')
    texts = {split: bytes(np.fromfile(f'data/tiny/{split}.bin', np.uint16).astype(np.uint8)).decode().split('\0')
             for split in read_meta('tiny')['tokens']}
    assert texts == {'val': ['# m09.py é\n', '# package/deep/b.py é\n', ''],
                     'train': [*(f'# {name} é\n' for name in names if name not in ('m09.py', 'package/deep/b.py')), '']}
