"""
What must not go wrong in silence: ranks that were not given the same, resumed runs that differ from their first part, edits whose
checkpoint nobody could read, a folder that was moved away.
"""
import collections
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TINY, flags, in_each_iteration, rows, run_here, start_ranks, steps, train, write_walk
from torch import nn

import model
import optim
from data.write import write_tokens
from engine import run
from model import GPT

SHORT = {**TINY, 'max_iters': 4, 'eval_interval': 4}


@pytest.fixture(scope='module')
def whole(place):
    """A run of four iterations, for others to go on from"""
    train(place, *flags(**SHORT, out_dir='whole'))
    return place / 'whole'


def on_block(change, put=setattr):
    """An edit of the end of Block.__init__"""
    def build(self, config, layer, old=model.Block.__init__):
        old(self, config, layer)
        change(self)

    put(model.Block, '__init__', build)


# ----------------------------------------------------------------------------- ranks

def ranks(cwd, *commands, through=()):
    """Runs train.py once for each command, (folder, its arguments), on as many ranks → [(exit code, stderr)]"""
    started = start_ranks('train.py', [(cwd / at, *command) for at, *command in commands], through=through, LOCAL_RANK='0')
    return [(code, err) for code, _, err in (rank.end() for rank in started)]


def other_code(hashes=run.code_hashes):
    """Rank 1 has an edited model.py."""
    run.code_hashes = lambda script: hashes(script) | ({'model.py': 'edited'} if os.environ['RANK'] == '1' else {})


@pytest.mark.parametrize('flag, through, says', [('--learning_rate=0.02', (), ['learning_rate ', '0.02 on rank 1']),
                                                 ('--seed=1337', (other_code,), ['code of model.py'])])
def test_ranks_with_other_keys_or_code(place, flag, through, says):
    keys = flags(**SHORT, out_dir='other-keys')
    for code, err in ranks(place, ('.', *keys), ('.', *keys, flag), through=through):
        assert code == 1 and err.startswith('error: not all ranks were given the same: ') and err.count('\n') == 1
        assert all(word in err for word in says) and 'optim.py' not in err
    assert not (place / 'other-keys').exists()


def test_ranks_with_other_checkpoints_or_data(whole, place):
    """In folders of their own, as two nodes have that share no disk; copies of one checkpoint go on"""
    for name in ('node-0', 'node-1'):
        shutil.copytree(place / 'data', place / name / 'data')
        shutil.copytree(whole, place / name / 'whole')
    keys = ['whole/config.json', *flags(out_dir='whole', init_from='resume', max_iters=6)]
    path = place / 'node-1' / 'whole' / 'ckpt.pt'
    state = torch.load(path)
    state['model']['h.0.attn.wq.weight'][0, 0] += 1e-6
    torch.save(state, path)
    for code, err in ranks(place, ('node-0', *keys), ('node-1', *keys)):
        assert code == 1 and 'not all ranks were given the same: hash of this checkpoint' in err and err.count('\n') == 1
    shutil.copy(whole / 'ckpt.pt', path)
    assert ranks(place, ('node-0', *keys), ('node-1', *keys)) == [(0, ''), (0, '')]
    shutil.rmtree(place / 'node-1')
    write_walk(place / 'node-1', train=1999)
    for code, err in ranks(place, *((name, *flags(**SHORT, out_dir='out')) for name in ('node-0', 'node-1'))):
        assert code == 1 and 'fingerprint of the data' in err


def keeps_a_mean(block, persistent=True):
    """In a buffer: of what a block has just seen, as BatchNorm does"""
    block.register_buffer('seen', torch.zeros(()), persistent)
    block.register_forward_pre_hook(lambda block, args: [block.seen.copy_(args[0].detach().mean())] and None)


def drifts():
    """An optimizer that moves rank 1 apart"""
    def step(self, closure=None, old=optim.SGDW.step):
        old(self)
        self.param_groups[0]['params'][0].data.add_(1e-3 * (os.environ['RANK'] == '1'))

    optim.SGDW.step = step


def thaws():
    """A parameter that learns only after DDP was built"""
    def made(self, config, old=GPT.__init__):
        old(self, config)
        self.h[0].ffn.w2.weight.requires_grad_(False)

    def forward(self, *args, old=GPT.forward):
        self.h[0].ffn.w2.weight.requires_grad_(True)
        return old(self, *args)

    GPT.__init__, GPT.forward = made, forward


