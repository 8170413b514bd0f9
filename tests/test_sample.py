"""sample.py as a user calls it, on a small run."""
import os
import sys

import pytest
import torch
from helpers import call, flags
from test_text import hugging_face_folder

from data.tokens import read_meta
from data.write import write_tokens
from model import GPT

TEXT = 'the quick brown fox jumps over the lazy dog; naïve café\n' * 200
TINY = flags(dataset='tiny', vocab_size=256, block_size=16, n_layer=1, n_head=2, n_embd=16, batch_size=4, max_iters=20,
             eval_iters=2, gradient_accumulation_steps=1, warmup_iters=0, learning_rate=1e-2, compile=False, dtype='float32',
             device='cpu')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A folder with data/tiny and a run of 20 iterations on it, out-tiny."""
    folder = tmp_path_factory.mktemp('sample')
    os.makedirs(folder / 'data' / 'tiny')
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT.encode()], 'val': [TEXT.encode()]}, 256, 'bytes')
    call('train.py', *TINY, '--out_dir=out-tiny', cwd=folder)
    return folder


def sample(run, *args):
    return call('sample.py', '--device=cpu', *args, cwd=run)


def test_text_is_shown_as_it_grows(run, monkeypatch):
    """Each character once its last byte is drawn; bytes that make none, and half of one at the end, are not lost"""
    drawn, shown = ('é日'.encode() + b'\xffa\xe6\x97', b'same bits'), []

    def sample_tokens(self, ids, *how):
        assert ids.tolist() == [list('naïve\r'.encode())] * 2
        for new in zip(*drawn):
            shown.append(sys.stdout.getvalue())
            yield torch.tensor(new)[:, None]

    monkeypatch.setattr(GPT, 'sample', sample_tokens)
    out = sample(run, '--out_dir=out-tiny', '--start=naïve\r', '--num_samples=2')
    grown = ['', 'naïve\ré', 'naïve\ré日', 'naïve\ré日\ufffda']
    assert shown == [grown[i] for i in (0, 0, 1, 1, 1, 2, 2, 3, 3)]
    assert out == grown[-1] + '\ufffd\n---------------\nnaïve\rsame bits\n'


def test_the_prompt_stays_as_it_was_typed(run, tmp_path, monkeypatch):
    """Also where the tokenizer knows it by other letters, and by more of them"""
    pytest.importorskip('transformers')
    monkeypatch.chdir(run)
    os.makedirs('data/changed')
    tokenizer = hugging_face_folder(tmp_path, normalizer='NFKC')
    write_tokens('data/changed', {split: [range(9)] for split in ('train', 'val')}, 258, tokenizer)
    state = torch.load('out-tiny/best.pt', weights_only=True)
    state['config']['dataset'], state['data'] = 'changed', read_meta('changed')['fingerprint']
    torch.save(state, tmp_path / 'best.pt')
    monkeypatch.setattr(GPT, 'sample', lambda self, ids, *how: (new for new in [torch.tensor([[256]])] * 2))
    assert sample(run, f'--out_dir={tmp_path}', '--start=ﬁne \u2460', '--num_samples=1') == 'ﬁne \u2460abab\n'


def test_pretrained_continues_as_hugging_face_does(tmp_path, monkeypatch):
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
    done = sample(tmp_path, *flags(init_from='small', start='abc, naïve', temperature=0, num_samples=2, max_new_tokens=50,
                                   dtype='float32'))
    assert done.split('\n---------------\n') == [text, text + '\n']
    given = []                                          # the end of a document in a prompt is one token
    monkeypatch.setattr(GPT, 'sample', lambda self, ids, *how: given.append(ids[0].tolist()) or (new for new in [ids[:, :1]]))
    for start, wanted in (('</s>', []), ('a</s>b', tokenizer.encode('a', add_special_tokens=False))):
        sample(tmp_path, *flags(init_from='small', start=start, num_samples=1))
        assert given.pop() == [*wanted, tokenizer.eos_token_id, *tokenizer.encode(start[5:] and 'b', add_special_tokens=False)]


def test_prompt_length_and_seed(run):
    """The seed decides what is drawn, and nothing where one token is left to draw from"""
    (run / 'prompt.txt').write_text('the quick', encoding='utf-8-sig')
    args = ['--out_dir=out-tiny', '--start=FILE:prompt.txt', '--num_samples=2', '--max_new_tokens=30']
    first = sample(run, *args)
    samples = first.split('---------------\n')
    assert len(samples) == 2 and all(one.startswith('the quick') and 9 < len(one) <= 9 + 30 + 1 for one in samples)
    assert sample(run, *args) == first != sample(run, *args, '--seed=1')
    for narrow in ('--temperature=0', '--top_k=1', '--top_p=1e-6'):
        one, two = sample(run, *args, narrow).split('---------------\n')
        assert one == two
