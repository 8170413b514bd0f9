"""lab/evaluate.py as a user calls it, against plain computations of the same scores."""
import json
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import call, run_here, run_ranks
from scipy import stats
from test_text import hugging_face_folder

from data.tokens import write_tokens
from engine.checkpoint import load_text_run
from model import GPT

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
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT[4500:].encode()], 'val': [TEXT[:4500].encode()]}, 256, 'bytes')
    (folder / 'tiny.json').write_text(json.dumps(dict(KEYS, dataset='tiny')))
    for name, more in dict(short=[], long=['--block_size=24'], raw=['--max_iters=1', '--learning_rate=1e-4']).items():
        call('train.py', 'tiny.json', f'--out_dir={name}', '--min_lr=0', *more, cwd=folder)
    return folder


def model_of(folder, name):
    return load_text_run(folder / name / 'best.pt')[0].double().eval()


def val(folder):
    return np.fromfile(folder / 'data' / 'tiny' / 'val.bin', np.uint16).astype(np.int64)


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


@pytest.mark.parametrize('name, stride', [('short', 0), ('short', 5), ('long', 7)])
def test_loss(folder, name, stride):
    """Every token but the first counts once, seen from behind as much as its window holds"""
    evaluate(folder, f'--out_dir={name}', f'--stride={stride}', '--batch_size=5')
    model = model_of(folder, name)
    losses = plain_losses(model, val(folder), stride or model.config.block_size)
    means, errors = last_scores(folder / name)
    segments = [part.mean() for part in np.array_split(losses, len(losses) // 1024)]
    error = np.std(segments, ddof=1) / math.sqrt(len(segments))
    assert len(segments) == 4 and means['loss'] == pytest.approx(losses.mean(), abs=1e-6)
    assert errors['loss'] == pytest.approx(error, abs=1e-6)
    assert means['perplexity'] == pytest.approx(math.exp(losses.mean()), abs=1e-4)
    assert errors['perplexity'] == pytest.approx(math.exp(losses.mean()) * error, abs=1e-5)
    text = val(folder)[1:].astype(np.uint8).tobytes()
    assert means['bits per byte'] == pytest.approx(losses.sum() / math.log(2) / len(text), abs=1e-6)
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


def test_bits_per_byte_of_longer_tokens(folder):
    """Tokens of several letters; the end of a document is a byte of its own"""
    name = hugging_face_folder(folder / 'tokenizer', '</s>')
    from data.text import load_tokenizer
    tokenizer = load_tokenizer(name)
    documents = ['abcabc, naïve', 'café abc\n', 'a tail that is cut']
    ids = [i for text in documents for i in (*tokenizer.encode(text), tokenizer.end)][:-3]
    (folder / 'data' / 'pieces').mkdir()
    write_tokens(folder / 'data' / 'pieces', {split: [ids] for split in ('train', 'val')}, tokenizer.vocab_size, name)
    state = torch.load(folder / 'short' / 'best.pt', weights_only=True)
    state['config'].update(dataset='pieces', vocab_size=tokenizer.vocab_size)
    for key in ('wte.weight', 'lm_head.weight'):
        state['model'][key] = torch.randn(tokenizer.vocab_size, 32, generator=torch.Generator().manual_seed(0))
    (folder / 'pieces').mkdir()
    torch.save(state, folder / 'pieces' / 'best.pt')
    evaluate(folder, '--out_dir=pieces')
    means, _ = last_scores(folder / 'pieces')
    ends = [i for i, token in enumerate(ids) if token == tokenizer.end]
    assert len(ends) == 2 and ids[0] != tokenizer.end
    texts = [tokenizer.decode(ids[1:ends[0]]), tokenizer.decode(ids[ends[0] + 1:ends[1]]), tokenizer.decode(ids[ends[1] + 1:])]
    size = sum(len(text.encode()) for text in texts) + 2
    assert size != len(ids) - 1
    assert means['bits per byte'] == pytest.approx(means['loss'] * (len(ids) - 1) / size / math.log(2), rel=1e-6)


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


def test_the_table_is_printed_where_it_cannot_be_written(folder):
    """One line says so, and the exit code"""
    (folder / 'raw' / 'evaluate.jsonl').unlink(missing_ok=True)
    (folder / 'raw' / 'evaluate.jsonl').mkdir()
    code, out, err = run_here('lab.evaluate', '--device=cpu', '--dtype=float32', '--out_dir=raw,short', cwd=folder)
    (folder / 'raw' / 'evaluate.jsonl').rmdir()
    assert code == 1 and '| raw |' in out and '| short |' in out
    assert re.fullmatch("error: the scores above could not be written: raw/evaluate.jsonl is no file but a folder.*\n", err)
    assert last_scores(folder / 'short')[0]['loss'] > 0, 'the others are written'


def test_what_is_no_number_is_never_best(folder):
    state = torch.load(folder / 'raw' / 'best.pt', weights_only=True)
    state['model']['final_norm.weight'][:] = 1e38       # logits overflow
    (folder / 'broken').mkdir()
    torch.save(state, folder / 'broken' / 'best.pt')
    out = evaluate(folder, '--out_dir=broken,raw', '--batch_size=64')
    assert '| broken | nan | nan | nan |' in out and '| raw | **' in out and 'noise' not in out
    assert json.loads((folder / 'broken' / 'evaluate.jsonl').read_text())['scores']['loss']['mean'] is None


# ----------------------------------------------------------------------------- text

def rouge_1(reference, text):
    """F1 of the words that both have, in per cent"""
    words = [Counter(re.findall('[a-z0-9]+', one.lower())) for one in (reference, text)]
    both = (words[0] & words[1]).total()
    return 200 * both / (words[0].total() + words[1].total()) if both else 0.0


@torch.no_grad()
def plain_texts(model, tokens, samples):
    """(reference, told, free) of the second half of evenly spread windows"""
    size = model.config.block_size
    windows = (len(tokens) - 1) // size
    for i in range(samples):
        window = tokens[i * windows // samples * size:][:size + 1]
        told, free = [], window[:size // 2 + 1].tolist()
        for t in range(size // 2, size):
            told.append(model(torch.from_numpy(window[None, :t + 1]))[0][0, -1].argmax().item())
            free.append(model(torch.tensor([free]))[0][0, -1].argmax().item())
        rows = window[size // 2 + 1:].tolist(), told, free[size // 2 + 1:]
        yield tuple(bytes(row).decode('utf-8', 'replace') for row in rows)


def test_rouge(folder):
    evaluate(folder, '--out_dir=long', '--what=rouge', '--samples=7', '--batch_size=3')
    means, errors = last_scores(folder / 'long')
    texts = list(plain_texts(model_of(folder, 'long'), val(folder), 7))
    for column, way in ((1, 'teacher-forced'), (2, 'continued')):
        found = [rouge_1(row[0], row[column]) for row in texts]
        assert means[f'ROUGE-1 {way}'] == pytest.approx(np.mean(found), abs=1e-9)
        assert errors[f'ROUGE-1 {way}'] == pytest.approx(np.std(found, ddof=1) / math.sqrt(7), abs=1e-9)
        assert 0 <= means[f'ROUGE-2 {way}'] <= means[f'ROUGE-L {way}'] <= means[f'ROUGE-1 {way}'] < 100
    assert means['ROUGE-1 teacher-forced'] > 0


@pytest.fixture(scope='module')
def bert(tmp_path_factory):
    """A small BERT of letters, with random weights, and its folder"""
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
    return model, tokenizer, place


@torch.no_grad()
def test_bertscore(folder, bert):
    """Zhang et al. 2020, eq. 1: each token's most similar one in the other text, by the last layer"""
    model, tokenizer, place = bert
    evaluate(folder, '--out_dir=long', '--what=bertscore', '--samples=3', f'--bert_model={place}')
    means, _ = last_scores(folder / 'long')

    def states(text):
        ids = tokenizer(text.strip(), return_tensors='pt')['input_ids']
        return torch.nn.functional.normalize(model(ids)[0][0], dim=-1)

    texts = list(plain_texts(model_of(folder, 'long'), val(folder), 3))
    for column, way in ((1, 'teacher-forced'), (2, 'continued')):
        pairs = [states(row[column]) @ states(row[0]).T for row in texts]        # [CLS] and [SEP] may be found, and seek none
        precision, recall = (torch.stack([pair.max(dim)[0][1:-1].mean() for pair in pairs]) for dim in (1, 0))
        f1 = 2 * precision * recall / (precision + recall)
        for letter, values in zip('PRF', (precision, recall, f1)):
            assert means[f'BERT-{letter} {way}'] == pytest.approx(100 * values.mean().item(), abs=1e-3)


# ----------------------------------------------------------------------------- lm-evaluation-harness

@pytest.fixture(scope='module')
def task_path(folder):
    """Three tasks on the same six documents: a choice, the likelihood of a text longer than a window, a generation"""
    place = folder / 'own-tasks'
    place.mkdir()
    model = model_of(folder, 'long')
    rows = [dict(question=line[:9 + i], answers=continued(model, line[:9 + i])[:5 + i], answer=i % 3,
                 choices=[line[9:14], ' the naïvely', 'xyz'], text=''.join(LINES[i:i + 1 + i % 2]))
            for i, line in enumerate(LINES[:6])]
    (place / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    common = dict(dataset_path='json', dataset_kwargs=dict(data_files=str(place / 'rows.jsonl')), test_split='train')

    def metric(name, higher):
        return dict(metric=name, aggregation='mean', higher_is_better=higher)

    tasks = dict(
        choice=dict(output_type='multiple_choice', doc_to_text='{{question}}', doc_to_choice='{{choices}}', target_delimiter='',
                    doc_to_target='{{answer}}', metric_list=[metric('acc', True)]),
        rolling=dict(output_type='loglikelihood_rolling', doc_to_text='', doc_to_target='{{text}}', metric_list=[
            dict(metric='bits_per_byte', aggregation='bits_per_byte', higher_is_better=False)]),
        told=dict(output_type='generate_until', doc_to_text='{{question}}', doc_to_target='{{answers}}',
                  generation_kwargs=dict(until=['the', 'y'], max_gen_toks=30), metric_list=[metric('exact_match', True)],
                  filter_list=[dict(name='whole', filter=[dict(function='take_first')]),
                               dict(name='word', filter=[dict(function='regex', regex_pattern='([a-z]+)'),
                                                         dict(function='take_first')])]))
    for name, task in tasks.items():
        (place / f'{name}.yaml').write_text(json.dumps(dict(task=name, **common, **task)))      # YAML takes JSON
    return place, rows


@torch.no_grad()
def log_p(model, context, target):
    """Of target tokens behind as much of a context as one window holds beside them"""
    context = context[-(model.config.block_size + 1 - len(target)):]
    ids = torch.tensor([context + target])
    logits = model(ids[:, :-1])[0][0, len(context) - 1:].log_softmax(-1)
    return sum(line[token].item() for line, token in zip(logits, target))


def continued(model, question):
    """The likeliest text behind a question, up to the first of two stops or the end of the document; 30 tokens at most, and so
    more than the window of 24 holds beside them, of which the question keeps half"""
    ids = torch.tensor([list(question.encode())])[:, -12:]
    text = bytes(model.generate(ids, 30, temperature=0)[0, ids.size(1):].tolist()).split(b'\0')[0].decode('utf-8', 'replace')
    return min(text.split('the')[0], text.split('y')[0], key=len)


@pytest.fixture
def few_tasks(monkeypatch):
    """lm-evaluation-harness with its ARC tasks alone: it takes long to read its thousands"""
    pytest.importorskip('lm_eval.tasks')
    from lm_eval.tasks._index import TaskIndex
    build = TaskIndex.build
    monkeypatch.setattr(TaskIndex, 'build', staticmethod(
        lambda paths: build(path / 'arc' if path.name == 'tasks' else path for path in paths)))


def test_harness(folder, task_path, few_tasks, monkeypatch):
    place, rows = task_path
    says = evaluate(folder, '--out_dir=long', '--tasks=arc_hard', code=1)
    assert "tasks='arc_hard': lm-evaluation-harness has no such task" in says
    args = ('--out_dir=long', f'--task_path={place}', '--batch_size=4')
    evaluate(folder, *args, '--tasks=choice,rolling,told')
    means, errors = last_scores(folder / 'long')
    model, size = model_of(folder, 'long'), 24

    picked = [max(range(3), key=lambda i: log_p(model, list(row['question'].encode()), list(row['choices'][i].encode())))
              for row in rows]
    right = [pick == row['answer'] for pick, row in zip(picked, rows)]
    assert means['choice acc'] == pytest.approx(np.mean(right)) and 0 < np.mean(right) < 1
    assert errors['choice acc'] == pytest.approx(np.std(right, ddof=1) / math.sqrt(6))

    total = length = 0
    for row in rows:
        ids = [0, *row['text'].encode()]                # a document begins behind the end of another
        length += len(ids) - 1
        for begin in range(1, len(ids), size):          # the last window is filled up with what is before it
            target = ids[begin:begin + size]
            total += log_p(model, ids[:begin], target)
    assert means['rolling bits_per_byte'] == pytest.approx(-total / length / math.log(2), abs=1e-5)

    texts = [continued(model, row['question']) for row in rows]
    words = [(re.findall('[a-z]+', text) or ['[invalid]'])[0] for text in texts]
    for by, found in (('whole', texts), ('word', words)):
        hits = [text == row['answers'] for text, row in zip(found, rows)]
        assert means[f'told exact_match ({by})'] == pytest.approx(np.mean(hits))

    answers, = (folder / 'long').glob('lm_eval-*')      # a file of JSON, which cannot run code
    assert all(json.loads(line).keys() == {'request', 'answer'} for line in answers.read_text().splitlines())
    monkeypatch.setattr(GPT, 'forward', None)           # what is known already is not computed again
    monkeypatch.setattr(GPT, 'stream', None)
    evaluate(folder, *args, '--tasks=choice,rolling,told')
    assert last_scores(folder / 'long')[0] == means
    answers.write_text('{"request": "a", "answer": [1.5, "true"]}\n')
    assert f'{answers.name} is damaged' in evaluate(folder, *args, '--tasks=choice', code=1)