@pytest.mark.parametrize('name, edit, says', [
    ('buffer', (on_block, keeps_a_mean), 'the ranks hold different values of '),
    ('steps', (drifts,), 'the ranks hold different values of '),
    ('thawed', (thaws,), 'requires_grad of h.0.ffn.w2.weight was False when DDP was built')])
def test_ranks_that_drift_apart(place, name, edit, says):
    """End the run before it is saved"""
    _, err = train(place, *flags(**{**SHORT, 'optimizer': 'sgdw'}, out_dir=name), ranks=2, through=edit, code=1)
    assert f'error: {says}' in err and not (place / name / 'ckpt.pt').exists()


def logs(names, every=1):
    """Each rank puts its own names into `logged`, and x in every … micro-batch."""
    forward, calls = GPT.forward, []

    def edited(self, *args):
        rank = int(os.environ.get('RANK', 0))
        self.logged |= {name: torch.tensor(float(ord(name) + rank)) for name in names[rank]}
        calls.append(self.training)
        if sum(calls) % every == 0:
            self.logged['x'] = torch.tensor(1 / 3, dtype=torch.bfloat16)
        return forward(self, *args)

    GPT.forward = edited


def test_names_of_what_is_logged(place):
    """Their order does not mix them up, and the log has mean and maximum over the ranks, in fp32. Another name in one micro-batch
    or on one rank is an error"""
    train(place, *flags(**SHORT, out_dir='order'), ranks=2, through=(logs, ['ab', 'ba']))
    wanted = {'logged.a': 97.5, 'logged_max.a': 98, 'logged.b': 98.5, 'logged_max.b': 99, 'logged.x': 0.333984375}
    assert all(wanted.items() <= row.items() for row in steps(place / 'order'))
    _, err = train(place, *flags(**SHORT, out_dir='sometimes'), through=(logs, [''], 2), code=1)
    assert 'error: logged.x: set it in every micro-batch' in err
    _, err = train(place, *flags(**SHORT, out_dir='names'), ranks=2, through=(logs, ['a', 'b']), code=1)
    assert 'error: the ranks have put other names into aux or logged: ' in err


# ----------------------------------------------------------------------------- what a resumed run has changed

def test_a_resumed_run_says_what_it_has_changed(whole, place, monkeypatch):
    """Since its checkpoint, whose machine computed in bf16, and whose code had one more key. In run.json and the log too, and the
    code's changes are kept"""
    copy = Path(shutil.copytree(whole, place / 'changed'))
    state, about = torch.load(copy / 'ckpt.pt'), json.loads((copy / 'run.json').read_text())
    state['about']['dtype'], state['config']['cap'] = 'torch.bfloat16', 0.05
    for name in 'ckpt.pt', 'best.pt':
        torch.save(state, copy / name)
    found = run_here('lab.measure', '--out_dir=changed', '--checkpoint=best.pt', '--what=parameters', cwd=place)
    assert found[0] == 0 and 'best.pt was saved by code with more keys (cap=0.05)' in found[2]
    monkeypatch.setattr(run, 'code_hashes', lambda script: {**about['starts'][0]['code'], 'model.py': 'edited'})
    monkeypatch.setattr(run, 'code_state', lambda: ('a commit', [], b'an edit'))
    out, _ = train(place, 'whole/config.json', *flags(init_from='resume', max_iters=8, out_dir='changed', dropout=0.1))
    changes = ['cap 0.05 → (unknown here)', 'dropout 0.0 → 0.1', 'max_iters 4 → 8', 'precision torch.bfloat16 → torch.float32',
               'code of model.py']
    assert f'changed since the checkpoint: {", ".join(changes)}\n' in out
    *_, start = json.loads((copy / 'run.json').read_text())['starts']
    mark, = [json.loads(line) for line in (copy / 'log.jsonl').read_text().splitlines() if '"start"' in line]
    assert start['iter'] == mark['iter'] == 4 and start['changes'] == mark['changes'] == changes
    assert (copy / 'code.patch').read_bytes() == b'an edit' and [row['iter'] for row in steps(copy)] == [*range(8)]


