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
import torch.distributed as dist
from helpers import TINY, Alone, checkpoint, flags, in_each_iteration, rows, run_here, train, write_walk
from torch import nn

import model
import optim
from data.tokens import write_tokens
from engine.checkpoint import load_checkpoint, load_run
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


@pytest.mark.parametrize('key, value', [('learning_rate', 0.02), ('parallel', 'fsdp')])
def test_ranks_with_other_keys(place, key, value):
    keys = flags(**SHORT, out_dir='other-keys')
    for code, err in ranks(place, ('.', *keys), ('.', *keys, f'--{key}={value}')):
        assert code == 1 and err.startswith('error: not all ranks were given the same: ') and err.count('\n') == 1
        assert f'{key} ' in err and f'{value!r} on rank 1' in err
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


def other_code():
    """Rank 1 has an edited model.py."""
    from engine import run
    hashes = run.code_hashes
    run.code_hashes = lambda script: hashes(script) | ({'model.py': 'edited'} if os.environ['RANK'] == '1' else {})


def test_ranks_with_other_code(place):
    for code, err in ranks(place, *[('.', *flags(**SHORT, out_dir='code'))] * 2, through=(other_code,)):
        assert code == 1 and 'code of model.py' in err and 'code of optim.py' not in err


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
    """Edits of train.py's loop or of an optimizer, by which ranks would drift apart"""
    def noise(p):
        p.grad.add_(0.01 * torch.randn_like(p.grad))

    def on_one_rank(p):
        if os.environ['RANK'] == '1':
            p.data.add_(1e-3)

    step = optim.SGDW.step

    def edited(self, closure=None):
        for group in self.param_groups:
            for p in group['params']:
                dict(noise=noise, one=on_one_rank)[edit](p)
        step(self)

    optim.SGDW.step = edited


def test_ranks_that_drift_apart(place):
    """Noise behind the micro-batches is the same on all ranks. What is not ends the run before it is saved"""
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


def test_names_of_what_is_logged(place):
    """Their order does not mix them up; another name on one rank is an error"""
    train(place, *flags(**SHORT, out_dir='order'), ranks=2, through=(logs, ['ab', 'ba']))
    assert all((row['logged.a'], row['logged.b']) == (0, 1) for row in rows(place / 'order') if 'loss' in row)
    _, err = train(place, *flags(**SHORT, out_dir='names'), ranks=2, through=(logs, ['a', 'b']), code=1)
    assert 'error: the ranks have put other names into aux or logged: ' in err


# ----------------------------------------------------------------------------- what a resumed run has changed

def test_a_resumed_run_says_what_it_has_changed(whole, place, monkeypatch):
    run = place / 'changed'
    shutil.copytree(whole, run)
    first = json.loads((run / 'run.json').read_text())['starts']
    assert len(first) == 1 and first[0]['iter'] == 0 and first[0]['changes'] == []
    out, _ = train(place, 'changed/config.json', *flags(init_from='resume', max_iters=6, out_dir='changed'))
    assert 'changed since the checkpoint: max_iters 4 → 6\n' in out
    monkeypatch.setattr('engine.run.code_hashes', lambda script: {**first[0]['code'], 'model.py': 'edited'})
    monkeypatch.setattr('engine.run.code_state', lambda: (first[0]['commit'] or 'a commit', [], b'an edit'))
    out, _ = train(place, 'changed/config.json',
                   *flags(init_from='resume', max_iters=8, out_dir='changed', weight_decay=0.3, dropout=0.1))
    changes = ['dropout 0.0 → 0.1', 'max_iters 6 → 8', 'weight_decay 0.1 → 0.3', 'code of model.py']
    assert f'changed since the checkpoint: {", ".join(changes)}\n' in out
    starts = json.loads((run / 'run.json').read_text())['starts']
    assert [start['iter'] for start in starts] == [0, 4, 6] and starts[2]['changes'] == changes
    assert '--weight_decay=0.3' in starts[2]['command'] and starts[:1] == first
    assert (run / 'code.patch').read_bytes() == b'an edit'
    marks = [json.loads(line) for line in (run / 'log.jsonl').read_text().splitlines() if '"start"' in line]
    assert [(mark['iter'], mark['start']) for mark in marks] == [(4, 2), (6, 3)] and marks[1]['changes'] == changes
    assert [row['iter'] for row in rows(run) if 'loss' in row] == [*range(8)]


