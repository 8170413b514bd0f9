"""lab/doctor/: rules on logs that are made up, and verdicts on real runs with faults that are put into the code."""
import copy
import difflib
import json
import math
import re
import subprocess
from statistics import fmean

import pandas as pd
import pytest
import torch
from helpers import ROOT, TINY, call, flags, train

import model
from data.tokens import Tokens
from lab.doctor.case import Case, place_of
from lab.doctor.report import examine, named
from lab.doctor.rules import CAUSES
from lab.doctor.spike import replay_spike

TYPES = ('emb', 'norm', 'qk', 'vo', 'ffn')
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
                         layers=dict(grad_norms=dict(qk=[1.0, 1.0], vo=[1.0, 1.1], ffn=[1.0, 0.9])), rows_before=4 * it,
                         batches=dict(repeated=0.0, agreement=1.0, entropy=3.1)))
    case = Case('out-made-up', dict(vocab_size=256, learning_rate=1e-3, weight_decay=0.1), {}, rows)
    case.entropy, case.windows, case.choices, case.sizes = 3.1, 10 ** 6, 256, dict.fromkeys(TYPES, 10000)
    case.moments = 300, pd.DataFrame([
        dict(name='wte.weight', kind='emb', is_sum=False, first=0.2, squares=0.4),
        dict(name='h.0.attn.wq.weight', kind='qk', is_sum=True, first=3.0, squares=math.nan)])
    case.replayed = dict(batches=dict(repeated=0.0, agreement=1.0, entropy=3.0), first_rms=0.1, future=0.0, other_targets=-2.0,
                         unbounded=dict(output=1.0, attn=[None, 1.0], ffn=[None, 1.0]))
    case.clean, case.usual = copy.copy(case), copy.copy(case)
    case.rows, case.tables, case.replayed = copy.deepcopy(rows), {}, copy.deepcopy(case.replayed)
    return case


def put(key, value, only=lambda it: True):
    """A fault: in the rows of these iterations, or in the replay, the entry of this key becomes value(entry)."""
    *path, last = key.removeprefix('replayed.').split('.')

    def does(case):
        for row in [case.replayed] if key.startswith('replayed.') else [row for row in case.rows if only(row['iter'])]:
            for part in path:
                row = row.get(part, {})
            if last in row:
                row[last] = value(row[last])
    return does


def first(it):
    return it == 0


def moment(row, **numbers):
    return lambda case: case.moments[1].loc.__setitem__((row, [*numbers]), [*numbers.values()])


