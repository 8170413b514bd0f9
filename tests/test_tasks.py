"""An export under lm-evaluation-harness, against plain forward passes of the run."""
import json

import pytest
from helpers import call
from test_evaluate import LINES, log_p, model_of, run  # noqa: F401

harness = pytest.importorskip('lm_eval')
pytest.importorskip('accelerate')


def test_a_task(run, tmp_path, monkeypatch):  # noqa: F811
    """A file of one's own, in batches: each answer's probability, and texts that it writes behind contexts of several lengths"""
    from lm_eval.tasks._index import TaskIndex
    monkeypatch.setattr(TaskIndex, 'build', staticmethod(lambda paths: {}))         # thousands of files
    monkeypatch.setattr('lm_eval.evaluator.add_env_info', lambda results: None)
    monkeypatch.setenv('DISABLE_MULTIPROC', '1')        # otherwise it starts a process per core, for standard errors
    call('lab.export', f'--out_dir={run}', f'--to={tmp_path}/hf', cwd=run.parent)
    pairs = [(line[:i], line[i]) for i, line in enumerate(LINES[:12], 9)]
    (tmp_path / 'rows.jsonl').write_text('\n'.join(json.dumps(dict(text=text, end=end)) for text, end in pairs))

    def score(kind, more=''):
        (tmp_path / 'mine.yaml').write_text(f"""
            {{task: mine, dataset_path: json, dataset_kwargs: {{data_files: {tmp_path}/rows.jsonl}}, test_split: train,
            output_type: {kind}, doc_to_text: '{{{{text}}}}', doc_to_target: '{{{{end}}}}', target_delimiter: '', {more}}}""")
        found = harness.simple_evaluate('hf', f'pretrained={tmp_path}/hf,trust_remote_code=True,dtype=float32', device='cpu',
                                        tasks=[str(tmp_path / 'mine.yaml')], batch_size=5)
        return sorted(found['samples']['mine'], key=lambda sample: sample['doc_id'])

    samples = score('loglikelihood', 'metric_list: [{metric: acc, aggregation: mean}]')
    right = []
    for (context, end), sample in zip(pairs, samples):
        cut, ids = len(context.rstrip().encode()), list((context + end).encode())   # the harness moves spaces to the answer
        wanted, likeliest = log_p(model_of(run), ids[:cut], ids[cut:])
        right.append(likeliest == ids[cut:])
        assert sample['filtered_resps'][0][0] == pytest.approx(wanted.sum(), rel=1e-4) and sample['acc'] == right[-1]
    assert 0 < sum(right) < len(right)

    samples = score('generate_until', 'generation_kwargs: {max_gen_toks: 2}, metric_list: [{metric: exact_match}]')
    for (context, _), sample in zip(pairs, samples):
        ids = list(context.encode())[-22:]                                          # it leaves room for the answer
        for _ in range(2):
            ids += log_p(model_of(run), ids, [0])[1]
        assert sample['filtered_resps'][0] == bytes(ids[-2:]).decode(errors='replace')
