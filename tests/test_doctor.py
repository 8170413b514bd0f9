"""lab/doctor.py: rules on logs that are made up, and findings on real runs with faults."""
import math

import pytest
import torch
from helpers import ROOT, TINY, call, flags, train, write_walk

import model
from lab.doctor import RULES, Patient, findings

TYPES = ('emb', 'norm', 'qk', 'vo', 'ffn')
KEYS = TINY | dict(max_iters=100, lr_decay_iters=100, eval_interval=20, log_interval=2, learning_rate=3e-3, emb_std=0.1)
LEAK, NO_NORM, LOGITS = 'a leak from the future', 'no norm where the signal needs one', 'attention logits too large at the start'
FROZEN, LABELS = 'no gradient here: frozen, unused or cut off', 'shifted or copied labels'


def patient(spoil=lambda row: None, **seen):
    """A run of 300 iterations with two layers; `spoil` changes a row of its log"""
    rows = []
    for it in range(0, 301, 10):
        wave = 1 + 0.05 * math.sin(it)
        rows.append(dict(iter=it, loss=2.5 + 3 * math.exp(-it / 30), grad_norm=5 ** 0.5, grad_norms=dict.fromkeys(TYPES, wave),
                         weight_norms=dict.fromkeys(TYPES, 10.0), update_norms=dict.fromkeys(TYPES, 0.1 * wave),
                         rows_before=4 * it, batches=dict(repeated=0.0, agreement=1.0), attn_entropy=[0.95, 0.9]))
        spoil(rows[-1])
    return Patient(dict(vocab_size=256, weight_decay=0.1), rows, dict(
        windows=10 ** 6, embeddings=10 ** 4, future=0.0, unbounded=dict(output=1.0), moments={'wq': 1.0}) | seen)


def put(first, last=300, **values):
    """A fault: so many iterations have these values"""
    return lambda row: row.update({key: {**row[key], **value} if isinstance(value, dict) else value
                                   for key, value in values.items()} if first <= row['iter'] <= last else {})


@pytest.mark.parametrize('sick, cause', [
    (patient(), None), (patient(put(0, 0, attn_entropy=[0.95, 0.3])), LOGITS), (patient(put(10, attn_entropy=[0.9, 0.3])), None),
    (patient(put(0, grad_norms=dict(qk=0.0))), FROZEN), (patient(put(10, grad_norms=dict(qk=0.0))), None),
    (patient(moments={'wq': 0.0}), FROZEN), (patient(future=0.01), LEAK), (patient(unbounded=dict(output=1e4)), NO_NORM),
    (patient(put(0, batches=dict(agreement=0.0))), LABELS), (patient(put(200, 280, batches=dict(agreement=0.0))), None),
    (patient(put(100, 120, batches=dict(repeated=0.5))), 'repeated or empty batches'),
    (patient(put(100, 110, batches=dict(repeated=0.5))), None),
    (patient(put(150, weight_norms=dict(vo=20.0))), 'a spike from the weights'),
    (patient(put(0, update_norms=dict.fromkeys(TYPES, 0.001))), 'updates too small'),
    (patient(put(100, weight_norms=dict(norm=5.0))), 'decay on gains, or missing on what grows'),
    (patient(other_targets=0.1), LABELS), (patient(other_targets=-1.0), None)])
def test_a_rule(sick, cause):
    """Its limit has to hold in as many rows in succession as it says"""
    found = findings(sick)[0]
    assert (found[0][0].cause if found else None) == cause


def test_what_is_not_known():
    """An empty log says nothing of any cause that needs it, and each cause is in one of the two lists or neither"""
    found, unknown = findings(Patient({}, [dict(iter=0)], {}))
    assert not found and set(unknown) == {rule.cause for rule in RULES}


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp('doctor')
    write_walk(folder, train=20000)
    return folder


def freezes():
    build = model.Block.__init__
    model.Block.__init__ = lambda self, *args: (build(self, *args), self.attn.wq.weight.register_hook(torch.zeros_like))[0]


def told(place, *arguments):
    return call('lab.doctor', *arguments, cwd=place).splitlines()


@pytest.mark.parametrize('name, arguments, through, cause', [
    ('healthy', [], (), 'no finding'), ('frozen', ['--max_iters=20'], (freezes,), FROZEN),
    ('rate', ['--learning_rate=0.1'], (), None)])
def test_a_run(place, name, arguments, through, cause):
    """A rate 30 times too large is not called shifted labels: what has learned nothing tells no target"""
    train(place, *flags(**KEYS, out_dir=name), *arguments, through=through)
    first = told(place, name)[0]
    assert first == f'{name} (done): {cause}' if cause else LABELS not in first


@pytest.mark.parametrize('arch, gain, cause', [('pre', 1, 'no finding'), ('off', 1, NO_NORM), ('pre', 60, LOGITS)])
def test_a_config_before_its_run(place, arch, gain, cause):
    file = str(ROOT / 'config' / 'arch' / f'{arch}.py')
    assert told(place, file, *flags(**KEYS, init_gain=gain))[0] == f'{file} (untrained): {cause}'


def test_what_cannot_be_looked_at(place):
    """A damaged checkpoint leaves the log; what is no run is said"""
    assert 'data is not the folder of a run' in call('lab.doctor', 'data', cwd=place, code=1)
    train(place, *flags(**KEYS | dict(max_iters=4), out_dir='damaged'))
    (place / 'damaged' / 'ckpt.pt').write_bytes(b'nothing')
    assert any('its model was not looked at' in line for line in told(place, 'damaged'))
