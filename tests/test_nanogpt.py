"""Data, checkpoints and configs of nanoGPT, written here as its code writes them, and shards of llm.c."""
import functools
import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import call, flags, rows, train

from data.prepare import write_text
from data.tokens import read_meta
from lab.convert.pretrained import load_gpt

hf = pytest.importorskip('transformers')
TEXT = 'to be, or not to be: that is the question\n' * 60
CHARS = sorted(set(TEXT))
SIZES = dict(n_layer=2, n_head=2, n_embd=16, block_size=8)
RUN = flags(batch_size=4, gradient_accumulation_steps=1, eval_iters=2, max_iters=4, eval_interval=2, log_interval=1,
            device='cpu', dtype='float32', compile=False, backend='gloo', wandb_log=False)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current folder with nanoGPT's data/chars and data/bpe, from which the network cannot be reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HTTPS_PROXY', 'http://127.0.0.1:9')
    ids = np.array([CHARS.index(c) for c in TEXT], np.uint16)
    for name, scale in (('chars', 1), ('bpe', 2000)):
        Path('data', name).mkdir(parents=True)
        for split, part in (('train', ids[:2000]), ('val', ids[2000:])):
            (scale * part).tofile(f'data/{name}/{split}.bin')
    write_chars()


def write_chars(itos=dict(enumerate(CHARS))):
    Path('data/chars/meta.pkl').write_bytes(pickle.dumps(dict(vocab_size=len(CHARS), itos=itos)))


def save_checkpoint(path, prefix='_orig_mod.', bias=False, vocab_size=len(CHARS), dataset='chars', **more):
    """Write a ckpt.pt as nanoGPT does, whose matrices are those of Hugging Face's GPT-2, transposed. Return that GPT-2."""
    torch.manual_seed(0)
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=vocab_size, n_positions=8, n_embd=16, n_layer=2, n_head=2, activation_function='gelu')).eval()
    for name, p in theirs.named_parameters():
        p.data = ((p.dim() == 1) + 0.1 * torch.randn_like(p)) * (bias or not name.endswith('bias'))
    weights = {prefix + name: p.t().contiguous() if '.c_' in name else p for name, p in theirs.state_dict().items()
               if bias or not name.endswith('bias')}
    torch.save(dict(model=weights, model_args=dict(**SIZES, bias=bias, vocab_size=vocab_size, **more), optimizer={}, iter_num=7,
                    best_val_loss=torch.tensor(2.0), config=dict(dataset=dataset, out_dir='out', compile=True)), path)
    return theirs


def test_the_first_use_of_characters_writes_meta_json():
    """Once; the tokens are those that our own preparation makes of the same text, and a run on them is sampled"""
    keys = ['--dataset=chars', *flags(**SIZES), *RUN, '--out_dir=out']
    assert call('train.py', *keys).count('data/chars: read as the characters of meta.pkl; wrote data/chars/meta.json\n') == 1
    assert call('sample.py', '--out_dir=out', '--device=cpu', '--start=to be', '--max_new_tokens=9').startswith('to be')
    write_text('data/ours', {'train': [TEXT[:2000]], 'val': [TEXT[2000:]]}, 'char')
    theirs, ours = read_meta('chars'), read_meta('ours')
    assert theirs.pop('fingerprint') != ours.pop('fingerprint') and theirs == ours


def test_shards_with_a_header():
    """Are copied, in the order of their names, by one of the ranks"""
    ids = np.fromfile('data/bpe/train.bin', np.uint16)
    Path('data/shards').mkdir()
    for name, part in dict(train_000001=ids[:900], train_000002=ids[900:], val_000000=ids[:500]).items():
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, len(part)
        Path(f'data/shards/fineweb_{name}.bin').write_bytes(header.tobytes() + part.tobytes())
    out, _ = train('.', '--dataset=shards', *flags(**SIZES), *RUN, '--gradient_accumulation_steps=2', ranks=2)
    assert out.count("data/shards: copied its shards of GPT-2's tokens into train.bin and val.bin, and wrote data/shards/") == 1
    assert Path('data/shards/train.bin').read_bytes() == ids.tobytes()
    assert [(meta['tokenizer'], meta['vocab_size']) for meta in map(read_meta, ('shards', 'bpe'))] == 2 * [('gpt2', 50257)]


class Hostile:
    def __reduce__(self):
        return open, ('ran', 'w')


