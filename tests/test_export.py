"""lab/export.py: models of transformers with our logits, models with their code, tokenizers, the command."""
import itertools
import os
import sys
from dataclasses import replace

import pytest
import torch
from helpers import ROOT, call, flags
from test_text import hugging_face_folder

from data.text import load_tokenizer
from data.write import write_tokens
from lab.convert.pretrained import FAMILIES, load_gpt
from lab.export import check_equal, obstacles, write_model, write_own, write_tokenizer
from model import GPT, GPTConfig
from test_model import COVERING, MID_NORM, OLMO2, POST_NORM, SIZES, close, randomize, tokens

hf = pytest.importorskip('transformers')
SMALL = dict(block_size=32, vocab_size=50, n_layer=2, n_head=4, n_embd=32, d_ff=48, norm_eps=1e-3)
LLAMA = dict(norm='rmsnorm', pos='rope', ffn='swiglu', rope_theta=50.0)


def random_model(**config):
    """With weights far from their start, gains and biases too, so that none of them can be lost unseen"""
    return randomize(GPT(GPTConfig(**SMALL | config)))


@pytest.mark.parametrize('family, config', [
    ('gpt2', {}), ('gpt2', dict(bias=True, tie_weights=False, ffn='gelu_tanh')), ('gpt2', dict(ffn='relu', d_ff=0, n_kv_head=4)),
    ('llama', LLAMA), ('llama', LLAMA | dict(tie_weights=False, n_kv_head=2)), ('llama', LLAMA | dict(d_ff=0, n_kv_head=1)),
    ('qwen3', LLAMA | dict(qk_norm=True)), ('qwen3', LLAMA | dict(qk_norm=True, tie_weights=False, n_kv_head=2)),
    ('olmo2', LLAMA | OLMO2 | dict(n_kv_head=2))])
def test_hugging_face_and_back(family, config, tmp_path):
    ours = random_model(**config)
    write_model(ours, tmp_path, family, end=7)
    theirs, idx = hf.AutoModelForCausalLM.from_pretrained(tmp_path).eval(), tokens(3, 32)
    assert type(theirs).__name__ == FAMILIES[family].model and theirs.config.eos_token_id == 7
    close(theirs(idx).logits, ours(idx)[0], 1e-5)
    back = load_gpt(str(tmp_path)).eval()
    assert torch.equal(back(idx)[0], ours(idx)[0])
    assert back.config.bias == ours.config.bias and back.num_params() == ours.num_params()


def test_what_has_no_obstacle_is_equal():
    """A family refuses what it cannot express, and names it; without that it takes the model"""
    for config, family in itertools.product(COVERING, FAMILIES):
        ours = GPTConfig(**SIZES | config)
        changes = {field: (value == 'True') if isinstance(getattr(ours, field), bool) else type(getattr(ours, field))(value)
                   for field, value in (item.split('=') for item in obstacles(ours, family))}
        assert all(getattr(ours, field) != value for field, value in changes.items())
        assert not obstacles(replace(ours, **changes), family)


OWN = [dict(norm='rmsnorm', input_norm=True, ffn_pre_norm=False, **MID_NORM, qk_norm=True, bias=True),
       dict(norm='stablenorm', attention='stable', norm_alpha=0.475), dict(attention='l2', pos='rope', **POST_NORM),
       LLAMA | dict(n_kv_head=2, tie_weights=False, v_norm=True, qk_clip=9.0), dict(residual='mhc_lite', norm_gain='none')]


@pytest.mark.parametrize('config', OWN, ids=str)
def test_any_gpt_in_transformers(config, tmp_path):
    """Logits to the last bit, the likeliest text beyond a window, padding on the right, a loss with its gradient, bf16"""
    ours, idx = random_model(**config), tokens(3, 20)
    write_own(ours, str(tmp_path))
    theirs, about = hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, output_loading_info=True)
    assert not any(about.values())
    assert all(type(code).__module__.startswith('transformers_modules') for code in (theirs, theirs.net))   # not from here
    assert 'GPTConfig' not in (tmp_path / 'model.py').read_text()      # this model alone
    with torch.no_grad():
        logits = theirs(idx).logits
        assert torch.equal(logits, ours(idx)[0])
        assert torch.equal(theirs.generate(idx, max_new_tokens=20, do_sample=False), ours.generate(idx, 20, temperature=0))
        mask = torch.arange(20) < torch.tensor([[20], [7], [13]])
        padded = theirs(idx * mask, attention_mask=mask.long()).logits
        close(padded[mask], logits[mask], 1e-5)
        check_padded_on_the_left(theirs, ours, idx, mask.flip(1))
        check_arguments(theirs, ours, idx)
        half = hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, dtype=torch.bfloat16)
        assert (half(idx).logits - logits).abs().max() < 0.2 * logits.abs().max()
    loss = theirs.train()(idx, labels=idx).loss
    loss.backward()
    wanted = ours(idx[:, :-1], idx[:, 1:].contiguous())[1]
    wanted.backward()
    close(loss, wanted, 1e-5)
    close(theirs.get_input_embeddings().weight.grad, ours.wte.weight.grad, 1e-4)
    theirs.save_pretrained(tmp_path / 'again')
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / 'again', trust_remote_code=True)
    with torch.no_grad():
        assert torch.equal(again(idx).logits, logits)
    assert again.num_parameters() == ours.num_params()


