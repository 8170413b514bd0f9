"""sample.py, plot.py and bench.py as a user calls them, on a small run."""
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_text import hugging_face_folder

from data.tokens import write_tokens
from model import GPT

ROOT = Path(__file__).resolve().parents[1]
TEXT = 'the quick brown fox jumps over the lazy dog; naïve café\n' * 200
TINY = ['--dataset=tiny', '--vocab_size=256', '--block_size=16', '--n_layer=1', '--n_head=2', '--n_embd=16', '--batch_size=4',
        '--gradient_accumulation_steps=1', '--warmup_iters=0', '--compile=False', '--dtype=float32', '--device=cpu']


def call(cwd, script, *args, fails=False):
    done = subprocess.run([sys.executable, ROOT / script, *args], cwd=cwd, capture_output=True, encoding='utf-8',
                          env={**os.environ, 'PYTHONIOENCODING': 'utf-8', 'OMP_NUM_THREADS': '1'})
    assert (done.returncode != 0) == fails, done.stderr
    if fails:
        assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1, done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A folder with data/tiny and a run of 20 iterations on it, out-tiny."""
    folder = tmp_path_factory.mktemp('sample')
    os.makedirs(folder / 'data' / 'tiny')
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT.encode()], 'val': [TEXT.encode()]}, 256, 'bytes')
    call(folder, 'train.py', *TINY, '--out_dir=out-tiny', '--max_iters=20', '--eval_iters=2', '--learning_rate=1e-2')
    return folder


def test_a_sample_starts_with_its_prompt_and_has_the_asked_length(run):
    out = call(run, 'sample.py', '--out_dir=out-tiny', '--start=the quick', '--num_samples=3', '--max_new_tokens=40')
    samples = out.split('---------------\n')
    assert len(samples) == 3 and all(sample.startswith('the quick') for sample in samples)
    assert all(9 < len(sample) <= 9 + 40 + 1 for sample in samples)     # bytes that are no UTF-8 fold into fewer characters


def sample_here(run, monkeypatch, *args):
    """The same in this process, where the model can be replaced and imports are free."""
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, 'argv', ['sample.py', '--device=cpu', *args])
    monkeypatch.setattr(sys, 'excepthook', sys.excepthook)
    runpy.run_path(str(ROOT / 'sample.py'), run_name='__main__')


def test_text_is_shown_as_it_grows(run, monkeypatch, capsys):
    """Each character once its last byte is drawn; bytes that make none, and half of one at the end, are not lost"""
    drawn, shown = ('é日'.encode() + b'\xffa\xe6\x97', b'same bits'), []

    def stream(self, ids, *how):
        assert ids.tolist() == [list('naïve\r'.encode())] * 2
        for new in zip(*drawn):
            shown.append(capsys.readouterr().out)
            yield torch.tensor(new)[:, None]

    monkeypatch.setattr(GPT, 'stream', stream)
    sample_here(run, monkeypatch, '--out_dir=out-tiny', '--start=naïve\r', '--num_samples=2')
    assert shown == ['', '', 'naïve\ré', '', '', '日', '', '\ufffda', '']
    assert capsys.readouterr().out == '\ufffd\n---------------\nnaïve\rsame bits\n'


def run_of_another(run, name, vocab_size, tokenizer, **more):
    """out-<name>: the run as if it were of a data set with another tokenizer."""
    os.makedirs(run / 'data' / name)
    write_tokens(run / 'data' / name, {split: [range(9)] for split in ('train', 'val')}, vocab_size, tokenizer, **more)
    state = torch.load(run / 'out-tiny' / 'best.pt', weights_only=True)
    state['config']['dataset'] = name
    os.makedirs(run / f'out-{name}')
    torch.save(state, run / f'out-{name}' / 'best.pt')


def test_the_prompt_stays_as_it_was_typed(run, tmp_path, monkeypatch, capsys):
    """Also where the tokenizer knows it by other letters, and by more of them"""
    pytest.importorskip('transformers')
    folder = hugging_face_folder(tmp_path, normalizer='NFKC')
    run_of_another(run, 'changed', 258, folder)
    monkeypatch.setattr(GPT, 'stream', lambda self, ids, *how: iter([torch.tensor([[256]])] * 2))
    capsys.readouterr()
    sample_here(run, monkeypatch, '--out_dir=out-changed', '--start=ﬁne \u2460', '--num_samples=1')
    assert capsys.readouterr().out == 'ﬁne \u2460abab\n'


def test_characters(run, monkeypatch, capsys):
    """A data set of characters: its table comes from meta.json, and a prompt with others names them"""
    chars = ''.join(sorted(set(TEXT)))
    run_of_another(run, 'letters', len(chars), 'char', chars=chars)
    capsys.readouterr()
    sample_here(run, monkeypatch, '--out_dir=out-letters', '--start=café', '--num_samples=1', '--max_new_tokens=300')
    out = capsys.readouterr().out
    assert out.startswith('café') and set(out) <= set(chars) and 10 < len(out) < 300       # most of the model's ids are padding
    with pytest.raises(ValueError, match="'C' is none of the"):
        sample_here(run, monkeypatch, '--out_dir=out-letters', '--start=Café')


def test_pretrained_continues_as_hugging_face_does(tmp_path):
    """Their weights and their tokenizer, from one folder: the likeliest text is theirs, half characters and all"""
    hf = pytest.importorskip('transformers')
    hugging_face_folder(tmp_path / 'small', '</s>')
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / 'small')
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=320, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                                             initializer_range=0.5, bos_token_id=None, eos_token_id=None)).eval()
    model.save_pretrained(tmp_path / 'small')
    prompt = tokenizer.encode('abc, naïve', add_special_tokens=False)
    ids = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=50, pad_token_id=0)[0].tolist()
    assert len(ids) == len(prompt) + 50 and len(set(ids)) > 20 and max(ids) >= len(tokenizer)       # some are padding
    text = tokenizer.decode([i for i in ids if i < len(tokenizer)], clean_up_tokenization_spaces=False)
    assert '\ufffd' in text
    done = call(tmp_path, 'sample.py', '--init_from=small', '--start=abc, naïve', '--temperature=0', '--num_samples=2',
                '--max_new_tokens=50', '--device=cpu', '--dtype=float32')
    assert done.split('\n---------------\n') == [text, text + '\n']


def test_the_seed_decides_what_is_drawn(run):
    args = ['--out_dir=out-tiny', '--num_samples=2', '--max_new_tokens=30']
    first = call(run, 'sample.py', *args)
    assert call(run, 'sample.py', *args) == first
    assert call(run, 'sample.py', *args, '--seed=1') != first


@pytest.mark.long
def test_greedy_samples_are_alike(run):
    for narrow in ('--temperature=0', '--top_k=1', '--top_p=1e-6'):
        samples = call(run, 'sample.py', '--out_dir=out-tiny', '--num_samples=2', '--max_new_tokens=30', narrow)
        first, second = samples.split('---------------\n')
        assert first == second


def test_the_prompt_may_come_from_a_file(run):
    (run / 'prompt.txt').write_text('naïve café', encoding='utf-8')
    out = call(run, 'sample.py', '--out_dir=out-tiny', '--start=FILE:prompt.txt', '--num_samples=1', '--max_new_tokens=5')
    assert out.startswith('naïve café')


@pytest.mark.parametrize('args, words', [
    (['--out_dir=nowhere'], ['nowhere/best.pt', 'train first']),
    (['--out_dir=out-tiny', '--checkpoint=last.pt'], ['last.pt', 'check out_dir']),
    (['--out_dir=out-tiny', '--start='], ['start is empty']),
    (['--out_dir=out-tiny', '--start=FILE:nowhere.txt'], ['nowhere.txt']),
    (['--out_dir=out-tiny', '--num_samples=0'], ['num_samples=0', 'at least 1']),
    (['--out_dir=out-tiny', '--top_p=0'], ['top_p=0', '0 < top_p <= 1']),
    (['--out_dir=out-tiny', '--temperature=-1'], ['temperature=-1', 'not negative']),
    (['--out_dir=out-tiny', '--dtype=int8'], ['int8', 'bfloat16']),
    (['--out_dir=out-tiny', '--tempurature=1'], ['temperature']),
])
def test_bad_input_to_sample_is_one_line(run, args, words):
    error = call(run, 'sample.py', *args, fails=True)
    assert all(word in error for word in words), error


def test_plot_draws_one_run_and_several(run):
    call(run, 'plot.py', 'out-tiny')
    call(run, 'plot.py', 'out-tiny', 'out-tiny', '--out=both.png')
    for path in (run / 'out-tiny' / 'loss.png', run / 'both.png'):
        assert path.read_bytes().startswith(b'\x89PNG') and path.stat().st_size > 10_000


def test_plot_leaves_out_a_line_that_a_kill_cut_short(run, tmp_path):
    for name in ('log.jsonl', 'config.json'):
        (tmp_path / name).write_text((run / 'out-tiny' / name).read_text())
    with open(tmp_path / 'log.jsonl', 'a') as f:
        f.write('{"iter": 21, "lo')
    call(run, 'plot.py', tmp_path)


def test_plot_names_what_is_no_run(run):
    assert 'nowhere' in call(run, 'plot.py', 'nowhere', fails=True)


def test_bench_has_a_row_for_each_variant(run):
    """Of which the time, the speed and the share of the first agree with one another"""
    out = call(run, 'bench.py', *TINY, '--bench_iters=3', '--bench_warmup=1', '--optimizer=sgdw', '--archs=pre,s5',
               '--dtypes=float32,bfloat16', '--profile=trace.json')
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:1] == ['ms'])
    rows = [line.split() for line in lines[head + 1:head + 5]]
    assert [row[:2] for row in rows] == [[f'arch={a}', f'dtype={d}'] for a in ('pre', 's5') for d in ('float32', 'bfloat16')]
    for row in rows:
        ms, least, _, most, share, speed = (float(word.replace(',', '')) if word != '…' else 0 for word in row[2:8])
        assert least <= ms + 0.1 and ms <= most + 0.1 and speed == pytest.approx(4 * 16 / ms * 1000, rel=0.1)
        assert share == pytest.approx(ms / float(rows[0][2]), rel=0.1)
    assert json.loads((run / 'trace.json').read_text())['traceEvents']


def gib(out):
    return {line[:24].strip(): float(line[24:].split()[0]) for line in out.splitlines()[1:]}


def test_bench_times_the_data_and_the_samples(run):
    out = call(run, 'bench.py', *TINY, '--loader=30', '--bench_iters=2', '--bench_warmup=0')
    assert 'ms a batch of 64 tokens' in out and '% of an iteration' in out and 'MiB over 30 batches' in out
    assert call(run, 'bench.py', *TINY, '--sampling=20').count('times as fast, 100.0% of the tokens are the same') == 2


def test_bench_computes_memory(run):
    """4 bytes a parameter and a gradient, and the optimizer's state; activations grow with the batch, and shards divide the rest;
    nothing is allocated: this model has 7 GiB of each"""
    keys = ['--memory=True', '--n_layer=40', '--n_embd=2048', '--n_head=16', '--vocab_size=256', '--block_size=64',
            '--device=cpu', '--dtype=float32']
    small = gib(call(run, 'bench.py', *keys, '--optimizer=adam_mini', '--batch_size=1'))
    large = gib(call(run, 'bench.py', *keys, '--optimizer=adamw', '--batch_size=3', '--parallel=fsdp', '--gpus=4'))
    count = 40 * (12 * 2048 ** 2 + 2 * 2048) + (256 + 64 + 1) * 2048
    assert small['parameters'] == small['gradients'] == pytest.approx(4 * count / 2 ** 30, abs=1e-3)
    assert small['state of adam_mini'] == pytest.approx(4 * count / 2 ** 30, rel=0.01) and small['gathered blocks'] == 0
    assert large['state of adamw'] == pytest.approx(8 / 4 * count / 2 ** 30, rel=0.01)
    assert large['parameters'] == pytest.approx(small['parameters'] / 4, abs=1e-3) and large['gathered blocks'] > 0
    assert large['activations'] == pytest.approx(3 * small['activations'], rel=0.02)
    deep, deeper = (gib(call(run, 'bench.py', *keys, '--recompute=True', '--batch_size=16', f'--n_layer={n}')) for n in (10, 20))
    assert deeper['activations'] - deep['activations'] == pytest.approx(10 * 16 * 64 * 2048 * 4 / 2 ** 30, abs=2e-3)    # inputs
    assert deep['activations'] < 10 / 40 * 16 / 3 * large['activations'] / 3
    assert small['in all'] == pytest.approx(sum(small.values()) - small['in all'], abs=0.01)


def test_bench_computes_scale(run):
    """Of 8 GPUs in two nodes of 4: DDP sends each fp32 gradient twice, but for its own eighth"""
    out = call(run, 'bench.py', *TINY, '--scale=1,8', '--gradient_accumulation_steps=16', '--gpu_peak=1e-6', '--gpu_mfu=0.5',
               '--network=1e-3', '--node=4')
    count = int(out.split()[0].replace(',', ''))
    one, eight = ([float(word.replace(',', '').rstrip('%')) for word in line.split()] for line in out.splitlines()[2:])
    assert one[0] == 1 and eight[0] == 8 and eight[1] == pytest.approx(one[1] / 8, rel=0.01)
    assert one[2] == one[6] == 0 and one[5] == one[9] == 100
    assert eight[3] == pytest.approx(8 * count * 7 / 8 / 1e6, abs=1e-3)
    assert eight[4] == pytest.approx(16 * 4 * 16 / max(eight[1], eight[3]), rel=0.01)


def test_a_token_outside_of_the_vocabulary_is_named(run):
    """Data whose meta.json lies about it would otherwise be a crash deep in the embedding."""
    folder = run / 'data' / 'foreign'
    os.makedirs(folder, exist_ok=True)
    write_tokens(folder, {split: [np.full(1000, 300)] for split in ('train', 'val')}, 512, 'bytes')
    meta = json.loads((folder / 'meta.json').read_text())
    (folder / 'meta.json').write_text(json.dumps(meta | {'vocab_size': 256}))
    assert 'token 300' in call(run, 'train.py', *TINY, '--dataset=foreign', '--out_dir=out-foreign', fails=True)