FAULTS = {
    'one token or padding': [put('batches.entropy', lambda _: 0.0), put('replayed.batches.entropy', lambda _: 1.0)],
    'repeated batches': [put('batches.repeated', lambda _: 0.95), put('replayed.batches.repeated', lambda _: 0.7)],
    'shifted or copied labels': [put('batches.agreement', lambda _: 0.2), put('replayed.batches.agreement', lambda _: 0.2),
                                 put('replayed.other_targets', lambda _: 1.0)],
    'a leak from the future': [put('val_loss', lambda _: 0.2), put('loss', lambda x: 0.3 * x),
                               put('replayed.future', lambda _: 1.0)],
    'frozen or unused parameters, or a cut gradient': [
        put('grad_norms.qk', lambda _: 0.0), moment(1, first=0.0), put('grad_norms.vo', lambda x: 0.01 * x, first)],
    'embeddings too large or too small': [
        put('weight_norms.emb', lambda x: 30 * x, first), put('weight_norms.emb', lambda x: 0.03 * x, first),
        put('loss', lambda x: x + 20, first), put('replayed.first_rms', lambda x: 10 * x)],
    'attention logits too large at the start': [put('attn_entropy', lambda _: [0.9, 0.2], first)],
    'no norm where the signal needs one': [put('replayed.unbounded.ffn', lambda _: [None, 1e4])],
    'branches or a stream too large': [
        put('ffn_rms', lambda _: [4.0, 0.6], first), put('residual_rms', lambda _: [1.0, 9.0], first)],
    'gradients vanish or explode with depth': [put('layers.grad_norms.vo', lambda _: [1.0, 30.0], first)],
    'decay on gains, or missing on what grows': [
        put('weight_norms.norm', lambda x: 0.05 * x, lambda it: it > 150), put('weight_norms.ffn', lambda x: 1.2 * x),
        lambda case: [put('weight_norms.emb', lambda x: 2 * x, lambda it: it > 0)(case), case.config.update(wd_emb=0.0)]],
    'a block type too slow': [put('update_norms.qk', lambda x: 0.01 * x)],
    'a block type too fast': [put('update_norms.ffn', lambda x: 30 * x)],
    'a spike from the weights': [put('weight_norms.ffn', lambda x: 3 * x, lambda it: it >= 200),
                                 put('update_norms.vo', lambda x: 50 * x, lambda it: it == 200)],
    'a spike from a batch': [put('loss', lambda x: x + 8, lambda it: it == 200)],
    'β far off': [moment(0, first=1.0, squares=1.0), moment(1, first=30.0), moment(1, first=1.0), moment(0, first=0.01)],
    'attention logits growing': [put('max_logits', lambda _: [2.0, 500.0], lambda it: it >= 200)],
    'step size too large': [put('dead_units', lambda _: [0.6, 0.0], lambda it: it > 0),
                            lambda case: case.rows.append(dict(iter=301, diverged='not finite'))],
    'step size too small': [moment(1, first=0.1),
                            lambda case: [put(f'update_norms.{kind}', lambda x: 0.01 * x, lambda it: it > 60)(case)
                                          for kind in TYPES],
                            lambda case: [put(f'update_norms.{kind}', lambda x: 0.01 * x)(case) for kind in TYPES],
                            lambda case: [put(f'grad_norms.{kind}', lambda x: 0.01 * x, first)(case) for kind in TYPES]],
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


@pytest.mark.parametrize('cause', FAULTS)
def test_findings_about_weights_activations_and_data_need_no_config(cause):
    case = healthy()
    FAULTS[cause][0](case)
    with_config = [(finding.rule.what, finding.value) for finding in examine(case)[0]]
    case.config = case.clean.config = {}
    assert [(finding.rule.what, finding.value) for finding in examine(case)[0]] == with_config


def test_a_finding_says_where_and_since_when():
    case = healthy()
    put('weight_norms.norm', lambda x: 0.05 * x, lambda it: it >= 150)(case)
    finding = examine(case)[0][0]
    assert (finding.places, finding.since, finding.value) == (['norm'], 150, 0.05)
    assert named(['qk 1', 'qk 2', 'ffn 3', 'emb', '4']) == 'qk in layers 1, 2; ffn in layer 3; emb; layer 4'
    assert place_of('h.2.attn.wq.weight') == 'wq 3' and place_of('h.0.attn_pre_norm.weight') == 'attn_pre_norm 1'


# ----------------------------------------------------------------------------- real runs

def test_a_healthy_run_gets_one_line(place):
    train(place, *flags(**KEYS, out_dir='healthy'))
    (place / 'healthy' / 'code.patch').write_text('')
    said = call('lab.doctor', 'healthy', cwd=place)
    assert 'healthy: none of' in said and len(said.splitlines()) == 1
    report = json.loads((place / 'healthy' / 'doctor.json').read_text())
    assert not report['findings'] and not report['not_checked']
    assert all(value is None or (value > float(limit) if ', lowest (' in name else value < float(limit))
               for name, value in report['extremes'].items() for limit in re.findall(r'limit (\S+)\)$', name))
    assert not (place / 'healthy' / 'doctor.png').exists()


def test_frozen_parameters(place, monkeypatch):
    """The finding names each of them"""
    init = model.GPT.__init__

    def frozen(self, *args, **keys):
        init(self, *args, **keys)
        self.h[1].attn.wq.weight.requires_grad_(False)

    monkeypatch.setattr(model.GPT, '__init__', frozen)
    train(place, *flags(**KEYS, out_dir='frozen'))
    (place / 'frozen' / 'code.patch').write_text('')
    assert 'in ckpt.pt (wq in layer 2): 0 from' in call('lab.doctor', 'frozen', cwd=place)


@pytest.mark.parametrize('old,new,cause', [
    ('return F.layer_norm(x, gain.shape, gain, bias, self.eps)', 'return gain * x', 'no norm where the signal needs one'),
    ('is_causal=self.causal and', 'is_causal=self.causal and not self.training and', 'a leak from the future'),
    ('self.heads(self.wv(x))', 'self.heads(self.wv(torch.cat((x[:, 1:5], x[:, 4:]), 1)))', 'a leak from the future')])
def test_an_edit_is_replayed_by_its_patch_and_compared_with_clean_code(place, old, new, cause):
    train(place, *flags(**KEYS, out_dir='edited', overwrite=True))
    text = subprocess.run(['git', 'show', 'HEAD:model.py'], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert old in text
    diff = difflib.unified_diff(text.splitlines(True), text.replace(old, new).splitlines(True), 'a/model.py', 'b/model.py')
    (place / 'edited' / 'code.patch').write_text('diff --git a/model.py b/model.py\n' + ''.join(diff))
    about = json.loads((place / 'edited' / 'run.json').read_text())
    commit = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    (place / 'edited' / 'run.json').write_text(json.dumps({**about, 'starts': [dict(code={}, commit=commit)]}))
    said = call('lab.doctor', 'edited', cwd=place)
    assert f'iteration 100): {cause}\n' in said and 'look at: the edit of model.py' in said
    assert all((place / 'edited' / f'doctor.{kind}').exists() for kind in ('png', 'html'))


def test_an_edit_of_the_reading_does_not_reach_what_the_batches_are_compared_with(place, monkeypatch):
    monkeypatch.chdir(place)
    train(place, *flags(**KEYS, out_dir='read'))
    case, data = Case.of_run('read'), Tokens('tiny', 'train', KEYS['block_size'], 13)
    rows = KEYS['log_interval'] * KEYS['gradient_accumulation_steps'] * KEYS['batch_size']
    shares = [torch.bincount(data.read(starts)[0].flatten()) / rows / data.block_size for starts in data.spread(20, rows)]
    monkeypatch.setattr(Tokens, 'read', lambda self, starts: (torch.zeros(len(starts), self.block_size, dtype=torch.int64),) * 2)
    case.read_data()
    assert case.entropy == pytest.approx(fmean(-(share * share.log()).nansum().item() for share in shares))


def test_the_batch_of_a_spike_is_replayed(place, monkeypatch):
    """It is odd by the weights before and after, or it is not"""
    monkeypatch.chdir(place)
    train(place, *flags(**KEYS, out_dir='spike', keep_every=20))
    shuffled, rows, case = Tokens.shuffled, KEYS['gradient_accumulation_steps'] * KEYS['batch_size'], Case.of_run('spike')
    assert replay_spike(case, 50).endswith('It is ordinary: the weights moved, or an edit changed the batch')
    zeros = (torch.zeros(KEYS['batch_size'], KEYS['block_size'], dtype=torch.int64),) * 2
    monkeypatch.setattr(Tokens, 'shuffled', lambda self, first, count, seed: (
        zeros if first // rows == 50 else shuffled(self, first, count, seed)))
    said = replay_spike(case, 50)
    assert 'iteration 40' in said and 'iteration 60' in said and said.endswith('It is odd')
    assert 'of 8 of 8 micro-batches' in said            # of the iterations 49 and 50: every second one is logged
    for path in (*place.glob('spike/ckpt-*.pt'), place / 'spike' / 'best.pt'):
        path.unlink()
    assert replay_spike(case, 50).endswith('--keep_every=50 keeps weights from before a spike')
    case.about = {}
    assert replay_spike(case, 50) == 'not replayed: the code at hand is not the run\'s'


def test_an_older_log(place):
    """Without the evidence, the rest is judged"""
    train(place, *flags(**KEYS, out_dir='older'))
    log = place / 'older' / 'log.jsonl'
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    kept = ('iter', 'loss', 'lr', 'grad_norm', 'grad_norms', 'weight_norms', 'train_loss', 'val_loss', 'residual_rms')
    log.write_text(''.join(json.dumps({key: row[key] for key in kept if key in row}) + '\n' for row in rows))
    (place / 'older' / 'ckpt.pt').unlink()
    (place / 'older' / 'run.json').write_text('{}')
    said = call('lab.doctor', 'older', cwd=place)
    assert 'healthy: none of' in said and 'not checked' in said and 'repeated batches' in said and 'there is no ckpt.pt' in said


def test_a_folder_without_a_run(place):
    (place / 'empty').mkdir()
    said = call('lab.doctor', 'empty', cwd=place, code=1)
    assert said == 'error: empty holds no run with a row in log.jsonl: name the out_dir of a run, or a config\n'


def test_a_check_up_before_a_run(place):
    (place / 'config.py').write_text(''.join(f'{key} = {value!r}\n' for key, value in TINY.items()))
    assert '1. embeddings too large' in call('lab.doctor', 'config.py', '--emb_std=3.0', cwd=place)
    said = call('lab.doctor', 'config.py', '--n_head=3', cwd=place, code=1)
    assert said.startswith('error: config.py --n_head=3 does not train: n_embd=16')