@pytest.fixture
def copy(whole, place, request):
    """A copy of that run, in a folder of the test's name"""
    return Path(shutil.copytree(whole, place / request.node.name))


def test_a_resumed_run_says_that_its_machine_has_changed(copy, place):
    """With dtype=auto another machine may compute in another precision"""
    state = torch.load(copy / 'ckpt.pt')
    machine = state['about']['machine']
    state['about'] |= dict(dtype='torch.bfloat16', torch='2.10.0', machine='a GPU')
    torch.save(state, copy / 'ckpt.pt')
    out, _ = train(place, 'whole/config.json', *flags(init_from='resume', max_iters=5, out_dir=copy.name))
    changes = ['max_iters 4 → 5', 'precision torch.bfloat16 → torch.float32', f'PyTorch 2.10.0 → {torch.__version__}',
               f'machine a GPU → {machine}']
    assert f'changed since the checkpoint: {", ".join(changes)}\n' in out
    assert json.loads((copy / 'run.json').read_text())['starts'][1]['changes'] == changes


def test_a_resumption_that_was_killed_hides_no_change(copy, place, monkeypatch):
    """It noted the code that it ran, and ended before it saved: the checkpoint is still that of the start before. An evaluation
    says so too"""
    about = json.loads((copy / 'run.json').read_text())
    edited = {**about['starts'][0]['code'], 'model.py': 'edited'}
    about['starts'].append({**about['starts'][0], 'code': edited, 'dtype': 'torch.bfloat16'})
    (copy / 'run.json').write_text(json.dumps(about))
    monkeypatch.setattr('engine.run.code_hashes', lambda script: edited)
    keys = ['whole/config.json', *flags(init_from='resume', out_dir=copy.name)]
    assert 'changed since the checkpoint: code of model.py' in train(place, *keys, '--eval_only=True')[0]
    assert 'changed since the checkpoint: max_iters 4 → 5, code of model.py\n' in train(place, *keys, '--max_iters=5')[0]
    assert checkpoint(copy)['about']['code'] == edited


def test_a_checkpoint_with_a_key_that_this_code_lacks(copy, place):
    """Such as one of an edit that was taken back: the model here may be another"""
    state = torch.load(copy / 'ckpt.pt')
    state['config']['cap'] = 0.05
    for name in ('ckpt.pt', 'best.pt'):
        torch.save(state, copy / name)
    out, _ = train(place, 'whole/config.json', *flags(init_from='resume', out_dir=copy.name, max_iters=5))
    assert 'cap 0.05 → (unknown here)' in out
    torch.save(state, copy / 'best.pt')
    err = run_here('sample.py', f'--out_dir={copy.name}', '--max_new_tokens=1', '--num_samples=1', '--device=cpu', cwd=place)[2]
    assert 'best.pt was saved by code with more keys (cap=0.05)' in err


@pytest.mark.parametrize('keys', [dict(batch_size=2), dict(gradient_accumulation_steps=8)])
def test_another_number_of_windows_is_refused(whole, place, keys):
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    _, err = train(place, 'whole/config.json', *flags(init_from='resume', max_iters=8, **keys), code=1)
    assert 'windows in an iteration' in err and err.count('\n') == 1
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_another_split_into_micro_batches(copy, place):
    """The same windows in other micro-batches: the same losses, but for rounding"""
    train(place, *flags(**SHORT, out_dir='as-before'), '--max_iters=8')
    keys = dict(out_dir=copy.name, init_from='resume', max_iters=8, batch_size=8, gradient_accumulation_steps=2)
    train(place, 'whole/config.json', *flags(**keys))
    ours, theirs = ([row['loss'] for row in rows(run) if 'loss' in row] for run in (copy, place / 'as-before'))
    assert len(ours) == 8 and ours == pytest.approx(theirs, rel=1e-5)


