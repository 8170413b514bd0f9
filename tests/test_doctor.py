"""lab/doctor/: rules on logs that are made up, and verdicts on real runs with faults that are put into the code."""
import copy
import csv
import json
import math

import pytest
import torch
from helpers import TINY, call, flags, train

import model
from data.tokens import Tokens
from lab.doctor.case import Case, place_of
from lab.doctor.report import examine, extreme, named
from lab.doctor.rules import RULES

TYPES = ('emb', 'norm', 'qk', 'vo', 'ffn')
CAUSES = list(dict.fromkeys(rule.cause for rule in RULES))
KEYS = TINY | dict(max_iters=100, lr_decay_iters=100, eval_interval=20, log_interval=2, learning_rate=3e-3, emb_std=0.1)


# ----------------------------------------------------------------------------- made-up logs

def healthy():
    """A Case of 300 iterations, with two layers, and with clean code that does the same"""
    wave, rows = lambda it: 1 + 0.05 * math.sin(it), []
    for it in range(0, 301, 10):
        if it % 100 == 0:
            rows.append(dict(iter=it, val_loss=2.5, residual_rms=[1.0, 1.4], attn_rms=[0.5, 0.6], ffn_rms=[0.5, 0.6],
                             dead_units=[0.0, 0.0], max_logits=[2.0, 3.0], attn_entropy=[0.95, 0.9]))
        norms = {kind: wave(it) for kind in TYPES}
        rows.append(dict(iter=it, loss=(2.5 + 3 * math.exp(-it / 30)) * wave(it), lr=1e-3, grad_norm=5 ** 0.5, grad_norms=norms,
                         weight_norms=dict.fromkeys(TYPES, 10.0), update_norms={kind: 0.1 * wave(it) for kind in TYPES},
                         layers=dict(grad_norms=dict(qk=[1.0, 1.0], vo=[1.0, 1.1], ffn=[1.0, 0.9])),
                         batches=dict(repeated=0.0, agreement=1.0, entropy=3.1)))
    case = Case('out-made-up', dict(vocab_size=256, optimizer='adamw', learning_rate=1e-3), {}, rows)
    case.corpus_entropy, case.windows, case.sizes = 3.1, 10 ** 6, dict.fromkeys(TYPES, 10000)
    case.moments = 300, {'wte.weight': (0.2, 0.4), 'h.0.attn.wq.weight': (0.1, 0.2)}
    case.clean, case.usual = copy.copy(case), copy.copy(case)
    case.rows, case.tables = copy.deepcopy(rows), {}
    return case


def put(key, value, only=lambda it: True):
    """A fault: in the rows of these iterations, the entry of this key becomes value(entry)."""
    *path, last = key.split('.')

    def does(case):
        for row in case.rows:
            inner = row
            for part in path:
                inner = inner.get(part, {})
            if last in inner and only(row['iter']):
                inner[last] = value(inner[last])
    return does


def first(it):
    return it == 0


