"""bench.py as a user calls it."""
import re

import pytest
import torch
from helpers import call, flags

TINY = flags(vocab_size=256, block_size=16, n_layer=1, n_head=2, n_embd=16, batch_size=4, compile=False, dtype='float32',
             device='cpu')


@pytest.fixture
def small_products(monkeypatch):
    """The square products that bench.py compares with, but of their first rows: a CPU without bf16 would take minutes"""
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, '__matmul__', lambda a, b: product(a[:8], b) if len(a) >= 1024 else product(a, b))


def test_a_row_for_each_variant(small_products):
    """Of which the time, the speed and the share of the first agree with one another"""
    out = call('bench.py', *TINY, '--bench_iters=3', '--bench_warmup=1', '--optimizer=sgdw', '--archs=pre,s5',
               '--dtypes=float32,bfloat16')
    rows = [line.split() for line in re.findall('^arch=.*%.*$', out, re.MULTILINE)]
    assert [row[:2] for row in rows] == [[f'arch={a}', f'dtype={d}'] for a in ('pre', 's5') for d in ('float32', 'bfloat16')]
    for row in rows:
        ms, share, speed, _, least, most = (float(word.replace(',', '')) for word in (*row[2:6], row[-3], row[-1]))
        assert least <= ms + 0.1 and ms <= most + 0.1 and speed == pytest.approx(4 * 16 / ms * 1000, rel=0.1)
        assert share == pytest.approx(ms / float(rows[0][2]), rel=0.1)
    assert all(0 <= float(peak) < 1000 for peak in re.findall(r'([\d.]+) TFLOP/s in', out, re.MULTILINE)), 'of products'


def test_without_a_compiler(monkeypatch):
    """It does not time eager code under the name of compiled code"""
    monkeypatch.setenv('CXX', 'no-such-compiler')
    assert 'compiles=True,False: there is no C++' in call('bench.py', *TINY, '--compile=True', '--compiles=True,False', code=1)
