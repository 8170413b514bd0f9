"""Data, checkpoints and configs of nanoGPT, written here as its code writes them, and shards of llm.c."""
from configurator import TRAIN, defaults_of, parse_args

import json
import math
import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import call, flags, rows, train
from torch import nn
from torch.nn import functional as F

from data.prepare import write_text
from data.tokens import read_meta
from lab.convert.pretrained import load_gpt
from model import GPTConfig

TEXT = 'to be, or not to be: that is the question\n' * 60
CHARS = sorted(set(TEXT))
SIZES = dict(n_layer=2, n_head=2, n_embd=16, block_size=8)
RUN = flags(batch_size=4, gradient_accumulation_steps=1, eval_iters=2, max_iters=4, eval_interval=2, log_interval=1,
            device='cpu', dtype='float32', compile=False, backend='gloo', wandb_log=False)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current folder with nanoGPT's data/chars and data/bpe, from which the network cannot be reached."""
    monkeypatch.chdir(tmp_path)
    for key in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'):
        monkeypatch.setenv(key, 'http://127.0.0.1:9')
    ids = np.array([CHARS.index(c) for c in TEXT], np.uint16)
    for name, scale in (('chars', 1), ('bpe', 2000)):
        Path('data', name).mkdir(parents=True)
        for split, part in (('train', ids[:2000]), ('val', ids[2000:])):
            (scale * part).tofile(f'data/{name}/{split}.bin')
    write_chars()


def write_chars():
    meta = dict(vocab_size=len(CHARS), itos=dict(enumerate(CHARS)), stoi={c: i for i, c in enumerate(CHARS)})
    Path('data/chars/meta.pkl').write_bytes(pickle.dumps(meta))