FAULTS = {
    'one token or padding': [put('batches.entropy', lambda _: 0.0), put('batches.entropy', lambda _: 1.5)],
    'repeated batches': [put('batches.repeated', lambda _: 0.95)],
    'shifted or copied labels': [put('batches.agreement', lambda _: 0.2)],
    'a leak from the future': [put('val_loss', lambda _: 0.2), put('loss', lambda x: 0.5 * x)],
    'frozen or unused parameters, or a cut gradient': [
        put('grad_norms.qk', lambda _: 0.0), lambda case: case.moments[1].update({'h.1.attn.wk.weight': (0.0, 0.0)}),
        put('grad_norms.vo', lambda x: 0.01 * x, first)],
    'embeddings too large': [put('weight_norms.emb', lambda x: 30 * x, first), put('loss', lambda x: x + 20, first)],
    'embeddings too small': [put('weight_norms.emb', lambda x: 0.03 * x, first)],
    'attention logits too large at the start': [put('attn_entropy', lambda _: [0.9, 0.2], first)],
    'no norm where the signal needs one': [
        put('attn_rms', lambda _: [0.02, 0.6], first), put('max_logits', lambda _: [1e-4] * 2, first)],
    'branches or a stream too large': [
        put('ffn_rms', lambda _: [4.0, 0.6], first), put('residual_rms', lambda _: [1.0, 9.0], first)],
    'gradients vanish or explode with depth': [put('layers.grad_norms.vo', lambda _: [1.0, 30.0], first)],
    'decay on gains': [put('weight_norms.norm', lambda x: 0.05 * x, lambda it: it > 150)],
    'a block type too slow': [put('update_norms.qk', lambda x: 0.01 * x)],
    'a block type too fast': [put('update_norms.ffn', lambda x: 30 * x)],
    'a spike from the weights': [put('weight_norms.ffn', lambda x: 3 * x, lambda it: it >= 200)],
    'a spike from a batch': [put('loss', lambda x: x + 8, lambda it: it == 200)],
    'β far off': [lambda case: case.moments[1].update({'wte.weight': (1.0, 1.0)})],
    'attention logits growing': [put('max_logits', lambda _: [2.0, 500.0], lambda it: it >= 200)],
    'step size too large': [
        put('dead_units', lambda _: [0.6, 0.0], lambda it: it > 0), put('weight_norms.emb', lambda x: 8 * x, lambda it: it == 50),
        put('loss', lambda x: x + 1, lambda it: it > 150), lambda case: case.rows.append(dict(iter=301, diverged='not finite'))],
    'step size too small': [lambda case: [put(f'update_norms.{kind}', lambda x: 0.01 * x)(case) for kind in TYPES]],
}


def test_a_healthy_log_has_no_finding():
    assert examine(healthy()) == ([], [])


def test_every_cause_has_a_fault():
    assert set(FAULTS) == set(CAUSES)


@pytest.mark.parametrize('cause,number', [(cause, i) for cause, faults in FAULTS.items() for i in range(len(faults))])
def test_faults_of_logs(cause, number):
    case = healthy()
    FAULTS[cause][number](case)
    findings, _ = examine(case)
    assert [finding.rule.cause for finding in findings][:1] == [cause]


def test_a_finding_says_where_and_since_when():
    case = healthy()
    put('weight_norms.norm', lambda x: 0.05 * x, lambda it: it >= 150)(case)
    finding = examine(case)[0][0]
    assert (finding.places, finding.since, finding.value) == (['norm'], 150, 0.05) and finding.is_clear()
    assert named(['qk 1', 'qk 2', 'qk 4', 'ffn 3', 'emb']) == 'qk in layers 1, 2, 4; ffn in layer 3; emb'
    assert place_of('h.2.attn.wq.weight') == 'wq 3' and place_of('h.0.attn_pre_norm.weight') == 'attn_pre_norm 1'


def test_the_extreme_of_a_rule_is_beyond_its_limits_if_it_fires():
    for cause, faults in FAULTS.items():
        case = healthy()
        faults[0](case)
        finding = next(finding for finding in examine(case)[0] if finding.rule.cause == cause)
        low, high = finding.rule.sick
        assert not low <= extreme(case, finding.rule) <= high


# ----------------------------------------------------------------------------- real runs

def verdict(place, folder, edited=True):
    """What the doctor says of a run, whose code counts as edited or as its commit's"""
    patch = 'diff --git a/model.py b/model.py\n' if edited else ''
    (place / folder / 'code.patch').write_text(patch)
    return call('lab.doctor', folder, cwd=place)


def test_a_healthy_run_gets_one_line(place):
    train(place, *flags(**KEYS, out_dir='healthy'))
    said = verdict(place, 'healthy', edited=False)
    assert 'healthy in all' in said and len(said.splitlines()) == 1
    assert not (place / 'healthy' / 'doctor.png').exists()


