"""
What must not go wrong in silence: ranks that were not given the same, resumed runs that differ from their first part, edits whose
checkpoint nobody could read, a folder that was moved away.
"""
import collections
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import TINY, Alone, checkpoint, flags, in_each_iteration, rows, run_here, train, write_walk
from torch import nn

import model
import optim
from data.tokens import write_tokens
from engine.checkpoint import load_checkpoint
from model import GPT

SHORT = {**TINY, 'max_iters': 4, 'eval_interval': 4}


@pytest.fixture(scope='module')
def whole(place):
    """A run of four iterations, for others to go on from"""
    train(place, *flags(**SHORT, out_dir='whole'))
    return place / 'whole'


# ----------------------------------------------------------------------------- ranks

def ranks(cwd, *commands, through=()):
    """Runs train.py once for each command, on as many ranks → [(exit code, stderr)]. Each ends by itself."""
    store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(store.port), WORLD_SIZE=str(len(commands)), LOCAL_RANK='0',
               TORCHELASTIC_USE_AGENT_STORE='True')
    started = [Alone('train.py', *command, cwd=cwd / at, through=through, **env, RANK=str(i))
               for i, (at, *command) in enumerate(commands)]
    return [(code, err) for code, _, err in (rank.end() for rank in started)]


def other_code():
    """Rank 1 has an edited model.py."""
    from engine import run
    hashes = run.code_hashes
    run.code_hashes = lambda script: hashes(script) | ({'model.py': 'edited'} if os.environ['RANK'] == '1' else {})


