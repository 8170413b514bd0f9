"""lm-evaluation-harness on a run, as `lab.evaluate --tasks` calls it, against plain computations of the same scores."""
import json
import math
import re

import numpy as np
import pytest
import torch
from helpers import ROOT, call, run_ranks
from test_evaluate import KEYS, LINES, TEXT, evaluate, last_scores, model_of

from data.tokens import write_tokens

pytest.importorskip('accelerate')                       # HFLM imports it
pytest.importorskip('lm_eval.tasks')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """data/tiny, and a run on it with windows of 24 tokens, of an architecture that transformers does not have"""
    folder = tmp_path_factory.mktemp('tasks')
    (folder / 'data' / 'tiny').mkdir(parents=True)
    write_tokens(folder / 'data' / 'tiny', {'train': [TEXT[4500:].encode()], 'val': [TEXT[:4500].encode()]}, 256, 'bytes')
    (folder / 'tiny.json').write_text(json.dumps(dict(KEYS, dataset='tiny', block_size=24, min_lr=0.0)))
    call('train.py', 'tiny.json', ROOT / 'config' / 'arch' / 's5.py', '--out_dir=dnt', cwd=folder)
    return folder


@pytest.fixture(scope='module')
def task_path(folder):
    """Tasks on the same documents: two choices in a group, the likelihood of a text longer than a window, a generation. Texts end
    alike, so that a window may be another one, cut elsewhere."""
    place, model = folder / 'own-tasks', model_of(folder, 'dnt')
    place.mkdir()
    rows = [dict(question=line[:9 + i % 6], answers=continued(model, line[:9 + i % 6], 15)[:5 + i], answer=i % 3,
                 choices=[line[9:14], ' the naïvely', 'xyz'], text=''.join(LINES[i:i + 1 + i % 2]))
            for i, line in enumerate(LINES)]
    (place / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    common = dict(dataset_path='json', dataset_kwargs=dict(data_files=str(place / 'rows.jsonl')), test_split='train')

    def metric(name, higher=True, aggregation='mean'):
        return dict(metric_list=[dict(metric=name, aggregation=aggregation, higher_is_better=higher)])

    choice = dict(output_type='multiple_choice', doc_to_text='{{question}}', doc_to_choice='{{choices}}', target_delimiter='',
                  **metric('acc'))
    tasks = dict(
        choice=dict(choice, doc_to_target='{{answer}}'), choice_2=dict(choice, doc_to_target='{{(answer + 1) % 3}}'),
        rolling=dict(output_type='loglikelihood_rolling', doc_to_text='', doc_to_target='{{text}}',
                     **metric('bits_per_byte', False, 'bits_per_byte')),
        written=dict(output_type='generate_until', doc_to_text='{{question}}', doc_to_target='{{answers}}',
                     generation_kwargs=dict(until=['the', 'y'], max_gen_toks=15), **metric('exact_match'),
                     filter_list=[dict(name='whole', filter=[dict(function='take_first')]),
                                  dict(name='word', filter=[dict(function='regex', regex_pattern='([a-z]+)'),
                                                            dict(function='take_first')])]))
    for name, task in tasks.items():
        (place / f'{name}.yaml').write_text(json.dumps(dict(task=name, **common, **task)))      # YAML takes JSON
    (place / 'group.yaml').write_text(json.dumps(dict(group='choices', task=['choice', 'choice_2'], aggregate_metric_list=[
        dict(metric='acc', weight_by_size=True)])))
    return place, rows


@torch.no_grad()
def log_p(model, context, target):
    """Of target tokens behind as much of a context as one window holds beside them"""
    context = context[-(model.config.block_size + 1 - len(target)):]
    logits = model(torch.tensor([context + target])[:, :-1])[0][0, len(context) - 1:].log_softmax(-1)
    return sum(line[token].item() for line, token in zip(logits, target))


def continued(model, question, new):
    """The likeliest text behind what a window holds of a question, up to the first of two stops or the end of the document"""
    ids = torch.tensor([list(question.encode())])[:, -(model.config.block_size - new):]
    text = bytes(model.generate(ids, new, temperature=0)[0, ids.size(1):].tolist()).split(b'\0')[0].decode('utf-8', 'replace')
    return min(text.split('the')[0], text.split('y')[0], key=len)


def few(patch=None):
    """lm-evaluation-harness with its ARC tasks alone, since it takes long to read its thousands, and without a list of the
    packages that are installed here"""
    from lm_eval.tasks._index import TaskIndex
    patch, build = patch or pytest.MonkeyPatch(), TaskIndex.build
    patch.setattr('lm_eval.evaluator.add_env_info', lambda results: None)
    patch.setattr(TaskIndex, 'build', staticmethod(
        lambda paths: build(path / 'arc' if path.name == 'tasks' else path for path in paths)))


@pytest.fixture
def few_tasks(monkeypatch):
    few(monkeypatch)


def test_scores(folder, task_path, few_tasks):
    """And the files of results"""
    place, rows = task_path
    args = '--out_dir=dnt', f'--task_path={place}', '--batch_size=4', '--tasks=choice,rolling,written'
    evaluate(folder, *args, '--output=scores.json', '--log_samples=True')
    means, errors = last_scores(folder / 'dnt')
    model, size = model_of(folder, 'dnt'), 24

    picked = [max(range(3), key=lambda i: log_p(model, list(row['question'].encode()), list(row['choices'][i].encode())))
              for row in rows]
    right = [pick == row['answer'] for pick, row in zip(picked, rows)]
    assert means['choice acc'] == pytest.approx(np.mean(right)) and 0 < np.mean(right) < 1
    assert errors['choice acc'] == pytest.approx(np.std(right, ddof=1) / math.sqrt(len(rows)))

    total = length = 0
    for row in rows:
        ids = [0, *row['text'].encode()]                # a document begins behind the end of another
        length += len(ids) - 1
        for begin in range(1, len(ids), size):          # the last window is filled up with what is before it
            total += log_p(model, ids[:begin], ids[begin:begin + size])
    assert means['rolling bits_per_byte'] == pytest.approx(-total / length / math.log(2), abs=1e-5)

    texts = [continued(model, row['question'], 15) for row in rows]
    words = [(re.findall('[a-z]+', text) or ['[invalid]'])[0] for text in texts]
    for by, answers in (('whole', texts), ('word', words)):
        hits = [answer == row['answers'] for answer, row in zip(answers, rows)]
        assert means[f'written exact_match ({by})'] == pytest.approx(np.mean(hits))

    written = json.loads((folder / 'scores.json').read_text())
    assert written['results']['choice']['acc,none'] == means['choice acc'] == written['scores']['choice acc']['mean']
    assert [sample['acc'] for sample in written['samples']['choice']] == right
    assert [sample['resps'][0][0] for sample in written['samples']['written'][:len(rows)]] == texts
    assert 'output=scores.json exists' in evaluate(folder, *args, '--output=scores.json', code=1)


def test_groups_patterns_and_settings(folder, task_path, few_tasks):
    """A group has its mean, a pattern stands for the tasks that match it. The settings change a task's own."""
    place, rows = task_path
    args = '--out_dir=dnt', f'--task_path={place}'
    evaluate(folder, *args, '--tasks=choices,writ*', '--gen_kwargs=max_gen_toks=5', '--log_samples=True', '--output=five.json')
    means, _ = last_scores(folder / 'dnt')
    assert {'choice acc', 'choice_2 acc', 'choices acc', 'written exact_match (whole)'} <= means.keys()
    assert means['choices acc'] == pytest.approx((means['choice acc'] + means['choice_2 acc']) / 2)
    samples = json.loads((folder / 'five.json').read_text())['samples']['written']
    assert [sample['resps'][0][0] for sample in samples[:len(rows)]] == [
        continued(model_of(folder, 'dnt'), row['question'], 5) for row in rows]
    says = evaluate(folder, *args, '--tasks=choice,nothing_*', code=1)
    assert says.startswith('error: tasks=') and says.count('\n') == 1
    says = evaluate(folder, *args, '--tasks=written', '--gen_kwargs=max_gen_toks=24', code=1)
    assert says.startswith('error: tasks=written: it writes up to 24 tokens, and a window holds 24')
    assert evaluate(folder, '--out_dir=dnt', '--limit=5', code=1) == 'error: limit=5: it is for tasks, leave it out\n'


@pytest.mark.long
def test_two_ranks(folder, task_path, few_tasks):
    """They share the documents, and one speaks"""
    args = '--out_dir=dnt', f'--task_path={task_path[0]}', '--tasks=choices,rolling,written', '--device=cpu', '--dtype=float32'
    evaluate(folder, *args)
    alone = last_scores(folder / 'dnt')
    code, out, err = run_ranks(2, 'lab.evaluate', *args, cwd=folder, through=(few,))
    assert code == 0 and out.count('| dnt |') == 1, err
    for ours, theirs in zip(last_scores(folder / 'dnt'), alone):
        assert ours == pytest.approx(theirs, abs=1e-6, nan_ok=True)
