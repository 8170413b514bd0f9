"""lab/export.py: round trips to Hugging Face's formats and safetensors, as functions and as a user calls it."""
import copy
import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import ROOT, call, evaluations, steps
from test_text import hugging_face_folder

import lab.convert.hub
from data.text import load_tokenizer
from data.tokens import write_tokens
from lab.convert.hub import obstacles, write_model, write_own, write_tokenizer, write_weights
from lab.convert.pretrained import FAMILIES, load_gpt
from model import GPT, GPTConfig
from test_model import COVERING, MID_NORM, POST_NORM, SIZES

hf = pytest.importorskip('transformers')
SMALL = dict(block_size=16, vocab_size=50, n_layer=2, n_head=4, n_embd=32, d_ff=48, norm_eps=1e-3)
LLAMA = dict(norm='rmsnorm', pos='rope', ffn='swiglu', rope_theta=50.0)
EQUAL = [
    ('gpt2', {}), ('gpt2', dict(bias=True, tie_weights=False, ffn='gelu_tanh')), ('gpt2', dict(ffn='relu', d_ff=0, n_kv_head=4)),
    ('llama', LLAMA), ('llama', LLAMA | dict(tie_weights=False, n_kv_head=2)), ('llama', LLAMA | dict(d_ff=0, n_kv_head=1)),
    ('qwen3', LLAMA | dict(qk_norm=True)), ('qwen3', LLAMA | dict(qk_norm=True, tie_weights=False, n_kv_head=2)),
    ('olmo2', LLAMA | MID_NORM | dict(attn_pre_norm=False, ffn_pre_norm=False, qk_norm=True, qk_norm_wide=True, n_kv_head=2)),
]


@torch.no_grad()
def random_model(**config):
    """With weights far from their start, gains and biases too, so that none of them can be lost unseen"""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**config))
    for p in model.parameters():
        p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def ids(model):
    return torch.randint(model.config.vocab_size, (3, model.config.block_size), generator=torch.Generator().manual_seed(0))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert a.std() > 0.5


@pytest.mark.parametrize('family, config', EQUAL)
@torch.no_grad()
def test_hugging_face_and_back(family, config, tmp_path):
    ours = random_model(**SMALL | config)
    write_model(ours, tmp_path, family, end=7)
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == FAMILIES[family].model and theirs.config.eos_token_id == 7
    close(theirs(ids(ours)).logits, ours(ids(ours))[0])
    back = load_gpt(str(tmp_path)).eval()
    close(back(ids(ours))[0], ours(ids(ours))[0])
    assert back.config.bias == ours.config.bias and back.num_params() == ours.num_params()


@torch.no_grad()
def test_theirs_in_bf16_and_in_several_files(tmp_path):
    theirs = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16))
    theirs.bfloat16().save_pretrained(tmp_path, max_shard_size='10KB')
    assert len(list(tmp_path.glob('*.safetensors'))) > 1
    ours = load_gpt(str(tmp_path)).eval()
    torch.testing.assert_close(ours(ids(ours))[0], theirs.float()(ids(ours)).logits, rtol=0, atol=1e-5)
    assert all(p.dtype == torch.float32 for p in ours.parameters())


@pytest.mark.parametrize('config', [*COVERING[::8], dict(attention='stable')], ids=str)
@torch.no_grad()
def test_any_model_as_safetensors(config, tmp_path):
    """Its config and its weights, to the last bit, with a tied head in the file once; stable attention keeps its positions"""
    ours = random_model(**SIZES | config)
    write_weights(ours, tmp_path)
    back = load_gpt(str(tmp_path))
    assert back.config == ours.config and back.state_dict().keys() == ours.state_dict().keys()
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in back.state_dict().items())
    assert (back.lm_head.weight is back.wte.weight) == ours.config.tie_weights
    assert os.path.getsize(tmp_path / 'model.safetensors') - 4 * ours.num_params() in range(0, 20000)
    if 'attention' in config and config['attention'] == 'stable':
        assert load_gpt(str(tmp_path), ours.config.block_size - 1).config.block_size == ours.config.block_size


def test_what_has_no_obstacle_is_equal():
    """A family refuses what it cannot express, and names it; without that it takes the model"""
    for config, family in itertools.product(COVERING, FAMILIES):
        ours = GPTConfig(**SIZES | config)
        changes = {field: (value == 'True') if isinstance(getattr(ours, field), bool) else type(getattr(ours, field))(value)
                   for field, value in (item.split('=') for item in obstacles(ours, family))}
        assert all(getattr(ours, field) != value for field, value in changes.items())
        assert not obstacles(replace(ours, **changes), family)


