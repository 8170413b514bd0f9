"""lab.evaluate on tasks of lm-evaluation-harness, against plain forward passes."""
import json
import math

import pytest
from helpers import call
from test_evaluate import LINES, evaluate, log_p, model_of, run  # noqa: F401

pytest.importorskip('lm_eval.tasks')


def test_a_task(run, tmp_path, monkeypatch):  # noqa: F811
    """A file of one's own, with contexts that are blank, short, and too long for a window; and tasks that cannot be scored"""
    from lm_eval.tasks._index import TaskIndex
    monkeypatch.setattr(TaskIndex, 'build', staticmethod(lambda paths: {}))         # thousands of files
    monkeypatch.setattr('lm_eval.evaluator.add_env_info', lambda results: None)

    def task(pairs, kind='loglikelihood'):
        (tmp_path / 'rows.jsonl').write_text('\n'.join(json.dumps(dict(text=text, end=end)) for text, end in pairs))
        (tmp_path / 'mine.yaml').write_text(f"""
            {{task: mine, dataset_path: json, dataset_kwargs: {{data_files: {tmp_path}/rows.jsonl}}, test_split: train,
            output_type: {kind}, doc_to_text: '{{{{text}}}}', doc_to_target: '{{{{end}}}}', target_delimiter: '',
            metric_list: [{{metric: acc, aggregation: mean}}, {{metric: perplexity, aggregation: perplexity}}]}}""")
        return f'--tasks={tmp_path}/mine.yaml'

    pairs = [('', 'ann'), (' ', 'ann'), ('', 'xyz'), *((line[:i], line[i]) for i, line in enumerate(LINES, 9))]
    means, errors = evaluate(run, task(pairs))
    scores, right = [], []
    for context, end in pairs:
        cut, ids = len(context.rstrip().encode()), list((context + end).encode())   # the harness moves spaces to the answer
        scores.append(log_p(model_of(run), ids[:cut] or [0], ids[cut:]))            # a text begins behind the end of another
        right.append(scores[-1][1] == ids[cut:])
    share = sum(right) / len(right)
    assert means['mine acc'] == pytest.approx(share) and 0 < share < 1
    assert errors['mine acc'] == pytest.approx(math.sqrt(share * (1 - share) / (len(right) - 1)))
    assert means['mine perplexity'] == pytest.approx(math.exp(-sum(p.sum() for p, _ in scores) / len(right)), rel=1e-5)
    for answer, kind, says in (('x' * 25, 'loglikelihood', 'an answer has 25 tokens, and a window of out holds 24'),
                               ('x', 'loglikelihood_rolling', 'must be tasks that rate given answers')):
        assert says in call('lab.evaluate', '--device=cpu', task([('ann', answer)], kind), cwd=run.parent, code=1)