def test_a_refused_resumption_has_written_nothing(copy, place):
    state = torch.load(copy / 'ckpt.pt')
    state['optimizer']['param_groups'][0]['param_names'][0] = 'wte.other'
    torch.save(state, copy / 'ckpt.pt')
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    train(place, 'whole/config.json', *flags(init_from='resume', out_dir=copy.name, max_iters=9), code=1)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


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


def optimizer_with(value):
    """SGD that keeps a value in its state"""
    class Keeps(torch.optim.SGD):
        def step(self):
            super().step()
            for group in self.param_groups:
                for p in group['params']:
                    self.state[p]['kept'] = value(p)

    return lambda monkeypatch: monkeypatch.setitem(optim.OPTIMIZERS, 'sgdw', lambda groups, c: Keeps(groups, c['learning_rate']))


def counts_in_groups(monkeypatch):
    """As Prodigy does"""
    class Counts(torch.optim.SGD):
        def step(self):
            super().step()
            for group in self.param_groups:
                group['k'] = group.get('k', 0) + 1

    monkeypatch.setitem(optim.OPTIMIZERS, 'sgdw', lambda groups, c: Counts(groups, c['learning_rate']))


def expand(block):
    block.attn_pre_norm.weight = nn.Parameter(torch.ones(1).expand(16), requires_grad=False)


READ_AGAIN = {
    'a buffer with -inf': on_block(lambda block: block.register_buffer('mask', torch.full((3,), -torch.inf))),
    'rows and columns, as Adafactor': optimizer_with(lambda p: torch.ones(len(p)) if p.dim() > 1 else 1.0),
}
REFUSED = {
    'a counter in the groups': (counts_in_groups, 'the optimizer has changed k in its groups'),
    'a buffer of NaN': (on_block(lambda block: block.register_buffer('mask', torch.tensor(torch.nan))), 'mask is not finite'),
    'a parameter made in forward': (parameter_in_forward, 'late_norm.weight is not as in a model that is built anew'),
    'an expanded parameter': (on_block(expand), 'attn_pre_norm.weight has not all of its numbers in memory'),
    'a numpy number': (optimizer_with(lambda p: np.float64(1.0)), 'optimizer.state.0.kept is a float64'),
    'a deque': (optimizer_with(lambda p: collections.deque([1.0])), 'optimizer.state.0.kept is a deque'),
}


@pytest.mark.parametrize('edit', READ_AGAIN)
def test_what_an_edit_saves_is_read_again(place, monkeypatch, edit):
    READ_AGAIN[edit](monkeypatch)
    keys = {**SHORT, 'optimizer': 'sgdw', 'grad_clip': 0.0}
    train(place, *flags(**keys, out_dir='again', overwrite=True))
    train(place, *flags(**{**keys, 'max_iters': 6}, out_dir='again', init_from='resume'))
    train(place, *flags(**{**keys, 'max_iters': 6}, out_dir='at-once', overwrite=True))
    for name, value in checkpoint(place / 'again')['model'].items():
        assert torch.equal(value, checkpoint(place / 'at-once')['model'][name]), name


@pytest.mark.parametrize('edit', REFUSED)
def test_what_nobody_could_read_ends_the_run_after_its_first_step(place, monkeypatch, edit):
    apply, says = REFUSED[edit]
    apply(monkeypatch)
    _, err = train(place, *flags(**{**SHORT, 'optimizer': 'sgdw'}, out_dir='unreadable', overwrite=True), code=1)
    assert 'error: a checkpoint of this run could not be resumed: ' in err and says in err and err.count('\n') == 1


class Keeps(torch.optim.Optimizer):
    """Keeps what others do: a counter; a state of no parameter; a momentum in bf16; text"""
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
                state.setdefault('rule', ['momentum', {'half': torch.zeros(2, dtype=torch.bfloat16)}])
                m = state.setdefault('m', torch.zeros_like(p, dtype=torch.bfloat16)).mul_(0.9).add_(p.grad)
                state['k'] = state.get('k', 0) + 1
                p.sub_(m.float(), alpha=group['lr'] * shared['shrinks'][0].item() / state['k'] / shared['count'])


def keeps():
    optim.OPTIMIZERS['sgdw'] = lambda groups, c: Keeps(groups, c['learning_rate'])


