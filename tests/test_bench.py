"""bench.py as a user calls it."""
import json
import runpy
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT, call, flags
from torch.autograd import DeviceType

from data.tokens import write_tokens

TINY = flags(vocab_size=256, block_size=16, n_layer=1, n_head=2, n_embd=16, batch_size=4, compile=False, dtype='float32',
             device='cpu')


@pytest.fixture
def small_products(monkeypatch):
    """The square products that bench.py compares with, but of their first rows: a CPU without bf16 would take minutes"""
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, '__matmul__', lambda a, b: product(a[:8], b) if len(a) >= 1024 else product(a, b))


def test_a_row_for_each_variant(tmp_path, small_products):
    """Of which the time, the speed and the share of the first agree with one another"""
    out = call('bench.py', *TINY, '--bench_iters=3', '--bench_warmup=1', '--optimizer=sgdw', '--archs=pre,s5',
               '--dtypes=float32,bfloat16', '--profile=trace.json', cwd=tmp_path)
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:1] == ['ms'])
    rows = [line.split() for line in lines[head + 1:head + 5]]
    assert [row[:2] for row in rows] == [[f'arch={a}', f'dtype={d}'] for a in ('pre', 's5') for d in ('float32', 'bfloat16')]
    for row in rows:
        ms, least, _, most, share, speed = (float(word.replace(',', '')) if word != '…' else 0 for word in row[2:8])
        assert least <= ms + 0.1 and ms <= most + 0.1 and speed == pytest.approx(4 * 16 / ms * 1000, rel=0.1)
        assert share == pytest.approx(ms / float(rows[0][2]), rel=0.1) and float(row[-1].replace(',', '')) > 0      # train.py's
    assert json.loads((tmp_path / 'trace.json').read_text())['traceEvents']


def test_shares_count_kernels_once(tmp_path, monkeypatch, capsys):
    """A profile as PyTorch gives it on a GPU: the time of a kernel is in its own row, in that of the operation that started it,
    and in that of a region"""
    def row(key, device_type, device_time, cpu_time=0.0, region=False):
        return SimpleNamespace(key=key, device_type=device_type, self_device_time_total=device_time, is_user_annotation=region,
                               self_cpu_time_total=cpu_time)

    rows = [row('sm90_xmma_gemm_bf16', DeviceType.CUDA, 60e3), row('triton_poi_fused_gelu', DeviceType.CUDA, 30e3),
            row('flash_fwd_kernel', DeviceType.CUDA, 6e3), row('Memcpy HtoD', DeviceType.CUDA, 4e3),
            row('Optimizer.step#AdamW.step', DeviceType.CUDA, 90e3, region=True),
            row('aten::mm', DeviceType.CPU, 60e3, 5e3), row('aten::copy_', DeviceType.CPU, 4e3, 9e3)]
    monkeypatch.setattr('sys.argv', ['bench.py', *TINY, '--sampling=1'])
    bench = runpy.run_path(str(ROOT / 'bench.py'))
    bench['print_shares'].__globals__['device'] = torch.device('cuda')
    capsys.readouterr()
    bench['print_shares'](SimpleNamespace(key_averages=lambda: rows), calls=2)
    assert [line.rpartition(': ')[2] for line in capsys.readouterr().out.splitlines()] == [
        '6.0%, 3.0 ms', '60.0%, 30.0 ms', '30.0%, 15.0 ms', '4.0%, 2.0 ms']


def test_without_a_compiler(monkeypatch):
    """It does not time eager code under the name of compiled code"""
    monkeypatch.setenv('CXX', 'no-such-compiler')
    assert 'compiles=True,False: there is no C++' in call('bench.py', *TINY, '--compile=True', '--compiles=True,False', code=1)


def test_the_data_and_the_samples(tmp_path):
    (tmp_path / 'data').mkdir()
    write_tokens(tmp_path / 'data' / 'tiny', {split: [range(200)] for split in ('train', 'val')}, 256, 'bytes')
    out = call('bench.py', *TINY, '--dataset=tiny', '--loader=30', '--bench_iters=2', '--bench_warmup=0', cwd=tmp_path)
    assert 'ms a batch of 64 tokens' in out and '% of an iteration' in out and 'MiB over 30 batches' in out
    rows = call('bench.py', *TINY, '--sampling=20', cwd=tmp_path).splitlines()[-2:]
    assert [(row.split()[:3], row.split()[-1]) for row in rows] == [([n, 'at', 'once'], '100.0%') for n in '18']