# ----------------------------------------------------------------------------- models whose code comes along

S5 = dict(norm='rmsnorm', input_norm=True, ffn_pre_norm=False, **MID_NORM, qk_norm=True, bias=True)
STABLE = dict(norm='stablenorm', attention='stable', norm_alpha=0.475)
L2 = dict(attention='l2', pos='rope')


def exported(model, folder, **more):
    """The model as transformers loads it"""
    folder.mkdir(exist_ok=True)
    assert write_own(model, str(folder), **more) == ''
    theirs, about = hf.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not any(about.values()) and type(theirs).__module__.startswith('transformers_modules')
    return theirs


def alone_and_padded(theirs, rows, side):
    """The logits of each row alone, and of all in a batch that is padded on this side"""
    length = max(map(len, rows))
    ids, mask = torch.zeros(2, len(rows), length, dtype=torch.long)
    for row, line, seen in zip(rows, ids, mask):
        part = slice(length - len(row), length) if side == 'left' else slice(len(row))
        line[part], seen[part] = row, 1
    batch = theirs(ids, attention_mask=mask).logits
    return [theirs(row[None]).logits[0] for row in rows], [line[seen.bool()] for line, seen in zip(batch, mask)], ids, mask


@pytest.mark.parametrize('config', [S5, STABLE, LLAMA | dict(n_kv_head=2, tie_weights=False), L2 | POST_NORM], ids=str)
@torch.no_grad()
def test_any_gpt_in_transformers(config, tmp_path):
    """Logits to the last bit, the likeliest text, with the cache and in a padded batch too; saved again, and read back here"""
    ours = random_model(**SMALL | config | dict(block_size=32))
    theirs, idx = exported(ours, tmp_path / 'hf'), ids(ours)[:, :20]
    assert torch.equal(theirs(idx).logits, ours(idx)[0])
    settings = dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
    drawn = theirs.generate(idx, attention_mask=torch.ones_like(idx), **settings)
    assert torch.equal(drawn, ours.generate(idx, 12, temperature=0))
    rows = [idx[0, :7], idx[1], idx[2, :13]]
    for side in ('right', 'left'):
        alone, batch, padded, mask = alone_and_padded(theirs, rows, side)
        for logits, logits_in_batch in zip(alone, batch):
            close(logits, logits_in_batch)
    drawn = theirs.generate(padded, attention_mask=mask, num_beams=2, **settings)[:, 20:]
    for row, new in zip(rows, drawn):
        alone = theirs.generate(row[None], attention_mask=torch.ones(1, len(row)), num_beams=2, **settings)
        assert torch.equal(new, alone[0, len(row):])
    static = hf.StaticCache(config=theirs.config, max_cache_len=30)
    for part in idx.split((6, 1, 1, 4, 8), dim=1):
        last = theirs(part, past_key_values=static).logits
    close(last, ours(idx)[0][:, -8:])
    first = theirs(idx[:, :9])                          # several tokens after others
    close(theirs(idx[:, 9:], past_key_values=first.past_key_values).logits, ours(idx)[0][:, 9:])
    theirs.save_pretrained(tmp_path / 'again')
    for loaded in (load_gpt(str(tmp_path / 'again')), load_gpt(str(tmp_path / 'hf'))):
        assert loaded.config == ours.config and torch.equal(loaded.eval()(idx)[0], ours(idx)[0])
    assert torch.equal(hf.AutoModelForCausalLM.from_pretrained(tmp_path / 'again', trust_remote_code=True)(idx).logits,
                       ours(idx)[0])


@pytest.mark.parametrize('config', [S5, LLAMA, L2], ids=str)
def test_a_model_of_transformers_trains(config, tmp_path):
    """Its loss is that of our forward, and a copy of it has the same gradient, in a padded batch too; bf16 is near"""
    ours = random_model(**SMALL | config)
    theirs, idx = exported(ours, tmp_path), ids(ours)
    loss = theirs.train()(idx, labels=idx).loss
    assert abs(loss - ours(idx[:, :-1], idx[:, 1:].contiguous())[1]) < 1e-5
    mask = torch.ones_like(idx)
    mask[0, :5] = 0
    grads = []
    for model in (theirs, copy.deepcopy(theirs)):
        model(idx, attention_mask=mask, labels=idx.masked_fill(mask == 0, -100)).loss.backward()
        grads.append(model.get_input_embeddings().weight.grad)
    assert torch.equal(*grads) and grads[0].any()
    with torch.no_grad():
        half = hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, dtype=torch.bfloat16)
        got, want = half(idx).logits, ours(idx)[0]
    assert got.dtype == torch.bfloat16 and (got - want).abs().max() < 0.2 * want.abs().max()