def test_shifted_labels(place, monkeypatch):
    shuffled = Tokens.shuffled
    monkeypatch.setattr(Tokens, 'shuffled', lambda *args: ((xy := shuffled(*args))[0], xy[1].roll(-1, 1)))
    train(place, *flags(**KEYS, out_dir='shifted'))
    said = verdict(place, 'shifted')
    assert 'iteration 100): shifted or copied labels\n' in said and 'clean code 1\n' in said
    assert all((place / 'shifted' / f'doctor.{kind}').exists() for kind in ('png', 'html'))


def test_frozen_parameters(place, monkeypatch):
    """The finding names each of them"""
    init = model.GPT.__init__

    def frozen(self, *args, **keys):
        init(self, *args, **keys)
        self.h[1].attn.wq.weight.requires_grad_(False)

    monkeypatch.setattr(model.GPT, '__init__', frozen)
    train(place, *flags(**KEYS, out_dir='frozen'))
    said = verdict(place, 'frozen')
    assert ': frozen or unused parameters, or a cut gradient\n' in said and 'in ckpt.pt (wq in layer 2)' in said


def test_large_embeddings(place, monkeypatch):
    """By an edit, which clean code tells, and by a key, which the loss tells"""
    init = model.init_weight
    monkeypatch.setattr(model, 'init_weight', lambda name, *args: init(name, *args) * (30 if name == 'wte.weight' else 1))
    train(place, *flags(**KEYS, out_dir='edited'))
    said = verdict(place, 'edited')
    assert ': embeddings too large\n' in said and 'over that of clean code (emb): 30 at iteration 0; healthy 0.9 to 1.1' in said
    monkeypatch.undo()
    train(place, *flags(**KEYS | dict(out_dir='key', emb_std=3.0)))
    assert ': embeddings too large\n' in verdict(place, 'key', edited=False)


def test_an_older_log(place):
    """Without the evidence, the rest is judged"""
    train(place, *flags(**KEYS, out_dir='older'))
    log = place / 'older' / 'log.jsonl'
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    kept = ('iter', 'loss', 'lr', 'grad_norm', 'grad_norms', 'weight_norms', 'train_loss', 'val_loss', 'residual_rms')
    log.write_text(''.join(json.dumps({key: row[key] for key in kept if key in row}) + '\n' for row in rows))
    (place / 'older' / 'ckpt.pt').unlink()
    (place / 'older' / 'run.json').write_text('{}')
    said = verdict(place, 'older')
    assert 'healthy in all' in said and 'not checked, because the log lacks them or the data are not here: ' in said
    assert 'share of targets that are the next input' in said and 'there is no ckpt.pt' in said


def test_a_folder_without_a_run(place):
    (place / 'empty').mkdir()
    said = call('lab.doctor', 'empty', cwd=place, code=1)
    assert said == 'error: empty holds no run with a row in log.jsonl: name the out_dir of a run, or a config\n'


def test_a_check_up_before_a_run(place):
    (place / 'config.py').write_text(''.join(f'{key} = {value!r}\n' for key, value in TINY.items()))
    said = call('lab.doctor', 'config.py', '--learning_rate=0.01', cwd=place)
    assert 'the start is healthy' in said and 'at a rate of about' in said
    said = call('lab.doctor', 'config.py', '--emb_std=3.0', cwd=place)
    assert '1. embeddings too large' in said
    said = call('lab.doctor', 'config.py', '--n_head=3', cwd=place, code=1)
    assert said.startswith('error: config.py --n_head=3 does not train: n_embd=16')


def test_the_csv(place):
    train(place, *flags(**KEYS, out_dir='in-csv'))
    call('lab.doctor.collect', 'in-csv', '--iters=4', '--csv=doctor.csv', cwd=place)
    with open(place / 'doctor.csv', encoding='utf-8') as f:
        row, = csv.DictReader(f)
    assert row['run'] == 'in-csv' and row['finding 1'] == ''
    assert float(row['shifted or copied labels: share of targets that are the next input']) == 1
    assert torch.isfinite(torch.tensor(float(row['val_loss'])))
