"""lab.evaluate as a user calls it, against plain computations of the same scores."""
import json
import math

import numpy as np
import pytest
import torch
from helpers import call, run_ranks
from scipy import stats
from test_text import hugging_face_folder

from data.text import load_tokenizer
from data.tokens import write_tokens
from engine.checkpoint import load_run
from lab.evaluate.split import bytes_of

LINES = [f'{who} {does} the {what}, and naïvely\n' for who in ('ann', 'bob', 'cy') for does in ('sees', 'hits', 'eats')
         for what in ('ball', 'cat')]
TEXT = ''.join(LINES[i] for i in np.random.default_rng(0).integers(len(LINES), size=400))
KEYS = dict(vocab_size=256, n_layer=1, n_head=2, n_embd=32, batch_size=8, gradient_accumulation_steps=1, warmup_iters=0,
            eval_iters=2, learning_rate=1e-2, compile=False, dtype='float32', device='cpu', max_iters=40, block_size=16)


def evaluate(folder, *args, **more):
    return call('lab.evaluate', '--device=cpu', '--dtype=float32', *args, cwd=folder, **more)


def last_scores(run):
    row = json.loads((run / 'evaluate.jsonl').read_text().splitlines()[-1])
    return tuple({label: score[of] for label, score in row['scores'].items()} for of in ('mean', 'error'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """data/tiny, and three runs on it: long has windows of 24 tokens, raw has not trained"""
    folder = tmp_path_factory.mktemp('evaluate')
    (folder / 'data' / 'tiny').mkdir(parents=True)
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT[5800:].encode()], 'val': [TEXT[:4500].encode()],
                                            'test': [TEXT[4500:5800].encode()]}, 256, 'bytes')
    (folder / 'tiny.json').write_text(json.dumps(dict(KEYS, dataset='tiny')))
    for name, more in dict(short=[], long=['--block_size=24'], raw=['--max_iters=1', '--learning_rate=1e-4']).items():
        call('train.py', 'tiny.json', f'--out_dir={name}', '--min_lr=0', *more, cwd=folder)
    return folder


def model_of(folder, name):
    return load_run(folder / name / 'best.pt')[0].double().eval()


def val(folder, split='val'):
    return np.fromfile(folder / 'data' / 'tiny' / f'{split}.bin', np.uint16).astype(np.int64)


@torch.no_grad()
def plain_losses(model, tokens, stride):
    """−log p of each token but the first, a forward pass for each window"""
    size, last = model.config.block_size, len(tokens) - 1
    losses, windows = [], {}
    for t in range(1, len(tokens)):
        window = max(0, math.ceil((t - size) / stride))
        windows.setdefault(min(window * stride, last - size), []).append(t)
    for start, ts in windows.items():
        logits = model(torch.from_numpy(tokens[None, start:ts[-1]]))[0][0].log_softmax(-1)
        losses += [-logits[t - start - 1, tokens[t]].item() for t in ts]
    return np.array(losses)