def test_data_that_was_prepared_anew(place, monkeypatch):
    """Under the same name, with other characters: nothing goes on with these or reads the run by them; nor do its weights meet
    other tokens"""
    monkeypatch.chdir(place)

    def prepare(name, chars):
        write_tokens(f'data/{name}', {split: [np.arange(600) % 13] for split in ('train', 'val')}, 13, 'char', chars=chars)

    prepare('first', 'abcdefghijklm'), prepare('second', 'nopqrstuvwxyz')
    train(place, *flags(**{**SHORT, 'dataset': 'first'}, out_dir='anew'))
    _, err = train(place, *flags(**{**SHORT, 'dataset': 'second'}, out_dir='other', init_from='anew'), code=1)
    assert 'dataset=second has other tokens (char) than anew has learned' in err
    goes_on = ['train.py', 'anew/config.json', '--init_from=resume', '--max_iters=6']
    _, err = train(place, *goes_on[1:], '--dataset=second', code=1)
    assert 'dataset=second has other tokens (char) than anew/ckpt.pt has learned' in err
    prepare('first', 'nopqrstuvwxyz')
    for command in goes_on, ['sample.py', '--out_dir=anew'], ['lab.measure', '--out_dir=anew', '--what=parameters']:
        err = run_here(*command, cwd=place)[2]
        assert err.startswith('error: data/first holds other data than when anew/') and err.count('\n') == 1, command


# ----------------------------------------------------------------------------- edits

def after_each_step(monkeypatch, does):
    """An optimizer that calls does(itself, its first parameter's state) after its step"""
    class Edited(torch.optim.SGD):
        def step(self):
            super().step()
            does(self, self.state[self.param_groups[0]['params'][0]])

    monkeypatch.setitem(optim.OPTIMIZERS, 'sgdw', lambda groups, c: Edited(groups, c['learning_rate']))


REFUSED = {
    'mask is not finite': lambda block: block.register_buffer('mask', torch.tensor(torch.nan)),
    'late_norm.weight is not as in a model that is built anew': lambda block: block.register_forward_pre_hook(
        lambda block, args: setattr(block, 'late_norm', nn.LayerNorm(16))),
    'the optimizer has changed decay in its groups': lambda optimizer, _: optimizer.param_groups[0].update(decay=2.0),
    'optimizer.state.0.kept is a deque': lambda _, state: state.update(kept=collections.deque([1.0]))}


@pytest.mark.parametrize('says', REFUSED)
def test_what_nobody_could_read_ends_the_run_after_its_first_step(place, monkeypatch, says):
    if 'optimizer' in says:
        after_each_step(monkeypatch, REFUSED[says])
    else:
        on_block(REFUSED[says], monkeypatch.setattr)
    _, err = train(place, *flags(**{**SHORT, 'optimizer': 'sgdw'}, out_dir='unreadable', overwrite=True), code=1)
    assert 'error: a checkpoint of this run could not be resumed: ' in err and says in err and err.count('\n') == 1


def test_state_that_no_checkpoint_holds(place, monkeypatch):
    """Is named once, after the first step. test_stats.py has that our optimizers and modules keep none"""
    on_block(lambda block: keeps_a_mean(block, persistent=False), monkeypatch.setattr)
    after_each_step(monkeypatch, lambda self, _: setattr(self, 'sums', [torch.ones(2)]))
    out, _ = train(place, *flags(**{**SHORT, 'optimizer': 'sgdw'}, out_dir='counting'))
    line, = [line for line in out.splitlines() if 'changed in the first step, and no checkpoint holds it' in line]
    assert line.startswith('Edited.sums, h.0.seen, h.1.seen changed')


def test_a_parameter_without_a_gradient(place):
    """One process names it and trains all others; DDP cannot"""
    edit, says = (on_block, unused), 'no gradient reaches h.0.attn.o_norm.weight, h.0.attn.o_norm.bias'
    out, _ = train(place, *flags(**SHORT, out_dir='unused'), through=edit)
    assert out.count(says) == 1
    _, err = train(place, *flags(**SHORT, out_dir='unused-ddp'), ranks=2, through=edit, code=1)
    assert f'error: {says}' in err and 'Traceback' not in err


def unused(block):
    block.attn.o_norm = nn.LayerNorm(16)


def moved(it):
    """Somebody renames the run's folder, and makes another one of the old name."""
    if it == 2:
        os.rename('moving', 'moved')
        os.mkdir('moving')


def test_a_folder_that_was_moved_away(place):
    _, err = train(place, *flags(**SHORT, out_dir='moving'), through=(in_each_iteration, moved), code=1)
    assert 'error: moving has been moved or removed while this run trained there' in err and err.count('\n') == 1
    assert not list((place / 'moving').iterdir()) and len(rows(place / 'moved')) > 3
