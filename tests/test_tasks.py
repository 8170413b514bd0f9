"""lab.evaluate's model for lm-evaluation-harness, against plain forward passes."""
import json
import math

import pytest
import torch
from test_evaluate import LINES, evaluate, model_of, run  # noqa: F401

import lab.evaluate
from data.text import load_tokenizer
from engine.device import Machine

pytest.importorskip('lm_eval.tasks')


@torch.no_grad()
def log_p(model, context, target):
    """log p of target tokens behind as much of a context as one window holds beside them, and whether they are the likeliest"""
    context = context[-(model.config.block_size + 1 - len(target)):]
    logits = model(torch.tensor([context + target])[:, :-1])[0][0, len(context) - 1:].log_softmax(-1)
    return sum(line[token].item() for line, token in zip(logits, target)), logits.argmax(-1).tolist() == target


def test_a_model_of_the_harness(run):  # noqa: F811
    """Choices, short and too long for a window; whole texts; no text of its own"""
    from lm_eval.api.instance import Instance
    model, size = model_of(run), 24
    harness = lab.evaluate.harness_model(lab.evaluate.Scorer(Machine('cpu', 'float32'), model, load_tokenizer('bytes')))

    def ask(kind, *arguments):
        return getattr(harness, kind)([Instance(kind, {}, args, 0) for args in arguments])

    pairs = [(line[:9 + i], text) for i, line in enumerate(LINES) for text in (line[9 + i:14 + i], ' the naïvely', 'xyz')]
    for answer, (context, text) in zip(ask('loglikelihood', *pairs, ('', 'ann'), (' ', 'ann')),
                                       [*pairs, ('\0', 'ann'), ('\0', ' ann')]):
        cut = len(context.rstrip().encode())            # the harness moves spaces to the continuation
        ids = list((context + text).encode())
        wanted = log_p(model, ids[:cut], ids[cut:])
        assert answer == (pytest.approx(wanted[0], abs=1e-6), wanted[1])
    for answer, line in zip(ask('loglikelihood_rolling', *[(line,) for line in LINES]), LINES):
        ids = [0, *line.encode()]                       # a document begins behind the end of another
        assert answer == pytest.approx(sum(     # the last window is filled up with what is before it
            log_p(model, ids[:i], ids[i:i + size])[0] for i in range(1, len(ids), size)), abs=1e-6)
    for kind, args, says in (('loglikelihood', ('ann', 'x' * 25), 'an answer has 25 tokens, and a window of out holds 24'),
                             ('generate_until', ('ann', {}), 'wants tasks that rate given texts')):
        with pytest.raises(ValueError, match=says):
            ask(kind, args)


def test_a_task(run, tmp_path, monkeypatch):  # noqa: F811
    """A file of one's own; the harness's thousands need not be read"""
    from lm_eval.tasks._index import TaskIndex
    monkeypatch.setattr(TaskIndex, 'build', staticmethod(lambda paths: {}))
    monkeypatch.setattr('lm_eval.evaluator.add_env_info', lambda results: None)
    rows = [dict(text=line[:10], end='x' if i % 3 else line[10]) for i, line in enumerate(LINES)]
    (tmp_path / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    (tmp_path / 'mine.yaml').write_text(f"""
        {{task: mine, dataset_path: json, dataset_kwargs: {{data_files: {tmp_path}/rows.jsonl}}, test_split: train,
        output_type: loglikelihood, doc_to_text: '{{{{text}}}}', doc_to_target: '{{{{end}}}}', target_delimiter: '',
        metric_list: [{{metric: acc, aggregation: mean}}, {{metric: perplexity, aggregation: perplexity}}]}}""")
    means, errors = evaluate(run, f'--tasks={tmp_path}/mine.yaml')
    found = [log_p(model_of(run), list(row['text'].encode()), list(row['end'].encode())) for row in rows]
    share = sum(likeliest for _, likeliest in found) / len(rows)
    assert means['mine acc'] == pytest.approx(share) and 0 < share < 1
    assert errors['mine acc'] == pytest.approx(math.sqrt(share * (1 - share) / (len(rows) - 1)))
    assert means['mine perplexity'] == pytest.approx(math.exp(-sum(p for p, _ in found) / len(rows)), rel=1e-5)