@pytest.mark.parametrize('name, stride, split', [('short', 0, 'test'), ('short', 5, 'val'), ('long', 7, 'val')])
def test_loss(folder, name, stride, split):
    """Every token but the first counts once, seen from behind as much as its window holds"""
    evaluate(folder, f'--out_dir={name}', f'--stride={stride}', f'--split={split}', '--batch_size=5')
    model = model_of(folder, name)
    losses = plain_losses(model, val(folder, split), stride or model.config.block_size)
    means, errors = last_scores(folder / name)
    assert means['loss'] == pytest.approx(losses.mean(), abs=1e-6)
    if split == 'test':
        return                                          # too short for an error
    segments = [part.mean() for part in np.array_split(losses, len(losses) // 1024)]
    error = np.std(segments, ddof=1) / math.sqrt(len(segments))
    assert len(segments) == 4
    assert errors['loss'] == pytest.approx(error, abs=1e-6)
    assert means['perplexity'] == pytest.approx(math.exp(losses.mean()), abs=1e-4)
    assert errors['perplexity'] == pytest.approx(math.exp(losses.mean()) * error, abs=1e-5)
    assert means['bits per byte'] == pytest.approx(losses.mean() / math.log(2), abs=1e-6)
    assert errors['bits per byte'] == pytest.approx(error / math.log(2), abs=1e-6)


@pytest.mark.long
def test_two_ranks(folder):
    evaluate(folder, '--out_dir=short', '--what=loss,rouge', '--samples=5', '--batch_size=3')
    alone = last_scores(folder / 'short')
    code, out, err = run_ranks(2, 'lab.evaluate', '--out_dir=short', '--what=loss,rouge', '--samples=5', '--batch_size=3',
                               '--device=cpu', '--dtype=float32', cwd=folder)
    assert code == 0, err
    assert out.count('| short |') == 1          # one rank speaks
    for ours, theirs in zip(last_scores(folder / 'short'), alone):
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_bytes_of_longer_tokens(tmp_path):
    """Tokens of several letters; the end of a document is a byte of its own"""
    tokenizer = load_tokenizer(hugging_face_folder(tmp_path, '</s>'))
    documents = ['abcabc, naïve', 'café abc\n', 'a tail without an end']
    ids = [i for text in documents for i in (*tokenizer.encode(text), tokenizer.end)][:-1]
    assert bytes_of(np.array(ids), tokenizer) == sum(len(text.encode()) for text in documents) + 2 != len(ids)


def test_several_runs_are_one_table(folder):
    """The best in bold; windows of another length are compared token by token; the same run twice differs by nothing"""
    out = evaluate(folder, '--out_dir=short,raw,long,short', '--what=loss').splitlines()
    means = {name: last_scores(folder / name)[0]['loss'] for name in ('short', 'raw', 'long')}
    best = min(means, key=means.get)
    assert best != 'raw'
    rows = {line.split(' | ')[0][2:]: line for line in out[2:5]}
    assert set(rows) == {'short', 'raw', 'long'}
    assert [name for name in rows if '**' in rows[name]] == [best] and f'**{means[best]:.4f} ± ' in rows[best]
    losses = {name: plain_losses(model_of(folder, name), val(folder), model_of(folder, name).config.block_size)
              for name in ('raw', best)}
    gap = np.array([part.mean() for part in np.array_split(losses['raw'] - losses[best], 4)])
    p = stats.ttest_1samp(gap, 0).pvalue
    raw, = [line for line in out if line.startswith('loss: raw is ')]
    p = f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'
    error = np.std(gap, ddof=1) / 2
    assert raw == f'loss: raw is {means["raw"] - means[best]:.4f} ± {error:.4f} behind {best}, beyond the noise ({p}, paired)'


def test_what_is_no_number_is_never_best(folder):
    state = torch.load(folder / 'raw' / 'best.pt', weights_only=True)
    state['model']['final_norm.weight'][:] = 1e38       # logits overflow
    (folder / 'broken').mkdir()
    torch.save(state, folder / 'broken' / 'best.pt')
    out = evaluate(folder, '--out_dir=broken,raw', '--batch_size=64')
    assert '| broken | nan | nan | nan |' in out and '| raw | **' in out and 'noise' not in out


# ----------------------------------------------------------------------------- text

@torch.no_grad()
def plain_texts(model, tokens, samples):
    """(true, forced, free) of the second half of evenly spread windows"""
    size = model.config.block_size
    windows = (len(tokens) - 1) // size
    for i in range(samples):
        window = tokens[i * windows // samples * size:][:size + 1]
        forced, free = [], window[:size // 2 + 1].tolist()
        for t in range(size // 2, size):
            forced.append(model(torch.from_numpy(window[None, :t + 1]))[0][0, -1].argmax().item())
            free.append(model(torch.tensor([free]))[0][0, -1].argmax().item())
        rows = window[size // 2 + 1:].tolist(), forced, free[size // 2 + 1:]
        yield tuple(bytes(row).decode('utf-8', 'replace') for row in rows)


def test_rouge(folder):
    library = pytest.importorskip('rouge_score.rouge_scorer')
    evaluate(folder, '--out_dir=long', '--what=rouge', '--samples=7', '--batch_size=3')
    means, errors = last_scores(folder / 'long')
    texts = list(plain_texts(model_of(folder, 'long'), val(folder), 7))
    for column, way in ((1, 'teacher-forced'), (2, 'continued')):
        for kind in '12L':
            name, label = f'rouge{kind}', f'ROUGE-{kind} {way}'
            scores = [100 * library.RougeScorer([name]).score(row[0], row[column])[name].fmeasure for row in texts]
            assert means[label] == pytest.approx(np.mean(scores), abs=1e-9)
            assert errors[label] == pytest.approx(np.std(scores, ddof=1) / math.sqrt(7), abs=1e-9)
    assert 0 < means['ROUGE-1 teacher-forced'] < 100


@pytest.fixture(scope='module')
def bert(tmp_path_factory):
    """The folder of a small BERT of letters, with random weights"""
    hf = pytest.importorskip('transformers')
    place = tmp_path_factory.mktemp('bert')
    letters = [chr(i) for i in range(ord('a'), ord('z') + 1)]
    vocab = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', *letters, *(f'##{c}' for c in letters)]
    tokenizer = hf.BertTokenizerFast(vocab={word: i for i, word in enumerate(vocab)}, model_max_length=64)
    tokenizer.save_pretrained(place)
    torch.manual_seed(0)
    model = hf.BertModel(hf.BertConfig(vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                       intermediate_size=32, max_position_embeddings=64, initializer_range=0.5)).eval()
    model.save_pretrained(place)
    return place


def test_bertscore(folder, bert):
    library = pytest.importorskip('bert_score')
    evaluate(folder, '--out_dir=long', '--what=bertscore', '--samples=3', f'--bert_model={bert}')
    means, _ = last_scores(folder / 'long')
    true, *written = zip(*plain_texts(model_of(folder, 'long'), val(folder), 3))
    for way, texts in zip(('teacher-forced', 'continued'), written):
        for letter, values in zip('PRF', library.score(texts, true, model_type=str(bert), num_layers=2, device='cpu')):
            assert means[f'BERT-{letter} {way}'] == pytest.approx(100 * values.mean().item(), abs=1e-3)
            assert 0 < means[f'BERT-{letter} {way}'] < 100