def test_a_missing_weight_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file
    exported(random_model(**SMALL | S5), tmp_path)
    weights = load_file(tmp_path / 'model.safetensors')
    del weights['h.1.ffn.w1.bias']
    save_file(weights, tmp_path / 'model.safetensors', metadata={'format': 'pt'})
    with pytest.raises(ValueError, match="the weights have no 'h.1.ffn.w1.bias'"):
        hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)


def test_edited_code_comes_along(tmp_path, monkeypatch):
    """With the files that it imports. Positions that padding would change are noticed and refused, and so is another forward."""
    (tmp_path / 'lab' / 'convert').mkdir(parents=True)
    for name in ('model.py', 'lab/convert/modeling_nanonorm.py'):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(lab.convert.hub, 'ROOT', str(tmp_path))
    text = (ROOT / 'model.py').read_text()
    (tmp_path / 'model.py').write_text('from tables import distances\n' + text.replace(
        'self.kernel(q, k, v,', 'self.kernel(q, k + 0.01 * distances(k), v,'))
    (tmp_path / 'tables.py').write_text('import torch\n\n\ndef distances(k):\n    return torch.arange(k.size(2))[:, None] ** 2\n')
    files = lab.convert.hub.code_files('lab.convert.modeling_nanonorm')
    assert files.keys() == {'modeling_nanonorm.py', 'model.py', 'tables.py'}
    assert files['model.py'].startswith('from .tables import') and 'from .model import' in files['modeling_nanonorm.py']
    (tmp_path / 'hf').mkdir()
    ours = random_model(**SMALL)
    with pytest.raises(ValueError, match='computes other logits'):                      # than this process's model, not edited
        write_own(ours, str(tmp_path / 'hf'))
    monkeypatch.setattr(lab.convert.hub, 'largest_difference', lambda *models: 0.0)
    assert 'left-padded' in write_own(ours, str(tmp_path / 'hf'))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / 'hf', trust_remote_code=True)
    idx, mask = ids(ours), torch.ones_like(ids(ours))
    mask[0, 0] = 0
    with pytest.raises(ValueError, match='left-padded'):
        theirs(idx, attention_mask=mask)


# ----------------------------------------------------------------------------- tokenizers

@pytest.mark.parametrize('name', ['bytes', 'char', 'folder'])
def test_tokenizers(name, tmp_path):
    """The same ids for the same text, and the text again; what looks special in a text is text. The model beside the tokenizer
    keeps the end of a document, for which bytes have no name"""
    text = 'def f(x):\r\n\treturn x  # naïve <s> </s> [UNK] \u0100\u2028ab abc' + ''.join(map(chr, range(0x800)))
    chars, folder = ''.join(sorted(set(text))), tmp_path / 'new'
    if name == 'folder':
        name = hugging_face_folder(tmp_path / 'theirs', '</s>')
    ours = load_tokenizer(name, chars)
    folder.mkdir()
    if name == 'bytes':
        write_model(random_model(**SMALL | LLAMA), folder, 'llama', end=0)
    write_tokenizer(folder, name, chars)
    back, theirs = load_tokenizer(str(folder)), hf.AutoTokenizer.from_pretrained(folder)
    assert back.encode(text) == ours.encode(text) and back.vocab_size == ours.vocab_size
    assert back.decode(ours.encode(text)) == ours.decode(ours.encode(text)) == text
    assert name == 'char' or back.end == ours.end
    if name in ('bytes', 'char'):
        end = chars.index('\n') if name == 'char' else 0
        assert theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id == end
        assert theirs.encode(text) == ours.encode(text) and theirs.decode(theirs.encode(text)) == text


