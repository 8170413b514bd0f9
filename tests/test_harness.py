"""lab/harness.py through lab/evaluate.py, against plain computations and lm-evaluation-harness's own class for Hugging Face."""
import json
import math
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ROOT, call, run_here
from test_evaluate import KEYS, LINES, TEXT, evaluate, last_scores, model_of

from data.text import Tokenizer
from data.tokens import write_tokens
from engine.device import Machine
from model import GPT, GPTConfig


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """data/tiny, and a run on it with windows of 24 tokens"""
    folder = tmp_path_factory.mktemp('harness')
    (folder / 'data' / 'tiny').mkdir(parents=True)
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT[4500:].encode()], 'val': [TEXT[:4500].encode()]}, 256, 'bytes')
    (folder / 'tiny.json').write_text(json.dumps(dict(KEYS, dataset='tiny', block_size=24, min_lr=0.0)))
    call('train.py', 'tiny.json', '--out_dir=long', cwd=folder)
    return folder


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
        written=dict(output_type='generate_until', doc_to_text='{{question}}', doc_to_target='{{answers}}',
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
    """lm-evaluation-harness with its ARC tasks alone, since it takes long to read its thousands, and without a list of the
    packages that are installed here"""
    pytest.importorskip('lm_eval.tasks')
    from lm_eval.tasks._index import TaskIndex
    monkeypatch.setattr('lm_eval.evaluator.add_env_info', lambda results: None)
    build = TaskIndex.build
    monkeypatch.setattr(TaskIndex, 'build', staticmethod(
        lambda paths: build(path / 'arc' if path.name == 'tasks' else path for path in paths)))


def test_harness(folder, task_path, few_tasks, monkeypatch):
    place, rows = task_path
    says = evaluate(folder, '--out_dir=long', '--tasks=arc_hard', code=1)
    assert "tasks='arc_hard': lm-evaluation-harness has no such task" in says
    args = ('--out_dir=long', f'--task_path={place}', '--batch_size=4')
    evaluate(folder, *args, '--tasks=choice,rolling,written')
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
    for by, answers in (('whole', texts), ('word', words)):
        hits = [answer == row['answers'] for answer, row in zip(answers, rows)]
        assert means[f'written exact_match ({by})'] == pytest.approx(np.mean(hits))

    answers, = (folder / 'long').glob('lm_eval-*')      # a file of JSON, which cannot run code
    assert all(json.loads(line).keys() == {'request', 'answer'} for line in answers.read_text().splitlines())
    monkeypatch.setattr(GPT, 'forward', None)           # what is known already is not computed again
    monkeypatch.setattr(GPT, 'stream', None)
    evaluate(folder, *args, '--tasks=choice,rolling,written')
    assert last_scores(folder / 'long')[0] == means
    answers.write_text('{"request": "a", "answer": [1.5}\n')
    assert f'{answers.name} is damaged' in evaluate(folder, *args, '--tasks=choice', code=1)
    answers.unlink()


@pytest.fixture
def hflm(monkeypatch):
    """lm-evaluation-harness's own class for models of Hugging Face. It imports accelerate, which it needs on several GPUs alone,
    and which may not be installed."""
    pytest.importorskip('lm_eval.tasks')
    pytest.importorskip('transformers')                 # before the stub, which it would look at
    try:
        import accelerate  # noqa: F401
    except ImportError:
        stub, utils = ModuleType('accelerate'), ModuleType('accelerate.utils')
        stub.Accelerator = stub.InitProcessGroupKwargs = stub.find_executable_batch_size = utils.get_max_memory = None
        monkeypatch.setitem(sys.modules, 'accelerate', stub)
        monkeypatch.setitem(sys.modules, 'accelerate.utils', utils)
    from lm_eval.models.huggingface import HFLM
    monkeypatch.undo()
    return HFLM


LONG = [''.join(LINES[i:i + 3]) for i in range(8)]


@pytest.fixture(scope='module')
def long_task_path(folder):
    """Three tasks whose prompts and texts are longer than a window"""
    place = folder / 'long-tasks'
    place.mkdir()
    rows = [dict(question=text[:12 + 5 * i], choices=[text[12 + 5 * i:][:6], ' the ball', 'y'], answer=i % 3, text=text)
            for i, text in enumerate(LONG)]
    (place / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    common = dict(dataset_path='json', dataset_kwargs=dict(data_files=str(place / 'rows.jsonl')), test_split='train')
    tasks = dict(
        long_choice=dict(output_type='multiple_choice', doc_to_text='{{question}}', doc_to_choice='{{choices}}',
                         target_delimiter='', doc_to_target='{{answer}}'),
        long_text=dict(output_type='loglikelihood_rolling', doc_to_text='', doc_to_target='{{text}}', metric_list=[
            dict(metric='bits_per_byte', aggregation='bits_per_byte', higher_is_better=False)]),
        long_written=dict(output_type='generate_until', doc_to_text='{{question}}', doc_to_target='{{text}}',
                       generation_kwargs=dict(until=['ball', 'ï']), metric_list=[
                           dict(metric='exact_match', aggregation='mean', higher_is_better=True)]))
    for name, task in tasks.items():
        (place / f'{name}.yaml').write_text(json.dumps(dict(task=name, **common, **task)))
    return place


@pytest.mark.long
@pytest.mark.parametrize('arch', ['pre', 'llama', 's5', 'stable'])
def test_answers_are_those_of_hflm(arch, folder, long_task_path, few_tasks, hflm):
    """For the run and for its export, whatever is cut: likelihoods, whether they are the likeliest, and greedy texts"""
    import lm_eval
    from transformers import AutoModelForCausalLM, AutoTokenizer
    run, theirs, own = f'run-{arch}', f'hf-{arch}', arch in ('s5', 'stable')
    call('train.py', 'tiny.json', ROOT / 'config' / 'arch' / f'{arch}.py', f'--out_dir={run}', cwd=folder)
    call('lab.export', f'--out_dir={run}', f'--to={theirs}', cwd=folder)
    assert (folder / theirs / 'modeling_nanonorm.py').exists() == own
    names, settings = ['long_choice', 'long_text', 'long_written'], 'max_gen_toks=9,temperature=0'
    tokenizer = AutoTokenizer.from_pretrained(folder / theirs, trust_remote_code=own)
    model = AutoModelForCausalLM.from_pretrained(folder / theirs, trust_remote_code=own)
    wrapped = hflm(model, tokenizer=tokenizer, batch_size=3, device='cpu')
    manager = lm_eval.tasks.TaskManager(include_path=str(long_task_path), include_defaults=False)
    wanted = lm_eval.simple_evaluate(wrapped, tasks=names, task_manager=manager, gen_kwargs=settings, bootstrap_iters=0)
    wanted = wanted['samples']
    for name in run, theirs:
        evaluate(folder, f'--out_dir={name}', f'--task_path={long_task_path}', f'--tasks={",".join(names)}', '--batch_size=2',
                 f'--gen_kwargs={settings}', '--log_samples=True', f'--output={name}.json')
        for task in names:
            ours = [json.loads(line) for line in (folder / f'{name}-samples' / f'samples-{task}.jsonl').open()]
            assert len(ours) == len(LONG)
            for mine, other in zip(ours, wanted[task]):
                for (mine,), (other,) in zip(mine['resps'], other['resps']):
                    if task == 'long_choice':
                        assert mine == [pytest.approx(other[0], abs=1e-4), other[1]]
                    else:
                        assert mine == (pytest.approx(other, abs=1e-3) if task == 'long_text' else other)
    texts = {sample['resps'][0][0] for sample in wanted['long_written']}
    assert len(texts) > 1 and max(map(len, texts)) > 3


@pytest.fixture(scope='module')
def group_path(task_path):
    """The same tasks in a group, whose accuracy is that of two choices, and one more in none"""
    place, rows = task_path
    (place / 'choice_2.yaml').write_text(json.dumps({
        **json.loads((place / 'choice.yaml').read_text()), 'task': 'choice_2', 'doc_to_target': '{{(answer + 1) % 3}}'}))
    (place / 'choices.yaml').write_text(json.dumps(dict(group='choice_all', task=['choice', 'choice_2'], aggregate_metric_list=[
        dict(metric='acc', weight_by_size=True)])))
    return place


def test_patterns_groups_and_files(folder, group_path, few_tasks):
    """A pattern stands for all that match it, where a task that a group holds counts once; the group has its mean. The results
    and the samples are files, of which others are not replaced"""
    args = ('--out_dir=long', f'--task_path={group_path}')
    out = evaluate(folder, *args, "--tasks=choice*", '--log_samples=True')
    means, errors = last_scores(folder / 'long')
    assert sorted(means) == ['choice acc', 'choice_2 acc', 'choice_all acc'] and all(f' {label} |' in out for label in means)
    assert means['choice_all acc'] == pytest.approx((means['choice acc'] + means['choice_2 acc']) / 2)
    assert errors['choice_all acc'] > 0
    samples = {task: [json.loads(line) for line in (folder / 'long' / f'samples-{task}.jsonl').open()]
               for task in ('choice', 'choice_2')}
    for task, rows in samples.items():
        assert len(rows) == 6 and {'doc', 'target', 'arguments', 'resps', 'acc'} <= rows[0].keys()
        assert np.mean([row['acc'] for row in rows]) == pytest.approx(means[f'{task} acc'])
    assert 'both choice_all and choice hold' in evaluate(folder, *args, '--tasks=choice_all,choice', code=1)
    says = evaluate(folder, *args, '--tasks=choice,nothing_*', code=1)
    assert says.startswith("error: tasks='nothing_*': lm-evaluation-harness has no such task") and says.count('\n') == 1

    evaluate(folder, *args, '--tasks=choice_all', '--output=group.json', '--log_samples=True')
    assert (folder / 'group-samples' / 'samples-choice.jsonl').exists()
    written = json.loads((folder / 'group.json').read_text())
    assert written['results']['choice_all']['acc,none'] == means['choice_all acc'] == written['scores']['choice_all acc']['mean']
    assert written['config']['limit'] is None and {'versions', 'configs', 'n-samples', 'weights'} <= written.keys()
    (folder / 'copy').mkdir()
    (folder / 'copy' / 'best.pt').write_bytes((folder / 'long' / 'best.pt').read_bytes())
    evaluate(folder, '--out_dir=long,copy', *args[1:], '--tasks=choice', '--output=all.json', '--log_samples=True')
    written = json.loads((folder / 'all.json').read_text())['models']
    assert written['long']['results'] == written['copy']['results']
    assert (folder / 'all-samples/copy/samples-choice.jsonl').exists()
    assert 'output=all.json exists' in evaluate(folder, *args, '--tasks=choice', '--output=all.json', code=1)


def test_settings_of_generation(folder, task_path, few_tasks, capsys):
    """They take the place of a task's own. A prompt that leaves no room is cut in half, which is said, as HFLM fails there"""
    place, rows = task_path
    args = ('--out_dir=long', f'--task_path={place}', '--tasks=written', '--log_samples=True')
    model = model_of(folder, 'long')
    cut = '6 of 6 requests ask for 24 new tokens or more, as many as a window holds: their prompts keep 12 tokens'
    for settings, new, keep in ('max_gen_toks=5', 5, 19), ('max_gen_toks=24', 24, 12), ('max_gen_toks=23', 23, 1):
        _, _, err = run_here('lab.evaluate', '--device=cpu', '--dtype=float32', *args, f'--gen_kwargs={settings}', cwd=folder)
        assert (cut in err) == (new == 24)
        for line in (folder / 'long' / 'samples-written.jsonl').open():
            row = json.loads(line)
            ids = torch.tensor([list(row['doc']['question'].encode())])[:, -keep:]
            ids = model.generate(ids, new, temperature=0)[0, ids.size(1):]
            text = bytes(ids.tolist()).split(b'\0')[0].decode('utf-8', 'replace')
            assert row['resps'] == [[min(text.split('the')[0], text.split('y')[0], key=len)]]
    assert "'beams' is none of do_sample" in evaluate(folder, *args, '--gen_kwargs=beams=3', code=1)
    for flag in 'gen_kwargs=top_k=1', 'limit=5':        # they change no loss
        assert evaluate(folder, '--out_dir=long', f'--{flag}', code=1) == f'error: {flag}: it is for tasks, leave it out\n'


def test_drawn_texts_are_drawn_again(folder, task_path, few_tasks):
    """Also where the temperature alone asks for it"""
    place, _ = task_path
    args, texts = ('--out_dir=long', f'--task_path={place}', '--tasks=written', '--log_samples=True'), []
    for seed in range(2):
        evaluate(folder, *args, '--gen_kwargs=temperature=3', f'--seed={seed}')
        texts.append([json.loads(line)['resps'] for line in (folder / 'long' / 'samples-written.jsonl').open()])
    assert texts[0] != texts[1]


def test_unknown_characters(folder, task_path, few_tasks):
    """Are read as the exported tokenizer reads them, and counted"""
    place, rows = task_path
    (folder / 'data' / 'chars').mkdir()
    chars = ''.join(sorted({*TEXT} - {'b', 'y', '\n'}))
    ids = [chars.index(c) for c in TEXT if c in chars]
    write_tokens(folder / 'data' / 'chars', {'train': [ids], 'val': [ids[:500]]}, len(chars), 'char', chars=chars)
    call('train.py', 'tiny.json', '--out_dir=of-chars', '--dataset=chars', '--vocab_size=0', cwd=folder)
    code, out, err = run_here('lab.evaluate', '--device=cpu', '--dtype=float32', '--out_dir=of-chars', f'--task_path={place}',
                              '--tasks=choice,rolling', '--log_samples=True', cwd=folder)
    assert code == 0, err
    texts = [row['question'] + choice for row in rows for choice in row['choices']] + [row['text'] for row in rows]
    unknown = ''.join(sorted({*''.join(texts)} - {*chars}))
    count = sum(bool({*unknown} & {*text}) for text in texts)
    assert {*'by\n'} < {*unknown} and 0 < count < len(texts)
    says = f"{count} of {len(texts)} requests have characters that the model does not know ({unknown!r}): each is read as ' '"
    assert err.count(says) == 1
    model = model_of(folder, 'of-chars')
    for line in (folder / 'of-chars' / 'samples-choice.jsonl').open():
        row = json.loads(line)
        for (question, choice), ((answer, _),) in zip(row['arguments'], row['resps']):
            ids, context = ([max(chars.find(c), 0) for c in text] for text in (question + choice, question.rstrip()))
            assert answer == pytest.approx(log_p(model, context, ids[len(context):]), abs=1e-4)     # the space is the choice's


@pytest.mark.parametrize('written, until, left', [
    ('one</s>two', [], 'one'), ('one\x02 two\x01three', [], 'one two'), ('abcd', ['cd', 'bc'], 'a'),
    ('abcd', ['x', 'abcde'], 'abcd'), ('ab', ['', None, 'b'], 'a'), ('</s>', [], '')])
def test_where_a_text_ends(written, until, left):
    """Before a stop, the end token (1), or its text in other tokens; a special token (2) has no text"""
    pytest.importorskip('lm_eval.tasks')
    from lab.harness import harness
    texts = {1: '</s>', 2: '<pad>'}
    tokenizer = Tokenizer(lambda text: [*map(ord, text)], lambda ids: ''.join(texts.get(i, chr(i)) for i in ids), 128, 1,
                          frozenset(texts))
    model = SimpleNamespace(config=GPTConfig(block_size=16, vocab_size=128, n_layer=1, n_head=2, n_embd=8),
                            stream=lambda *args: (torch.tensor([[ord(c)]]) for c in written))
    request = SimpleNamespace(args=('prompt', dict(until=until, max_gen_toks=len(written))))
    assert harness(model, tokenizer, None, Machine('cpu', 'float32'), 8).generate_until([request]) == [left]