def test_an_export_that_reads_padding_is_refused(tmp_path, monkeypatch):
    """Such as that of an edit whose attention does not call PyTorch's kernel, which gets the mask"""
    ours = random_model()
    write_own(ours, str(tmp_path))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    masked = vars(sys.modules[type(theirs).__module__])['Masked']
    monkeypatch.setattr(masked, '__torch_function__', lambda self, function, types, args=(), more=None: function(
        *args, **more or {}))
    check_equal(ours, theirs, 1e-5)
    with pytest.raises(ValueError, match='the exported model computes other logits'):
        check_equal(ours, theirs, 1e-5, padding=1)


def check_padded_on_the_left(theirs, ours, idx, mask):
    """Each text of the batch has the logits that it has alone, and is continued as alone, in the window with a cache"""
    ids = idx * mask
    texts = [row[kept][None] for row, kept in zip(idx, mask)]
    logits = theirs(ids, attention_mask=mask.long()).logits
    for text, row, kept in zip(texts, logits, mask):
        close(row[kept], ours(text)[0][0], 1e-5)
    drawn = theirs.generate(ids, attention_mask=mask.long(), max_new_tokens=25, do_sample=False, output_logits=True,
                            return_dict_in_generate=True)
    assert drawn.past_key_values.get_seq_length() == 32         # a cache was used while the window did not slide
    for i, text in enumerate(texts):
        alone = ours.generate(text, 25, temperature=0)[0]
        assert torch.equal(drawn.sequences[i, 20:], alone[text.size(1):])
        close(drawn.logits[5][i], ours(alone[None, :text.size(1) + 5])[0][0, -1], 1e-5)
    beams = [theirs.generate(ids, attention_mask=mask.long(), max_new_tokens=9, num_beams=3, do_sample=False, use_cache=cache)
             for cache in (True, False)]
    assert torch.equal(*beams)
    halves = theirs(ids[:, :12], attention_mask=mask[:, :12].long(), use_cache=True)
    rest = theirs(ids[:, 12:], attention_mask=mask.long(), past_key_values=halves.past_key_values).logits
    close(torch.cat((halves.logits, rest), 1)[mask], logits[mask], 1e-5)


def check_arguments(theirs, ours, idx):
    """inputs_embeds, position_ids, output_hidden_states, and a batch without a label"""
    wanted = ours(idx)[0]
    found = theirs(inputs_embeds=ours.wte(idx), position_ids=torch.arange(20)[None], output_hidden_states=True)
    assert torch.equal(found.logits, wanted) and len(found.hidden_states) == ours.config.n_layer + 1
    if not ours.config.mup_base_width:
        close(ours.head_gain(ours.lm_head(found.hidden_states[-1])), wanted, 1e-6)
    if ours.config.pos == 'learned':
        moved = theirs(idx, position_ids=torch.arange(19, -1, -1)[None])
        assert not torch.equal(moved.logits, wanted)
    assert theirs(idx, labels=torch.full_like(idx, -100)).loss == 0
    theirs._is_replica = True
    assert torch.equal(theirs(idx).logits, wanted)
    with pytest.raises(ValueError, match='DataParallel'):
        theirs(idx, attention_mask=(torch.arange(20) > 2).long().expand(3, -1))
    theirs._is_replica = False
    drawn = theirs.generate(inputs_embeds=ours.wte(idx), max_new_tokens=9, do_sample=False)
    assert torch.equal(drawn, ours.generate(idx, 9, temperature=0)[:, 20:])
    assisted = theirs.generate(idx[:1], max_new_tokens=9, do_sample=False, assistant_model=theirs)
    assert torch.equal(assisted, ours.generate(idx[:1], 9, temperature=0))
    with pytest.raises(ValueError, match='a static cache is not supported'):
        theirs.generate(idx, max_new_tokens=9, do_sample=False, cache_implementation='static')
    with pytest.raises(ValueError, match='a sequence of 33 tokens is longer than block_size=32'):
        theirs.generate(inputs_embeds=ours.wte(idx), max_new_tokens=30, do_sample=False)


NGPT = dict(unit_weights=True, attention='ngpt', residual='ngpt')