def test_tiktoken(tmp_path, monkeypatch):
    """An encoding that tiktoken has at hand, here one of our own"""
    tiktoken = pytest.importorskip('tiktoken')
    ranks = {bytes([b]): b for b in range(256)} | {b'ab': 256, b' abc': 257, b'\xc3\xaf': 258}
    encoding = tiktoken.Encoding('toy', pat_str=r'\s?\p{L}+|\s|.', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': 259})
    monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: encoding)
    monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: ['toy'])
    write_tokenizer(tmp_path, 'toy', '')
    ours, theirs = load_tokenizer('toy'), hf.AutoTokenizer.from_pretrained(tmp_path)
    text = 'abc abc naïve\n\tabab  \u65e5'
    assert theirs.encode(text) == ours.encode(text) and theirs.decode(theirs.encode(text)) == text
    assert len(theirs) == ours.vocab_size


# ----------------------------------------------------------------------------- as a user calls it

KEYS = dict(dataset='tiny', vocab_size=256, block_size=32, n_layer=1, n_head=2, n_embd=32, batch_size=8, max_iters=30,
            gradient_accumulation_steps=1, warmup_iters=0, eval_iters=2, learning_rate=1e-2, min_lr=0, compile=False,
            dtype='float32', device='cpu')


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with data/tiny and a LLaMA that has learned it a little, out"""
    folder = tmp_path_factory.mktemp('trained')
    os.makedirs(folder / 'data' / 'tiny')
    text = 'the quick brown fox jumps over the lazy dog; naïve café\n' * 50
    write_tokens(folder / 'data' / 'tiny', {split: [text.encode()] for split in ('train', 'val')}, 256, 'bytes')
    (folder / 'tiny.json').write_text(json.dumps(KEYS))
    call('train.py', 'tiny.json', ROOT / 'config/arch/llama.py', '--out_dir=out', cwd=folder)
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """A copy of it"""
    monkeypatch.chdir(shutil.copytree(trained, tmp_path, dirs_exist_ok=True))
    return tmp_path


def test_there_and_back(here):
    """Hugging Face's generation, and the run that is made of it again, continue a text as the run does; it trains on, and another
    run starts from its best.pt with its architecture"""
    flags = ['--start=the qu', '--num_samples=1', '--max_new_tokens=20', '--temperature=0', '--device=cpu', '--dtype=float32']
    text = call('sample.py', '--out_dir=out', *flags)
    assert 'as llama' in call('lab.export', '--out_dir=out', '--to=hf')
    tokenizer, model = hf.AutoTokenizer.from_pretrained('hf'), hf.AutoModelForCausalLM.from_pretrained('hf')
    drawn = model.generate(**tokenizer('the qu', return_tensors='pt'), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert tokenizer.decode(drawn[0]) + '\n' == text
    assert call('sample.py', '--init_from=hf', *flags) == text
    call('lab.export', '--from_hf=hf', '--out_dir=back', '--dataset=tiny')
    assert call('sample.py', '--out_dir=back', *flags) == text
    weights = [torch.load(f'{name}/best.pt', weights_only=True)['model'] for name in ('out', 'back')]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    shutil.rmtree('hf')                                 # no more than the run is needed
    call('train.py', 'tiny.json', '--init_from=out', '--out_dir=new', '--max_iters=1', '--eval_interval=1')
    assert evaluations('new')[0]['val_loss'] == evaluations('out')[-1]['val_loss']
    assert json.loads(Path('new/config.json').read_text())['norm'] == 'rmsnorm'
    call('train.py', 'back/config.json', '--init_from=resume', '--max_iters=3', '--eval_interval=3', '--eval_iters=2',
           '--batch_size=8', '--gradient_accumulation_steps=1', '--device=cpu', '--dtype=float32', '--compile=False')
    assert evaluations('back')[-1]['iter'] == 3 and steps('back')[0]['loss'] < 1.2 * evaluations('out')[-1]['val_loss']


ELSEWHERE = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
drawn = model.generate(**tokenizer('the qu', return_tensors='pt'), max_new_tokens=20, do_sample=False, eos_token_id=None)
print(tokenizer.decode(drawn[0]))
"""


@pytest.mark.long
def test_elsewhere(here):
    """A process that does not find this repository continues a text as sample.py does"""
    call('train.py', 'tiny.json', ROOT / 'config/arch/s5.py', '--out_dir=s5')
    assert 'as nanonorm' in call('lab.export', '--out_dir=s5', '--to=hf-s5')
    os.mkdir('elsewhere')
    done = subprocess.run([sys.executable, '-I', '-c', ELSEWHERE, str(here / 'hf-s5')], cwd='elsewhere', capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == call('sample.py', '--out_dir=s5', '--start=the qu', '--num_samples=1', '--max_new_tokens=20',
                               '--temperature=0', '--device=cpu', '--dtype=float32')
