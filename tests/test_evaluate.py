"""lab.evaluate as a user calls it, against plain computations of the same scores."""
import json
import math

import numpy as np
import pytest
import torch
from helpers import call, flags
from test_text import hugging_face_folder

from data.text import load_tokenizer
from data.write import write_tokens
from engine.checkpoint import load_run
from lab.evaluate import bytes_of

LINES = [f'{who} {does} the {what}, and naïvely\n' for who in ('ann', 'bob', 'cy') for does in ('sees', 'hits', 'eats')
         for what in ('ball', 'cat')]
TEXT = ''.join(LINES[i] for i in np.random.default_rng(0).integers(len(LINES), size=400))
KEYS = dict(vocab_size=256, n_layer=1, n_head=2, n_embd=32, batch_size=8, gradient_accumulation_steps=1, warmup_iters=0,
            eval_iters=2, learning_rate=1e-2, min_lr=0.0, compile=False, dtype='float32', device='cpu', max_iters=40)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A run with windows of 24 tokens, on data/tiny beside it"""
    folder = tmp_path_factory.mktemp('evaluate')
    (folder / 'data' / 'tiny').mkdir(parents=True)
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT[5800:].encode()], 'val': [TEXT[:3100].encode()],
                                            'test': [TEXT[4500:5800].encode()]}, 256, 'bytes')
    call('train.py', *flags(**KEYS, dataset='tiny', block_size=24), cwd=folder)
    return folder / 'out'


def evaluate(run, *args):
    """→ {label: mean}, {label: standard error}"""
    call('lab.evaluate', '--device=cpu', '--dtype=float32', *args, cwd=run.parent)
    scores = json.loads((run / 'evaluate.jsonl').read_text().splitlines()[-1])['scores']
    return [{label: score[of] for label, score in scores.items()} for of in ('mean', 'error')]


def model_of(run):
    return load_run(run / 'best.pt')[0].double().eval()


def tokens_of(run, split='val'):
    return np.fromfile(run.parent / 'data' / 'tiny' / f'{split}.bin', np.uint16).tolist()


@torch.no_grad()
def log_p(model, context, target):
    """Log p of each target token behind as much of the context as one window holds beside the target, and the likeliest tokens"""
    context = context[-(model.config.block_size + 1 - len(target)):]
    logits = model(torch.tensor([context + target])[:, :-1])[0][0, len(context) - 1:].log_softmax(-1)
    return np.array([line[token].item() for line, token in zip(logits, target)]), logits.argmax(-1).tolist()


@pytest.mark.parametrize('split, stride, count', [('val', 0, 0), ('val', 7, 0), ('test', 5, 601)])
def test_loss(split, stride, count, run):
    """Every token but the first counts once; the data are bytes"""
    means, errors = evaluate(run, f'--split={split}', f'--stride={stride}', f'--tokens={count}', '--batch_size=5')
    model, tokens, losses, step = model_of(run), tokens_of(run, split)[:count or None], [], stride or 24
    for t in range(1, len(tokens)):                     # behind all that its window, the first that holds it, has before it
        start = min(max(0, math.ceil((t - 24) / step)) * step, len(tokens) - 25)
        losses.append(-log_p(model, tokens[start:t], tokens[t:t + 1])[0].item())
    segments = [np.mean(part) for part in np.array_split(losses, max(2, len(losses) // 1024))]
    loss, error, bits = np.mean(losses), np.std(segments, ddof=1) / math.sqrt(len(segments)), 1 / math.log(2)
    assert means == pytest.approx({'loss': loss, 'perplexity': math.exp(loss), 'bits per byte': loss * bits}, rel=1e-5)
    assert errors == pytest.approx({'loss': error, 'perplexity': math.exp(loss) * error, 'bits per byte': error * bits}, rel=1e-4)


def test_bytes_of_longer_tokens(tmp_path):
    """Tokens of several letters; the end of a document is a byte of its own"""
    tokenizer = load_tokenizer(hugging_face_folder(tmp_path, '</s>'))
    documents = ['abcabc, naïve', 'café abc\n', 'a tail without an end']
    ids = [i for text in documents for i in (*tokenizer.encode(text), tokenizer.end)][:-1]
    assert bytes_of(np.array(ids), tokenizer) == sum(len(text.encode()) for text in documents) + 2 != len(ids)


def test_rouge_and_bertscore(run, tmp_path):
    """By their libraries, of the likeliest tokens; BERTScore by a small BERT of letters with random weights"""
    hf, bert_score = pytest.importorskip('transformers'), pytest.importorskip('bert_score')
    scorer = pytest.importorskip('rouge_score.rouge_scorer').RougeScorer(['rouge1', 'rouge2', 'rougeL'])
    letters = [chr(i) for i in range(ord('a'), ord('z') + 1)]
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', *letters, *(f'##{c}' for c in letters)]
    hf.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}, model_max_length=64).save_pretrained(tmp_path)
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                               intermediate_size=32, max_position_embeddings=64, initializer_range=0.5)).save_pretrained(tmp_path)
    means, errors = evaluate(run, '--what=rouge,bertscore', '--samples=7', '--batch_size=3', f'--bert_model={tmp_path}')
    model, tokens, pairs = model_of(run), tokens_of(run), []
    for i in range(7):
        window = tokens[i * ((len(tokens) - 1) // 24) // 7 * 24:][:25]
        rows = window[13:], log_p(model, window[:13], window[13:])[1]
        pairs.append([bytes(row).decode('utf-8', 'replace') for row in rows])
    for kind in '12L':
        scores = [100 * scorer.score(*pair)[f'rouge{kind}'].fmeasure for pair in pairs]
        assert means[f'ROUGE-{kind}'] == pytest.approx(np.mean(scores), abs=1e-9)
        assert errors[f'ROUGE-{kind}'] == pytest.approx(np.std(scores, ddof=1) / math.sqrt(7), abs=1e-9)
    true, predicted = zip(*(pair for pair in pairs if pair[1].strip()))         # a blank text scores 0
    for kind, values in zip(('P', 'R', 'F1'), bert_score.score(predicted, true, model_type=str(tmp_path), num_layers=2)):
        assert means[f'BERTScore {kind}'] == pytest.approx(100 * values.sum().item() / 7, abs=1e-3)
    assert 0 < means['ROUGE-1'] < 100 and 0 < means['BERTScore F1'] < 100