def same(a, b):
    """Whether nested dicts and lists have the same types and bits"""
    if torch.is_tensor(a):
        return torch.is_tensor(b) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else type(a) is type(b) and a == b


@pytest.mark.parametrize('more', [{}, *(pytest.param(more, marks=pytest.mark.long) for more in (
    dict(parallel='fsdp'),))])
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
    """A norm with a counter, a tensor and a buffer that no checkpoint holds"""

    def __init__(self, *args, **more):
        super().__init__()
        self.count, self.total = 0, torch.zeros(())
        self.register_buffer('seen', torch.zeros(()), persistent=False)
        self.register_buffer('kept', torch.zeros(()))

    def forward(self, x):
        self.count, self.total = self.count + 1, self.total + 1
        self.seen, self.kept = self.seen + 1, self.kept + 1
        return x


def test_state_that_no_checkpoint_holds(place, monkeypatch):
    """Is named once, after the first step"""
    monkeypatch.setitem(model.NORMS, 'layernorm', Counting)
    out, _ = train(place, *flags(**SHORT, out_dir='counting'))
    line, = [line for line in out.splitlines() if 'no checkpoint holds it' in line]
    assert [name.rpartition('.')[2] for name in line.partition(' changed')[0].split(', ')] == ['seen', 'count', 'total']


@pytest.mark.parametrize('optimizer', optim.OPTIMIZERS)
def test_what_is_ours_is_held(optimizer, place):
    out, _ = train(place, *flags(**SHORT, optimizer=optimizer, out_dir=f'held-{optimizer}'))
    assert 'no checkpoint holds it' not in out


def test_a_flipped_bit(copy, place):
    """In a tensor of ckpt.pt, where it would be another weight"""
    content = bytearray((copy / 'ckpt.pt').read_bytes())
    weight = checkpoint(copy)['model']['h.0.ffn.w1.weight'].numpy().tobytes()
    content[content.index(weight) + 100] ^= 4
    (copy / 'ckpt.pt').write_bytes(content)
    _, err = train(place, 'whole/config.json', *flags(init_from='resume', out_dir=copy.name, max_iters=9), code=1)
    assert f'error: {copy.name}/ckpt.pt is damaged' in err and err.count('\n') == 1


def test_data_that_was_prepared_anew(place, copy, monkeypatch):
    """Under the same name, with other characters: no command reads the run with these; nor do its weights meet other tokens"""
    monkeypatch.chdir(place)
    for name, chars in (('first', 'abcdefghijklm'), ('second', 'nopqrstuvwxyz')):
        write_tokens(place / 'data' / name, {split: [np.arange(600) % 13] for split in ('train', 'val')}, 13, 'char', chars=chars)
    train(place, *flags(**{**SHORT, 'dataset': 'first'}, out_dir='anew'))
    _, err = train(place, *flags(**{**SHORT, 'dataset': 'second'}, out_dir='other', init_from='anew'), code=1)
    assert 'dataset=second has other tokens (char) than anew has learned' in err
    train(place, *flags(**{**SHORT, 'dataset': 'first'}, out_dir='same', init_from='anew'))
    shutil.rmtree(place / 'data' / 'first')
    shutil.copytree(place / 'data' / 'second', place / 'data' / 'first')
    for script, *more in (['sample.py'], ['lab.export', '--to=hf'], ['lab.evaluate'], ['lab.measure', '--what=parameters']):
        err = run_here(script, '--out_dir=anew', *more, cwd=place)[2]
        assert err.startswith('error: data/first holds other data than when anew/') and err.count('\n') == 1, script


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


def test_a_block_that_two_layers_share(place, monkeypatch):
    def build(self, config, old=GPT.__init__):
        old(self, config)
        self.h[1] = self.h[0]

    monkeypatch.setattr(GPT, '__init__', build)
    train(place, *flags(**SHORT, out_dir='shared'))
    train(place, *flags(**{**SHORT, 'max_iters': 6}, out_dir='shared', init_from='resume'))
    run, _ = load_run(str(place / 'shared' / 'ckpt.pt'))
    assert run.h[0] is run.h[1]