@pytest.mark.parametrize('config', [{}, dict(tie_weights=False), NGPT], ids=str)
def test_another_vocabulary(config, tmp_path, request):
    """An export grows and shrinks: old logits stay, a tied head stays tied, and it is saved and loaded again"""
    ours, idx = random_model(**config), tokens(2, 9)
    write_own(ours, str(tmp_path))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    torch.set_grad_enabled(False)                       # with gradients, ours takes another kernel
    request.addfinalizer(lambda: torch.set_grad_enabled(True))
    for size in (60, 50):
        theirs.resize_token_embeddings(size)
        assert torch.equal(theirs(idx).logits[..., :50], ours(idx)[0]) and theirs(idx).logits.size(-1) == size
        assert (theirs.net.lm_head.weight is theirs.net.wte.weight) == ours.config.tie_weights
        theirs.save_pretrained(tmp_path / 'again')
        again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / 'again', trust_remote_code=True)
        assert torch.equal(again(idx).logits, theirs(idx).logits)


@pytest.mark.parametrize('name', ['bytes', 'char', 'folder', 'toy'])
def test_tokenizers(name, tmp_path, monkeypatch):
    """The same ids for the same text, and the text again; what looks special in a text is text. `toy` is tiktoken's"""
    text = 'def f(x):\r\n\treturn x  # naïve <s> </s> [UNK] \u0100\u2028ab abc' + ''.join(map(chr, range(0x800)))
    chars = ''.join(sorted(set(text)))
    if name == 'folder':
        name = hugging_face_folder(tmp_path / 'theirs', '</s>')
    if name == 'toy':
        tiktoken = pytest.importorskip('tiktoken')
        ranks = {bytes([b]): b for b in range(256)} | {b'ab': 256, b' abc': 257, b'\xc3\xaf': 258}
        toy = tiktoken.Encoding('toy', pat_str=r'\s?\p{L}+|\s|.', mergeable_ranks=ranks, special_tokens={'<|endoftext|>': 259})
        monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: toy)
        monkeypatch.setattr(tiktoken, 'list_encoding_names', lambda: ['toy'])
    ours = load_tokenizer(name, chars)
    (tmp_path / 'new').mkdir()
    end = write_tokenizer(tmp_path / 'new', name, chars)
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / 'new')
    if name in ('bytes', 'char', 'toy'):
        assert theirs.encode(text) == ours.encode(text) and theirs.decode(theirs.encode(text)) == text
        wanted = chars.index('\n') if name == 'char' else end
        assert theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id == wanted
    back = load_tokenizer(str(tmp_path / 'new'))
    assert back.encode(text) == ours.encode(text) and back.vocab_size == ours.vocab_size and end == ours.end
    assert back.decode(ours.encode(text)) == ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize('arch, family', [('llama', 'llama'), ('s5', 'nanonorm')])
def test_there_and_back(arch, family, tmp_path, monkeypatch):
    """The export continues a text as the run does, beyond a window; that of a family is sampled and evaluated here as the run"""
    monkeypatch.chdir(tmp_path)
    text = 'the quick brown fox jumps over the lazy dog; naïve café\n' * 50
    os.makedirs('data/tiny')
    write_tokens('data/tiny', {split: [text.encode()] for split in ('train', 'val')}, 256, 'bytes')
    keys = flags(dataset='tiny', vocab_size=256, block_size=64, n_layer=1, n_head=2, n_embd=32, batch_size=8, warmup_iters=0,
                 gradient_accumulation_steps=1, eval_iters=2, min_lr=0, compile=False, dtype='float32', device='cpu')
    call('train.py', ROOT / f'config/arch/{arch}.py', *keys, '--max_iters=30', '--learning_rate=1e-2')
    assert f'as {family}' in call('lab.export', '--to=hf')
    flags_of = flags(start='the qu', num_samples=1, max_new_tokens=40, temperature=0, device='cpu', dtype='float32')
    wanted = call('sample.py', '--out_dir=out', *flags_of)
    tokenizer, theirs = (kind.from_pretrained('hf', trust_remote_code=True)
                         for kind in (hf.AutoTokenizer, hf.AutoModelForCausalLM))
    drawn = theirs.generate(**tokenizer('the qu', return_tensors='pt'), max_new_tokens=40, do_sample=False, eos_token_id=None)
    assert tokenizer.decode(drawn[0]) + '\n' == wanted
    if family == 'llama':
        assert call('sample.py', '--init_from=hf', *flags_of) == wanted
        scores = [call('lab.evaluate', f'--out_dir={name}', '--dataset=tiny', '--dtype=float32') for name in ('out', 'hf')]
        assert scores[0] == scores[1] and scores[0].startswith('loss ')