@pytest.mark.parametrize('flag, through, says', [('--learning_rate=0.02', (), ['learning_rate ', '0.02 on rank 1']),
                                                 ('--parallel=fsdp', (), ['parallel ', "'fsdp' on rank 1"]),
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


class WithStatistics(nn.Identity):
    """A norm that keeps a mean of what it has seen, as BatchNorm does"""

    def __init__(self, *args, **more):
        super().__init__()
        self.register_buffer('seen', torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen.copy_(x.detach().mean())
        return x


def keeps_statistics():
    model.NORMS['layernorm'] = WithStatistics


def test_buffers_that_differ_between_ranks(place):
    _, err = train(place, *flags(**SHORT, out_dir='buffers'), ranks=2, through=(keeps_statistics,), code=1)
    assert 'the ranks hold different values of h.0.' in err and '.seen' in err
    train(place, *flags(**SHORT, out_dir='buffers-alone'), through=(keeps_statistics,))


def drifting(edit):
    """An edit of an optimizer, by which ranks might drift apart"""
    def noise(p):
        p.grad.add_(0.01 * torch.randn_like(p.grad))

    def on_one_rank(p):
        p.data.add_(1e-3 * (os.environ['RANK'] == '1'))

    def step(self, closure=None, old=optim.SGDW.step):
        for p in (p for group in self.param_groups for p in group['params']):
            dict(noise=noise, one=on_one_rank)[edit](p)
        old(self)

    optim.SGDW.step = step


def test_ranks_that_drift_apart(place):
    """Noise behind the micro-batches is the same on all ranks. Anything else ends the run before it is saved"""
    keys = flags(**{**SHORT, 'optimizer': 'sgdw'})
    train(place, *keys, '--out_dir=noise', ranks=2, through=(drifting, 'noise'))
    _, err = train(place, *keys, '--out_dir=drift', ranks=2, through=(drifting, 'one'), code=1)
    assert 'error: the ranks hold different values of ' in err and not (place / 'drift' / 'ckpt.pt').exists()


def logs(names):
    """Each rank puts its own names into `logged`."""
    forward = GPT.forward

    def edited(self, *args):
        for name in names[int(os.environ['RANK'])]:
            self.logged[name] = torch.tensor(float(names[0].index(name) if name in names[0] else 7))
        return forward(self, *args)

    GPT.forward = edited


def logs_sometimes(when):
    """Some micro-batches put x into `logged`; a layer's number is a name too, and sums are in fp32."""
    forward, calls = GPT.forward, []

    def edited(self, *args):
        calls.append(self.training)
        if when(sum(calls)):
            self.logged['x'] = torch.tensor(1.0)
        self.logged[0] = torch.tensor(1 / 3, dtype=torch.bfloat16)
        return forward(self, *args)

    GPT.forward = edited


def odd(count):
    return count % 2 == 1


def even(count):
    return count % 2 == 0


def late_on_rank_1(count):
    return count > 4 and os.environ['RANK'] == '1'


def test_names_of_what_is_logged(place):
    """Their order does not mix them up; another name on one rank or in one micro-batch is an error"""
    for when, count in ((odd, 1), (even, 1), (late_on_rank_1, 2)):
        name, says = when.__name__, ('logged.x: set it in every micro-batch', 'the ranks have put other names into ')[count - 1]
        _, err = train(place, *flags(**SHORT, out_dir=name), ranks=count, through=(logs_sometimes, when), code=1)
        assert f'error: {says}' in err and all(row['logged.0'] == 0.333984375 for row in rows(place / name) if 'loss' in row)
    train(place, *flags(**SHORT, out_dir='order'), ranks=2, through=(logs, ['ab', 'ba']))
    assert all((row['logged.a'], row['logged.b']) == (0, 1) for row in rows(place / 'order') if 'loss' in row)
    _, err = train(place, *flags(**SHORT, out_dir='names'), ranks=2, through=(logs, ['a', 'b']), code=1)
    assert 'error: the ranks have put other names into aux or logged: ' in err


# ----------------------------------------------------------------------------- what a resumed run has changed

def test_a_resumed_run_says_what_it_has_changed(whole, place, monkeypatch):
    """Since its checkpoint, whose machine computed in bf16, whatever a start that was killed has noted. In run.json and the log
    too, and the code's changes are kept"""
    run = shutil.copytree(whole, place / 'changed')
    state, about = torch.load(run / 'ckpt.pt'), json.loads((run / 'run.json').read_text())
    state['about']['dtype'] = 'torch.bfloat16'
    torch.save(state, run / 'ckpt.pt')
    first, = about['starts']
    edited = {**first['code'], 'model.py': 'edited'}
    (run / 'run.json').write_text(json.dumps({**about, 'starts': [first, {**first, 'code': edited}]}))
    monkeypatch.setattr('engine.run.code_hashes', lambda script: edited)
    monkeypatch.setattr('engine.run.code_state', lambda: (first['commit'] or 'a commit', [], b'an edit'))
    keys = flags(init_from='resume', max_iters=8, out_dir='changed', weight_decay=0.3, dropout=0.1)
    out, _ = train(place, 'changed/config.json', *keys)
    changes = ['dropout 0.0 → 0.1', 'max_iters 4 → 8', 'weight_decay 0.1 → 0.3', 'precision torch.bfloat16 → torch.float32',
               'code of model.py']
    assert f'changed since the checkpoint: {", ".join(changes)}\n' in out
    *_, start = json.loads((run / 'run.json').read_text())['starts']
    assert start['iter'] == 4 and start['changes'] == changes and (run / 'code.patch').read_bytes() == b'an edit'
    mark, = [json.loads(line) for line in (run / 'log.jsonl').read_text().splitlines() if '"start"' in line]
    assert (mark['iter'], mark['changes']) == (4, changes) and [row['iter'] for row in rows(run) if 'loss' in row] == [*range(8)]


@pytest.fixture
def copy(whole, place, request):
    """A copy of that run, in a folder of the test's name"""
    return Path(shutil.copytree(whole, place / request.node.name))


def test_a_checkpoint_with_a_key_that_this_code_lacks(copy, place):
    """Such as one of an edit that was taken back: the model here may be another"""
    state = torch.load(copy / 'ckpt.pt')
    state['config']['cap'] = 0.05
    torch.save(state, copy / 'ckpt.pt')
    found = [run_here(*command, cwd=place) for command in (
        ('sample.py', f'--out_dir={copy.name}', '--checkpoint=ckpt.pt', '--max_new_tokens=1', '--num_samples=1', '--device=cpu'),
        ('train.py', 'whole/config.json', *flags(init_from='resume', out_dir=copy.name, max_iters=5)))]
    assert 'ckpt.pt was saved by code with more keys (cap=0.05)' in found[0][2] and 'cap 0.05 → (unknown here)' in found[1][1]


def test_a_refused_resumption_has_written_nothing(copy, place):
    """With other windows in an iteration, or an optimizer's state of other parameters"""
    for damaged, says in (False, 'windows in an iteration'), (True, 'wte.other'):
        if damaged:
            state = torch.load(copy / 'ckpt.pt')
            state['optimizer']['param_groups'][0]['param_names'][0] = 'wte.other'
            torch.save(state, copy / 'ckpt.pt')
        before = {path.name: path.read_bytes() for path in copy.iterdir()}
        keys = flags(init_from='resume', out_dir=copy.name, max_iters=8, batch_size=4 if damaged else 2)
        _, err = train(place, 'whole/config.json', *keys, code=1)
        assert says in err and err.count('\n') == 1
        assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_another_split_into_micro_batches(copy, place):
    """The same windows in other micro-batches: the same losses, but for rounding"""
    train(place, *flags(**SHORT, out_dir='as-before'), '--max_iters=8')
    keys = dict(out_dir=copy.name, init_from='resume', max_iters=8, batch_size=8, gradient_accumulation_steps=2)
    train(place, 'whole/config.json', *flags(**keys))
    ours, theirs = ([row['loss'] for row in rows(run) if 'loss' in row] for run in (copy, place / 'as-before'))
    assert len(ours) == 8 and ours == pytest.approx(theirs, rel=1e-5)


# ----------------------------------------------------------------------------- what was saved can be read

def on_block(change):
    """An edit of the end of Block.__init__"""
    def apply(monkeypatch):
        def build(self, config, layer, old=model.Block.__init__):
            old(self, config, layer)
            change(self)

        monkeypatch.setattr(model.Block, '__init__', build)

    return apply


def parameter_in_forward(monkeypatch):
    def forward(self, x, *more, old=model.Block.forward):
        if not hasattr(self, 'late_norm'):
            self.late_norm = nn.LayerNorm(x.size(-1), elementwise_affine=True)
        x, v1 = old(self, x, *more)
        return self.late_norm(x), v1

    monkeypatch.setattr(model.Block, 'forward', forward)


def after_each_step(does):
    """An edit: an optimizer that calls does(itself) after its step"""
    class Edited(torch.optim.SGD):
        def step(self):
            super().step()
            does(self)

    return lambda monkeypatch: monkeypatch.setitem(optim.OPTIMIZERS, 'sgdw', lambda groups, c: Edited(groups, c['learning_rate']))


def counts(optimizer):
    """As Prodigy does"""
    optimizer.param_groups[0]['k'] = 1 + optimizer.param_groups[0].get('k', 0)


def keeps_a_deque(optimizer):
    optimizer.state[optimizer.param_groups[0]['params'][0]]['kept'] = collections.deque([1.0])


REFUSED = {
    'a counter in the groups': (after_each_step(counts), 'the optimizer has changed k in its groups'),
    'a buffer of NaN': (on_block(lambda block: block.register_buffer('mask', torch.tensor(torch.nan))), 'mask is not finite'),
    'a parameter made in forward': (parameter_in_forward, 'late_norm.weight is not as in a model that is built anew'),
    'a deque': (after_each_step(keeps_a_deque), 'optimizer.state.0.kept is a deque'),
}


@pytest.mark.parametrize('edit', REFUSED)
def test_what_nobody_could_read_ends_the_run_after_its_first_step(place, monkeypatch, edit):
    apply, says = REFUSED[edit]
    apply(monkeypatch)
    _, err = train(place, *flags(**{**SHORT, 'optimizer': 'sgdw'}, out_dir='unreadable', overwrite=True), code=1)
    assert 'error: a checkpoint of this run could not be resumed: ' in err and says in err and err.count('\n') == 1


class Keeps(torch.optim.Optimizer):
    """Keeps what others do: a counter; a state of no parameter; a momentum in bf16; text; a number per row"""
    on_shards = True

    def __init__(self, groups, lr):
        super().__init__(groups, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        shared = self.state['shared']
        shared['count'] = shared.get('count', 0) + 1
        shared['shrinks'] = 0.9 * shared.get('shrinks', torch.ones(2))
        for group in self.param_groups:
            for p in group['params']:
                state = self.state[p]
                state['rows'] = state.get('rows', torch.zeros(len(p))) + 1
                state.setdefault('rule', ['momentum', {'half': torch.zeros(2, dtype=torch.bfloat16)}])
                m = state.setdefault('m', torch.zeros_like(p, dtype=torch.bfloat16)).mul_(0.9).add_(p.grad)
                state['k'] = state.get('k', 0) + 1
                p.sub_(m.float(), alpha=group['lr'] * shared['shrinks'][0].item() / state['k'] / shared['count'])


def keeps():
    """And the blocks have a mask"""
    on_block(lambda block: block.register_buffer('mask', torch.full((3,), -torch.inf)))(pytest.MonkeyPatch())
    optim.OPTIMIZERS['sgdw'] = lambda groups, c: Keeps(groups, c['learning_rate'])


def same(a, b):
    """Whether nested dicts and lists have the same types and bits"""
    if torch.is_tensor(a):
        return torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else type(a) is type(b) and a == b


@pytest.mark.parametrize('more', [{}, pytest.param(dict(parallel='fsdp'), marks=pytest.mark.long)])
def test_what_an_optimizer_keeps_comes_back(place, monkeypatch, more):
    """Its state, bit for bit, and in its groups what the new command sets"""
    monkeypatch.setitem(optim.OPTIMIZERS, 'sgdw', optim.OPTIMIZERS['sgdw'])     # which is put back at the end
    keys, ranks, name = {**SHORT, 'optimizer': 'sgdw', 'weight_decay': 0.1, **more}, 2 if more else 1, f'keeps-{len(more)}'
    train(place, *flags(**keys, out_dir=name), ranks=ranks, through=(keeps,))
    train(place, *flags(**{**keys, 'max_iters': 8, 'weight_decay': 0.2}, out_dir=name, init_from='resume'), ranks=ranks,
          through=(keeps,))
    train(place, *flags(**{**keys, 'max_iters': 8}, out_dir=f'{name}-at-once'), ranks=ranks, through=(keeps,))
    ours, theirs = (load_checkpoint(str(place / run / 'ckpt.pt')) for run in (name, f'{name}-at-once'))
    groups = ours['optimizer']['param_groups']
    assert {group.pop('weight_decay') for group in groups} == {0.0, 0.2}
    for group in theirs['optimizer']['param_groups']:
        group.pop('weight_decay')
    assert same(ours['optimizer'], theirs['optimizer']) and same(ours['model'], theirs['model'])
    assert theirs['optimizer']['state'][0]['m'].dtype == torch.bfloat16 and theirs['optimizer']['state']['shared']['count'] == 8


class Counting(nn.Identity):
    """A norm with a counter, a tensor, a list and a buffer that no checkpoint holds, and a table that its first use fills"""

    def __init__(self, *args, **more):
        super().__init__()
        self.count, self.total, self.list, self.table = 0, torch.zeros(()), [{'a': np.zeros(2)}], None
        self.register_buffer('seen', torch.zeros(()), persistent=False)
        self.register_buffer('kept', torch.zeros(()))

    def forward(self, x):
        for name in 'count', 'total', 'seen', 'kept':
            setattr(self, name, getattr(self, name) + 1)
        self.list[0]['a'] += 1
        self.table = torch.ones(3)
        return x


class Gathers(torch.optim.SGD):
    """Keeps a sum of all gradients by itself, from its first step on."""

    def step(self):
        self.sums = [p.grad.clone() + old for p, old in zip(self.param_groups[0]['params'], getattr(self, 'sums', [0] * 99))]
        super().step()


def test_state_that_no_checkpoint_holds(place, monkeypatch):
    """Is named once, after the first step. test_evidence.py has that our optimizers and modules keep none"""
    monkeypatch.setitem(model.NORMS, 'layernorm', Counting)
    monkeypatch.setitem(optim.OPTIMIZERS, 'sgdw', lambda groups, c: Gathers(groups, c['learning_rate']))
    for optimizer, says in ('adamw', r'\S*seen, \S*count, \S*total and 17 more'), ('sgdw', r'Gathers.sums, \S*, \S* and 18 more'):
        out, _ = train(place, *flags(**{**SHORT, 'optimizer': optimizer}, out_dir=f'counting-{optimizer}'))
        assert len(re.findall(f'(?m)^{says} changed in the first step, and no checkpoint holds it', out)) == 1, out
        assert out.count('no checkpoint holds it') == 1


def test_a_flipped_bit(copy, place):
    """In a tensor of ckpt.pt, where it would be another weight"""
    content = bytearray((copy / 'ckpt.pt').read_bytes())
    weight = checkpoint(copy)['model']['h.0.ffn.w1.weight'].numpy().tobytes()
    content[content.index(weight) + 100] ^= 4
    (copy / 'ckpt.pt').write_bytes(content)
    _, err = train(place, 'whole/config.json', *flags(init_from='resume', out_dir=copy.name, max_iters=9), code=1)
    assert f'error: {copy.name}/ckpt.pt is damaged' in err and err.count('\n') == 1


def test_data_that_was_prepared_anew(place, monkeypatch):
    """Under the same name, with other characters: nothing goes on with these or reads the run by them; nor do its weights meet
    other tokens. The same data prepared again goes on"""
    monkeypatch.chdir(place)

    def prepare(name, chars):
        write_tokens(f'data/{name}', {split: [np.arange(600) % 13] for split in ('train', 'val')}, 13, 'char', chars=chars)

    prepare('first', 'abcdefghijklm'), prepare('second', 'nopqrstuvwxyz')
    train(place, *flags(**{**SHORT, 'dataset': 'first'}, out_dir='anew'))
    _, err = train(place, *flags(**{**SHORT, 'dataset': 'second'}, out_dir='other', init_from='anew'), code=1)
    assert 'dataset=second has other tokens (char) than anew has learned' in err
    goes_on = ['train.py', 'anew/config.json', '--init_from=resume', '--max_iters=6']
    before = (place / 'anew/ckpt.pt').read_bytes()
    prepare('first', 'nopqrstuvwxyz')
    for command in (goes_on, [*goes_on, '--eval_only=True'], *([script, '--out_dir=anew', *more] for script, *more in (
            ['sample.py'], ['lab.export', '--to=hf'], ['lab.evaluate'], ['lab.measure', '--what=parameters']))):
        err = run_here(*command, cwd=place)[2]
        assert err.startswith('error: data/first holds other data than when anew/') and err.count('\n') == 1, command
    assert (place / 'anew/ckpt.pt').read_bytes() == before
    prepare('first', 'abcdefghijklm'), prepare('third', 'abcdefghijklm')
    _, err = train(place, *goes_on[1:], '--dataset=second', code=1)
    assert 'dataset=second has other tokens (char) than anew/ckpt.pt has learned' in err
    train(place, *goes_on[1:], '--dataset=third', '--eval_only=True')
    train(place, *goes_on[1:])
    train(place, *flags(**{**SHORT, 'dataset': 'first'}, out_dir='same', init_from='anew'))


# ----------------------------------------------------------------------------- folders

def moved(at, to):
    """Somebody renames the run's folder, and another run begins in one of the old name."""
    def does(it):
        if it == at:
            os.rename('moving', to)
            os.mkdir('moving')
            (open('moving/ckpt.pt', 'w').write('of another run'), open('moving/.lock', 'w').close())

    in_each_iteration(does)


def test_a_folder_that_was_moved_away(place):
    _, err = train(place, *flags(**SHORT, out_dir='moving'), through=(moved, 2, 'moved'), code=1)
    assert 'error: moving has been moved or removed while this run trained there' in err and err.count('\n') == 1
    assert (place / 'moving' / 'ckpt.pt').read_text() == 'of another run' and len(rows(place / 'moved')) > 3


# ----------------------------------------------------------------------------- edits that used to end in a traceback

def unused():
    on_block(lambda block: setattr(block.attn, 'o_norm', nn.LayerNorm(16)))(pytest.MonkeyPatch())


def test_a_parameter_without_a_gradient(place):
    """One process names it and trains all others; DDP cannot"""
    says = 'no gradient reaches h.0.attn.o_norm.weight, h.0.attn.o_norm.bias'
    out, _ = train(place, *flags(**SHORT, out_dir='unused'), through=(unused,))
    assert out.count(says) == 1
    _, err = train(place, *flags(**SHORT, out_dir='unused-ddp'), ranks=2, through=(unused,), code=1)
    assert f'error: {says}' in err and 'Traceback' not in err