@pytest.mark.parametrize('itos, says', [
    (Hostile(), "meta.pkl is refused: not nanoGPT's table of characters (UnpicklingError: it would call "),
    ({0: 'a', 1: 'the'}, "meta.pkl is refused: not nanoGPT's table of characters (ValueError: some are several characters)"),
    ({0: 'a', 1: 'b'}, f"has the token {len(CHARS) - 1}, beyond the 2 of 'char'"),
    ('a shard', "x_train.bin is not a shard of GPT-2's tokens with the header of llm.c, or is not complete"),
    ('32 bits', 'train.bin holds no tokens as uint16'),
])
def test_other_data_is_refused_in_one_line(itos, says):
    write_chars(itos)
    if itos == 'a shard':
        Path('data/chars/train.bin').rename('data/chars/x_val.bin')
        Path('data/chars/x_train.bin').write_bytes(np.array([20240520, 1, 9] + 253 * [0], np.int32).tobytes())
    if itos == '32 bits':
        write_chars()
        np.fromfile('data/chars/train.bin', np.uint16).astype(np.int32).tofile('data/chars/train.bin')
    err = call('train.py', '--dataset=chars', *flags(**SIZES), *RUN, code=1)
    assert err.startswith('error: data/chars/') and says in err and err.count('\n') == 1
    assert not Path('data/chars/meta.json').exists() and not Path('ran').exists()


X = torch.arange(24).view(3, 8) % len(CHARS)
close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-5)


@pytest.mark.parametrize('prefix, bias', [('', True), ('_orig_mod.', False)])
def test_logits_are_those_of_gpt2(prefix, bias):
    theirs = save_checkpoint('ckpt.pt', prefix, bias)
    close(load_gpt('ckpt.pt').eval()(X)[0], theirs(X).logits)
    close(load_gpt('ckpt.pt', block_size=5).eval()(X[:, :5])[0], theirs(X[:, :5]).logits)


def test_a_checkpoint_is_trained_sampled_and_exported():
    """Each with its weights, sizes and characters"""
    theirs = save_checkpoint('nano.pt', bias=True)
    out = call('train.py', *RUN, '--dataset=chars', '--init_from=nano.pt', '--max_iters=1', '--learning_rate=0', '--min_lr=0')
    assert 'nano.pt gives the weights alone: the optimizer starts anew, at iteration 0\n' in out
    close(load_gpt('out').eval()(X)[0], theirs(X).logits)
    assert call('sample.py', '--init_from=nano.pt', '--start=be', '--max_new_tokens=9', '--device=cpu').startswith('be')
    call('lab.export', '--out_dir=.', '--checkpoint=nano.pt', '--to=hf')
    close(hf.AutoModelForCausalLM.from_pretrained('hf').eval()(X).logits, theirs(X).logits)
    assert hf.AutoTokenizer.from_pretrained('hf')('to be')['input_ids'] == [CHARS.index(c) for c in 'to be']


@pytest.mark.parametrize('save, says', [
    (lambda: torch.save(dict(model=Hostile(), model_args={}), 'ckpt.pt'), 'is damaged, or not a checkpoint of train.py'),
    (lambda: save_checkpoint('ckpt.pt', n_kv_head=1), "ckpt.pt: 'n_kv_head' in its model_args is not of nanoGPT"),
    (lambda: save_checkpoint('ckpt.pt', vocab_size=99), f'ckpt.pt has learned 99 tokens, and data/chars has {len(CHARS)}')])
def test_another_checkpoint_is_refused_in_one_line(save, says):
    save()
    err = call('sample.py', '--init_from=ckpt.pt', '--device=cpu', code=1)
    assert err.startswith('error: ') and says in err and err.count('\n') == 1 and not Path('ran').exists()


CONFIGS = dict(         # the keys of its files, without those of the sizes
    train_shakespeare_char="""
        out_dir = 'out-shakespeare-char'; always_save_checkpoint = False; dropout = 0.2
        learning_rate = 1e-3; max_iters = 5000; lr_decay_iters = 5000; min_lr = 1e-4; warmup_iters = 100; decay_lr = True""",
    finetune_shakespeare="""
        import time; init_from = 'gpt2-xl'; always_save_checkpoint = False; learning_rate = 3e-5; decay_lr = False
        wandb_log = False; wandb_project = 'shakespeare'; wandb_run_name = 'ft-' + str(time.time())""",
    eval_gpt2="batch_size = 8; eval_iters = 500; eval_only = True; wandb_log = False; init_from = 'gpt2'")


@pytest.mark.parametrize('name, rates', [
    ('train_shakespeare_char', [1e-3 * i / 101 for i in (1, 2, 3, 4)]), ('finetune_shakespeare', [3e-5] * 4), ('eval_gpt2', [])])
def test_its_configs_run(name, rates):
    """With nanoGPT's learning rates. OpenAI's weights are replaced by our checkpoint."""
    Path(f'{name}.py').write_text(textwrap.dedent(CONFIGS[name]))
    save_checkpoint('gpt2.pt', vocab_size=50304, dataset='bpe')
    model = flags(**SIZES) if name == 'train_shakespeare_char' else ['--init_from=gpt2.pt']
    out = call('train.py', f'{name}.py', *RUN, *model, '--dataset=bpe', '--out_dir=out')
    if rates:
        assert [row['lr'] for row in rows('out') if 'lr' in row] == pytest.approx(rates, rel=1e-9)
    else:
        assert re.search(r'iter 0: train loss 1\d\.\d+, val loss 1\d\.\d+\n$', out) and not Path('out').exists()