class Block(nn.Module):
    def __init__(self, d, heads, bias):
        super().__init__()
        self.heads, self.ln_1, self.ln_2 = heads, nn.LayerNorm(d, bias=bias), nn.LayerNorm(d, bias=bias)
        self.attn = nn.ModuleDict(dict(c_attn=nn.Linear(d, 3 * d, bias=bias), c_proj=nn.Linear(d, d, bias=bias)))
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(d, 4 * d, bias=bias), c_proj=nn.Linear(4 * d, d, bias=bias)))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.attn.c_attn(self.ln_1(x)).chunk(3, -1))
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(torch.ones(2 * x.shape[1:2]).triu(1).bool(), -math.inf)
        x = x + self.attn.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """The model of nanoGPT, with its names"""

    def __init__(self, n_layer, n_head, n_embd, block_size, vocab_size, bias):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab_size, n_embd), wpe=nn.Embedding(block_size, n_embd),
            h=nn.ModuleList(Block(n_embd, n_head, bias) for _ in range(n_layer)), ln_f=nn.LayerNorm(n_embd, bias=bias)))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    @torch.no_grad()
    def forward(self, x):
        x = self.transformer.wte(x) + self.transformer.wpe(torch.arange(x.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def save_checkpoint(path, prefix='_orig_mod.', bias=False, vocab_size=len(CHARS), dataset='chars', **more):
    """Write the ckpt.pt of a model with random weights → that model"""
    torch.manual_seed(0)
    keys = dict(**SIZES, bias=bias, vocab_size=vocab_size)
    model = NanoGPT(**keys)
    for p in model.parameters():
        p.data = (p.dim() == 1) + 0.1 * torch.randn_like(p)
    torch.save(dict(model={prefix + name: value for name, value in model.state_dict().items()}, model_args=keys | more,
                    optimizer=torch.optim.AdamW(model.parameters()).state_dict(), iter_num=7, best_val_loss=torch.tensor(2.0),
                    config=dict(dataset=dataset, out_dir='out', compile=True)), path)
    return model


def close(a, b, tolerance=1e-6):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


# ----------------------------------------------------------------------------- data

def test_the_first_use_of_characters_writes_meta_json():
    """Once; the tokens are those that our own preparation makes of the same text, and a run on them resumes and is sampled"""
    keys = ['--dataset=chars', *flags(**SIZES), *RUN, '--out_dir=out']
    says = 'data/chars: read as the characters of meta.pkl; wrote data/chars/meta.json\n'
    assert call('train.py', *keys).count(says) == 1
    assert says not in call('train.py', *keys, '--init_from=resume', '--max_iters=6')
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


REFUSED = "meta.pkl is refused: not nanoGPT's table of characters"


@pytest.mark.parametrize('itos, says', [
    (Hostile(), f'{REFUSED} (UnpicklingError: it would call '), (None, f'{REFUSED} (TypeError: '),
    ({0: 'a', 1: 'the'}, f'{REFUSED} (AssertionError: some are several characters)'),
    ({0: 'a', 1: 'b'}, f"has the token {len(CHARS) - 1}, beyond the 2 of 'char'"),
    ('a shard', "x_train.bin is not a shard of GPT-2's tokens with the header of llm.c, or is not complete"),
    ('32 bits', 'train.bin holds no tokens as uint16'),
])
def test_other_data_is_refused_in_one_line(itos, says):
    Path('data/chars/meta.pkl').write_bytes(pickle.dumps(dict(itos=itos)))
    if itos == 'a shard':
        Path('data/chars/train.bin').rename('data/chars/x_val.bin')
        Path('data/chars/x_train.bin').write_bytes(np.array([20240520, 1, 9] + 253 * [0], np.int32).tobytes())
    if itos == '32 bits':
        write_chars()
        np.fromfile('data/chars/train.bin', np.uint16).astype(np.int32).tofile('data/chars/train.bin')
    err = call('train.py', '--dataset=chars', *flags(**SIZES), *RUN, code=1)
    assert err.startswith('error: data/chars/') and says in err and err.count('\n') == 1
    assert not Path('data/chars/meta.json').exists() and not Path('ran').exists()


# ----------------------------------------------------------------------------- checkpoints

@pytest.mark.parametrize('prefix, bias', [('', True), ('_orig_mod.', False)])
def test_logits_are_those_of_nanogpt(prefix, bias):
    theirs, x = save_checkpoint('ckpt.pt', prefix, bias), torch.arange(24).view(3, 8) % len(CHARS)
    close(load_gpt('ckpt.pt').eval()(x)[0], theirs(x))
    close(load_gpt('ckpt.pt', block_size=5).eval()(x[:, :5])[0], theirs(x[:, :5]))


def test_a_checkpoint_is_trained_sampled_and_exported():
    """Each with its weights, sizes and characters"""
    theirs, x = save_checkpoint('nano.pt', bias=True), torch.arange(8)[None]
    out = call('train.py', *RUN, '--dataset=chars', '--init_from=nano.pt', '--max_iters=1', '--learning_rate=0', '--min_lr=0')
    assert 'nano.pt gives the weights alone: the optimizer starts anew, at iteration 0\n' in out and 'n_embd=16' in out
    close(load_gpt('out').eval()(x)[0], theirs(x))
    drawn = [call('sample.py', f'--init_from={name}', '--start=be', '--temperature=0', '--num_samples=1', '--device=cpu',
                  '--max_new_tokens=20', '--dtype=float32') for name in ('nano.pt', 'out')]
    assert drawn[0] == drawn[1] and drawn[0].startswith('be')
    hf = pytest.importorskip('transformers')
    assert 'as gpt2.\n' in call('lab.export', '--out_dir=.', '--checkpoint=nano.pt', '--to=hf')
    close(hf.AutoModelForCausalLM.from_pretrained('hf').eval()(x).logits, theirs(x), 1e-5)
    assert hf.AutoTokenizer.from_pretrained('hf')('to be')['input_ids'] == [CHARS.index(c) for c in 'to be']


def flip_a_bit():
    weight = save_checkpoint('ckpt.pt').lm_head.weight.detach().numpy().tobytes()
    content = bytearray(Path('ckpt.pt').read_bytes())
    content[content.index(weight) + 100] ^= 4
    Path('ckpt.pt').write_bytes(content)


@pytest.mark.parametrize('save, says', [
    (lambda: torch.save(dict(model=Hostile(), model_args={}), 'ckpt.pt'), 'is damaged, or not a checkpoint of train.py'),
    (lambda: save_checkpoint('ckpt.pt', n_kv_head=1), "ckpt.pt: 'n_kv_head' in its model_args is not of nanoGPT"),
    (lambda: save_checkpoint('ckpt.pt', vocab_size=99), f'ckpt.pt has learned 99 tokens, and data/chars has {len(CHARS)}'),
    (flip_a_bit, 'is damaged, or not a checkpoint of train.py'),
])
def test_another_checkpoint_is_refused_in_one_line(save, says):
    save()
    err = call('sample.py', '--init_from=ckpt.pt', '--device=cpu', code=1)
    assert err.startswith('error: ') and says in err and err.count('\n') == 1 and not Path('ran').exists()


# ----------------------------------------------------------------------------- configs

WANDB = 'wandb_log = False; wandb_project = "owt"; wandb_run_name = "ft-" + str(time.time())'
CONFIGS = dict(         # with all keys that they have there, several a line
    train_shakespeare_char="""
        out_dir = 'out-shakespeare-char'; dataset = 'chars'; eval_interval = 250; eval_iters = 200; log_interval = 10
        always_save_checkpoint = False; gradient_accumulation_steps = 1; batch_size = 64; block_size = 256
        n_layer = 6; n_head = 6; n_embd = 384; dropout = 0.2
        learning_rate = 1e-3; max_iters = 5000; lr_decay_iters = 5000; min_lr = 1e-4; beta2 = 0.99; warmup_iters = 100""",
    finetune_shakespeare="""
        out_dir = 'out-shakespeare'; dataset = 'bpe'; init_from = 'gpt2-xl'; eval_interval = 5; eval_iters = 40
        always_save_checkpoint = False; gradient_accumulation_steps = 32; batch_size = 1; max_iters = 20
        learning_rate = 3e-5; decay_lr = False""",
    train_gpt2="""
        batch_size = 12; block_size = 1024; gradient_accumulation_steps = 5 * 8; max_iters = 600000; lr_decay_iters = 600000
        eval_interval = 1000; eval_iters = 200; log_interval = 10; weight_decay = 1e-1""",
    eval_gpt2="""
        batch_size = 8; eval_iters = 500; eval_only = True; init_from = 'gpt2'""")


def rate(it, learning_rate=6e-4, warmup_iters=2000, lr_decay_iters=600000, min_lr=6e-5, decay_lr=True, **_):
    """get_lr of nanoGPT's train.py"""
    if not decay_lr:
        return learning_rate
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@pytest.mark.parametrize('name', CONFIGS)
def test_its_configs_run(name):
    """With nanoGPT's learning rates. Sizes are replaced by smaller ones, and OpenAI's weights by our checkpoint."""
    text = '\n'.join(['import time', WANDB, *textwrap.dedent(CONFIGS[name]).splitlines()])
    Path(f'{name}.py').write_text(text)
    exec(text, keys := {})
    save_checkpoint('gpt2.pt', vocab_size=50304, dataset='bpe')
    model = ['--init_from=gpt2.pt'] if 'init_from' in keys else flags(**SIZES)
    out = call('train.py', f'{name}.py', *RUN, *model, f'--dataset={keys.get("dataset", "bpe")}', '--out_dir=out')
    if 'eval_only' in keys:
        assert re.search(r'iter 0: train loss 1\d\.\d+, val loss 1\d\.\d+\n$', out) and not Path('out').exists()
    else:
        assert [row['lr'] for row in rows('out') if 'lr' in row] == pytest.approx([rate(it, **keys) for it in range(4)], rel=1e-9)
        assert json.loads(Path('out/config.json').read_text())['beta2'] == keys.get('beta2', 0.95)


def test_the_later_of_decay_lr_and_the_schedule_counts():
    defaults = defaults_of(TRAIN, GPTConfig)
    for arguments, wanted in ((['--decay_lr=False'], ('constant', 0)), (['--decay_lr=true'], ('cosine', 2000)),
                              (['--decay_lr=False', '--schedule=wsd', '--warmup_iters=1'], ('wsd', 1))):
        keys = parse_args(arguments, defaults)
        assert (keys['schedule'], keys['warmup_iters']) == wanted and keys.keys() == defaults.keys()
    with pytest.raises(ValueError, match='decay_lr=0: wants true or false'):
        parse_args(['--decay_lr=0'], defaults)
