"""
train.py as its users run it: whole runs of a tiny model, on one process and on two, stopped, resumed, diverged.
"""
import json
import math
import os
import shutil
import signal
import time
from dataclasses import fields

import helpers
import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import TINY, Alone, checkpoint, evaluations, flags, interrupted, rows, run_alone, run_here, run_ranks, steps, train

from data.write import write_tokens
from engine.stats import NUMBERS, OF_ATTENTION
from model import GPT, GPTConfig
from optim import lr_at

FILES = ('best.pt', 'ckpt.pt', 'config.json', 'log.jsonl', 'run.json')


@pytest.fixture(scope='module')
def whole(place):
    """A run of 20 iterations with AdamW, which others are compared with."""
    out, err = train(place, *flags(**TINY, out_dir='whole'))
    assert err == '' and 'val loss' in out
    return place / 'whole'


def files(run):
    """Names of what a run has written, but for its lock; code.patch is there where the repository is one of git's."""
    return sorted(path.name for path in run.iterdir() if path.name not in ('code.patch', '.lock'))


def contents(folder):
    """{name: bytes} of the files of a run"""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != '.lock'}


# ----------------------------------------------------------------------------- a run and what it leaves

def test_files(whole, place):
    """config.json is a config; the log has a row per step and evaluation"""
    assert files(whole) == list(FILES)
    config = json.loads((whole / 'config.json').read_text())
    assert TINY.items() <= config.items() and config['out_dir'] == 'whole' and config['init_from'] == 'scratch'
    info = json.loads((whole / 'run.json').read_text())
    assert info['torch'] == torch.__version__ and info['ranks'] == 1 and info['tokens_per_iter'] == 4 * 4 * 16
    assert 'train.py' in info['command'] and '--out_dir=whole' in info['command'] and 'commit' in info
    assert [row['iter'] for row in steps(whole)] == list(range(20))
    assert [row['iter'] for row in evaluations(whole)] == [0, 5, 10, 15, 20]
    assert all(row.keys() >= {'iter', 'loss', 'lr', 'grad_norm'} for row in steps(whole))
    assert all({key.partition('.')[0] for key in row} == {'iter', 'train_loss', 'val_loss', *NUMBERS, *OF_ATTENTION}
               for row in evaluations(whole))


def assert_same_weights(run, other):
    """Both checkpoints of two runs hold the same weights, bit for bit, of the same iterations."""
    for name in ('ckpt.pt', 'best.pt'):
        ours, theirs = checkpoint(run, name), checkpoint(other, name)
        assert (ours['iter'], ours['best_val_loss']) == (theirs['iter'], theirs['best_val_loss'])
        assert all(torch.equal(ours['model'][key], theirs['model'][key]) for key in theirs['model'])


@torch.no_grad()
def plain_loss(state, tokens, windows):
    """Of the model of a checkpoint on 12 of the windows of its 16 tokens, evenly spread"""
    model = GPT(GPTConfig(**{f.name: state['config'][f.name] for f in fields(GPTConfig)}))
    model.load_state_dict(state['model'])
    tokens, starts = torch.from_numpy(tokens.astype(np.int64)), [16 * (i * windows // 12) for i in range(12)]
    return model.eval()(*(torch.stack([tokens[s + o:s + o + 16] for s in starts]) for o in (0, 1)))[1].item()


def tokens_of(place, split):
    return np.fromfile(place / 'data' / 'tiny' / f'{split}.bin', np.uint16)


def test_checkpoint_is_the_model_that_was_evaluated(whole, place):
    """Loaded safely, under the module tree's own names, it gives the validation loss that the log reports"""
    for name in ('ckpt.pt', 'best.pt'):
        state = checkpoint(whole, name)
        row, = [row for row in evaluations(whole) if row['iter'] == state['iter']]
        assert plain_loss(state, tokens_of(place, 'val'), 31) == pytest.approx(row['val_loss'], abs=1e-5)
    best = min(evaluations(whole), key=lambda row: row['val_loss'])
    assert checkpoint(whole)['iter'] == 20 and checkpoint(whole, 'best.pt')['iter'] == best['iter']
    assert checkpoint(whole)['best_val_loss'] == best['val_loss']


def test_two_ranks_see_what_one_sees(whole, place):
    """The same losses, gradients and evaluations up to the order of fp32 sums, and a checkpoint for one process"""
    train(place, 'whole/config.json', '--out_dir=ranks', '--max_iters=10', ranks=2)
    alone = [row for row in rows(whole) if row['iter'] < 10 or 'val_loss' in row and row['iter'] == 10]
    together = rows(place / 'ranks')
    assert [row.keys() for row in together] == [row.keys() for row in alone]
    for a, b in zip(together, alone):
        assert a == pytest.approx(b, rel=0, abs=1e-5)
    assert json.loads((place / 'ranks' / 'run.json').read_text())['ranks'] == 2
    assert checkpoint(place / 'ranks')['model'].keys() == checkpoint(whole)['model'].keys()


def test_a_run_that_is_complete_says_so(whole, place):
    """And nothing is written"""
    before = contents(whole)
    out, _ = train(place, 'whole/config.json', '--init_from=auto')
    loss = evaluations(whole)[-1]['val_loss']
    assert out.count('\n') == 1 and 'whole is complete: 20 iterations, train loss' in out and f'val loss {loss:.4f}' in out
    assert contents(whole) == before


def test_a_test_split_is_evaluated_at_the_end(whole, place):
    """Only there and by --eval_only, on ranks too; all else and the weights are as without it"""
    test = tokens_of(place, 'train')[:300]
    splits = dict(train=[tokens_of(place, 'train')], val=[tokens_of(place, 'val')], test=[test])
    write_tokens(place / 'data' / 'tested', splits, 13, 'bytes')
    train(place, 'whole/config.json', '--out_dir=tested', '--dataset=tested')
    found, run = rows(place / 'tested'), place / 'tested'
    assert [row['iter'] for row in found if 'test_loss' in row] == [20]
    assert [{key: value for key, value in row.items() if key != 'test_loss'} for row in found] == rows(whole)
    assert_same_weights(run, whole)
    assert plain_loss(checkpoint(run), test, 18) == pytest.approx(found[-1]['test_loss'], abs=1e-5)
    before = contents(run)
    out, _ = train(place, 'tested/config.json', '--init_from=resume', '--max_iters=40', '--eval_only=True')
    assert f'test loss {found[-1]["test_loss"]:.4f}' in out and contents(run) == before
    train(place, 'tested/config.json', '--init_from=resume', '--max_iters=22', ranks=2)
    assert [row['iter'] for row in rows(run) if 'test_loss' in row] == [22]


def test_the_training_split_need_not_be_evaluated(whole, place):
    train(place, 'whole/config.json', '--out_dir=less', '--eval_train=False')
    assert rows(place / 'less') == [{key: value for key, value in row.items() if key != 'train_loss'} for row in rows(whole)]
    assert_same_weights(place / 'less', whole)


# ----------------------------------------------------------------------------- resuming

@pytest.mark.parametrize('optimizer, more', [('adamw', {}), ('sgdw', dict(dropout=0.2, learning_rate=0.1)), ('adam_mini', {}),
                                             ('lion', dict(dtype='float16', learning_rate=3e-3)), ('muon', {})])
def test_resumed_run_is_one_that_was_never_stopped(optimizer, more, place):
    """Bit for bit, with dropout, and in fp16 with its scaler, which counts the steps since its last overflow"""
    keys = flags(**{**TINY, 'max_iters': 10, **more}, optimizer=optimizer)
    at_once, half = place / optimizer, place / f'{optimizer}-half'
    train(place, *keys, f'--out_dir={at_once.name}')
    train(place, *keys, f'--out_dir={half.name}', '--max_iters=5')
    assert [row['iter'] for row in steps(half)] == list(range(5))
    train(place, *keys, f'--out_dir={half.name}', '--init_from=resume')
    assert rows(half) == rows(at_once)
    assert_same_weights(half, at_once)
    ours, theirs = checkpoint(half), checkpoint(at_once)
    assert {**ours['config'], 'out_dir': optimizer} == theirs['config'] and ours['scaler'] == theirs['scaler']
    assert theirs['scaler'].get('_growth_tracker') == (10 if 'dtype' in more else None)


def test_sigterm_saves_and_kept_checkpoints_change_nothing(whole, place):
    """A cluster's SIGTERM: the step is finished, the state saved, and what follows is as if nothing had happened. It comes in
    iteration 9, so that an evaluation is due where the run goes on"""
    run, kept = place / 'stopped', [f'ckpt-{it:06}.pt' for it in (4, 8, 12, 16, 20)]
    keys = flags(**TINY, out_dir='stopped', keep_every=4, always_save_checkpoint=False)
    out, _ = train(place, *keys, code=128 + signal.SIGTERM, through=(interrupted, 9))
    assert out.splitlines()[-1].endswith('python train.py stopped/config.json --init_from=resume')
    assert checkpoint(run)['iter'] == 10 and [row['iter'] for row in steps(run)] == list(range(10))
    train(place, 'stopped/config.json', '--init_from=resume')
    assert rows(run) == rows(whole) and files(run) == sorted([*FILES, *kept])
    assert_same_weights(run, whole)
    assert [checkpoint(run, name)['iter'] for name in kept] == [4, 8, 12, 16, 20]
    assert json.loads((run / 'config.json').read_text())['init_from'] == 'scratch', 'config.json repeats the whole run'


@pytest.mark.long
def test_ranks_stop_together(place):
    """A signal to one rank stops all after the same step, with a checkpoint; a rank that went on would wait forever"""
    keys = flags(**TINY, out_dir='ranks-stopped')
    out, _ = train(place, *keys, ranks=2, through=(interrupted, 9), code=128 + signal.SIGTERM)
    assert 'stopped after iteration 9' in out and checkpoint(place / 'ranks-stopped')['iter'] == 10


@pytest.mark.parametrize('ranks', [1, pytest.param(2, marks=pytest.mark.long)])
def test_max_minutes_stops_as_sigterm_does(place, ranks):
    """Each start gets this time anew; here it is over before the first step ends. Rank 0's clock stops all ranks."""
    run, start_with = place / f'minutes {ranks}', 'python' if ranks == 1 else 'torchrun --nproc_per_node=2'
    for it, more in enumerate((flags(**TINY, out_dir=run.name), [f'{run.name}/config.json', '--init_from=resume'])):
        out, _ = train(place, *more, '--max_minutes=1e-6', ranks=ranks, code=128 + signal.SIGTERM)
        assert f"; to go on: {start_with} train.py '{run.name}/config.json' --init_from=resume\n" in out
        assert f'stopped after iteration {it}; ' in out and checkpoint(run)['iter'] == it + 1


# ----------------------------------------------------------------------------- the rate of each parameter

def test_each_group_has_its_own_rate(place):
    """The checkpoint's groups have the schedule's rate of the last step, with Blockwise LR, times the factor of muP; the log has
    the base's rate"""
    keys = {**TINY, 'max_iters': 10, 'r_emb': 10.0, 'r_qk': 0.5, 'r_ffn': 6.0, 'n_embd': 64, 'n_head': 4, 'mup_base_width': 16,
            'mup_base_head_dim': 16}
    train(place, *flags(**keys, out_dir='rates'))
    schedule = dict(schedule='cosine', learning_rate=1e-2, min_lr=1e-3, warmup_iters=2, lr_decay_iters=20, decay_frac=0.2,
                    blockwise='ramp')
    groups = {group['block_type']: group for group in checkpoint(place / 'rates')['optimizer']['param_groups']}
    assert groups.keys() == {'emb', 'pos', 'qk', 'vo', 'ffn', 'norm'}
    for kind, group in groups.items():
        of_width = 1 / 4 if kind in ('qk', 'vo', 'ffn') else 1
        assert group['lr'] == pytest.approx(of_width * lr_at(9, schedule, keys.get(f'r_{kind}', 1.0))), kind
    assert steps(place / 'rates')[-1]['lr'] == lr_at(9, schedule)


# ----------------------------------------------------------------------------- divergence

def test_divergence(whole, place):
    """Without a clip or a sane rate: stop with 3, and say where. The wreck is not written over the last good checkpoint"""
    mad = dict(optimizer='sgdw', learning_rate=1e6, grad_clip=0.0, warmup_iters=0, eval_interval=1, schedule='constant')
    _, err = train(place, helpers.ROOT / 'config' / 'arch' / 'off.py', *flags(**TINY | mad, out_dir='diverged'), code=3)
    says, = [line for line in err.splitlines() if 'diverged' in line]
    logged, last = steps(place / 'diverged'), rows(place / 'diverged')[-1]
    assert f'iteration {len(logged) - 1}, learning rate 1.000e+06' in says       # the step before the evaluation
    assert all(math.isfinite(row['loss']) for row in logged)
    assert last['iter'] == len(logged) - 1 and last['lr'] == 1e6 and 'not finite' in last['diverged']
    shutil.copytree(whole, place / 'wrecked')
    mad |= dict(optimizer='adamw', learning_rate=1e30, out_dir='wrecked', init_from='resume', max_iters=40)
    _, err = train(place, 'wrecked/config.json', *flags(**mad), code=3)
    assert 'wrecked/ckpt.pt holds the last good state' in err and 'learning rate 1.000e+30' in err
    assert_same_weights(place / 'wrecked', whole)


# ----------------------------------------------------------------------------- folders, data, kills

def test_a_run_is_overwritten_only_when_asked(whole, place):
    run = place / 'taken'
    shutil.copytree(whole, run)
    before = contents(run)
    assert 'out_dir=taken holds a run' in train(place, 'taken/config.json', '--out_dir=taken', code=1)[1]
    assert contents(run) == before
    for name in 'measure.jsonl', 'ckpt-000004.pt':
        (run / name).touch()
    train(place, 'taken/config.json', *flags(out_dir='taken', max_iters=3, overwrite=True, always_save_checkpoint=False))
    assert files(run) == list(FILES) and rows(run)[-1]['iter'] == 3
    assert json.loads((run / 'config.json').read_text())['overwrite'] is False


def test_the_vocabulary_is_that_of_the_data(place):
    """Unless it is given, in a config file or on the command line; config.json holds what came of it"""
    def vocab_size(*more):
        keys = flags(**{key: value for key, value in TINY.items() if key != 'vocab_size'} | dict(max_iters=2), overwrite=True)
        train(place, *keys, '--out_dir=out', *more)
        there = json.loads((place / 'out' / 'config.json').read_text())['vocab_size']
        assert checkpoint(place / 'out')['model']['wte.weight'].shape[0] == there
        return there

    (place / 'sixteen.py').write_text('vocab_size = 16')
    assert vocab_size() == 13 and vocab_size('sixteen.py') == 16 and vocab_size('sixteen.py', '--vocab_size=20') == 20
    train(place, 'out/config.json', '--init_from=resume', '--max_iters=3')


def test_one_process_trains_in_a_folder(whole, place):
    """Another is told which process does, and neither loses a row. The lock ends with the process, also when it is killed"""
    keys = flags(**TINY, out_dir='locked', init_from='auto')
    first = Alone('train.py', *keys, cwd=place, through=(helpers.waits, 3))
    while not (log := place / 'locked' / 'log.jsonl').exists() or log.read_text().count('\n') < 4:
        assert first.process.exitcode is None, first.err()
        time.sleep(0.01)
    try:
        refused = [run_here('train.py', *keys, *more, cwd=place) for more in ([], ['--overwrite=True', '--init_from=scratch'])]
        assert run_here('train.py', *keys, '--eval_only=True', cwd=place)[0] == 0, 'an evaluation needs no lock'
    finally:
        first.process.kill()
        first.end()
    for code, _, err in refused:
        assert code == 1 and err.startswith(f'error: locked is in use: process {first.pid} on ') and err.count('\n') == 1, err
        assert 'is training there; wait for it, or end it' in err
    train(place, *keys)
    assert rows(place / 'locked') == rows(whole)


@pytest.mark.parametrize('moment', [8, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 32, 4))])
def test_a_kill_at_any_moment(whole, place, moment):
    """SIGKILL as a file is being written: what is there can be loaded, and the same command ends as if nothing had been"""
    run = place / f'killed-{moment}'
    keys = flags(**TINY, out_dir=run.name, init_from='auto')
    train(place, *keys, code=-signal.SIGKILL, through=(helpers.killed, moment))
    for name in ('ckpt.pt', 'best.pt'):
        if (run / name).exists():
            assert checkpoint(run, name)['iter'] in (1, 5, 10, 15, 20)
    train(place, *keys)
    assert rows(run) == rows(whole) and not list(run.glob('*.tmp'))
    assert_same_weights(run, whole)


@pytest.mark.parametrize('moment', [15, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 45, 6))])
def test_a_kill_while_a_run_is_overwritten(whole, place, moment):
    """The same command then ends as if nothing had happened, and the user's own files stay"""
    run = place / f'over-{moment}'
    shutil.copytree(whole, run)
    (run / 'notes.txt').write_text("the user's")
    keys = flags(**{**TINY, 'max_iters': 10, 'seed': 1}, out_dir=run.name, overwrite=True)
    code, out, err = run_alone('train.py', *keys, cwd=place, through=(helpers.killed, moment))
    assert code in (-signal.SIGKILL, 0), out + err
    if code:
        train(place, *keys)
    assert (run / 'notes.txt').read_text() == "the user's" and not list(run.glob('*.tmp'))
    assert [row['iter'] for row in steps(run)] == list(range(10)) and checkpoint(run)['config']['seed'] == 1


def lost(at):
    """Rank 1 is killed in an iteration."""
    helpers.in_each_iteration(lambda it: it == at and os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.long
def test_a_rank_is_lost(place):
    """Restarted by torchrun, with the store of before, the ranks go on from the last checkpoint"""
    keys, store = flags(**TINY, init_from='auto'), dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    code, out, err = run_ranks(2, 'train.py', *keys, '--out_dir=lost', cwd=place, store=store, through=(lost, 8),
                               TORCHELASTIC_RESTART_COUNT='0')
    assert code == -signal.SIGKILL, out + err
    assert checkpoint(place / 'lost')['iter'] == 5
    code, out, err = run_ranks(2, 'train.py', *keys, '--out_dir=lost', cwd=place, store=store, TORCHELASTIC_RESTART_COUNT='1')
    assert code == 0, out + err
    train(place, *keys, '--out_dir=unlost', ranks=2)
    assert rows(place / 'lost') == rows(place / 'unlost')


@pytest.mark.long
def test_wandb_offline(place):
    """Every row goes to Weights & Biases too. A resumed run is the same run there"""
    pytest.importorskip('wandb')
    keys = flags(**{**TINY, 'max_iters': 3}, out_dir='logged', wandb_log=True, wandb_run_name='a name')
    for more in [], ['--init_from=resume', '--max_iters=4']:
        code, out, err = run_alone('train.py', *keys, *more, cwd=place, WANDB_MODE='offline', WANDB_SILENT='true')
        assert code == 0, out + err
    run = place / 'logged'
    content = b''.join(path.read_bytes() for path in run.glob('wandb/offline-run-*/*.wandb'))
    assert b'a name' in content and b'grad_norm' in content and b'val_loss' in content and len(steps(run)) == 4
    ids = {path.name.rpartition('-')[2] for path in run.glob('wandb/offline-run-*')}
    assert ids == {json.loads((run / 'run.json').read_text())['wandb']}
    shutil.copytree(run, place / 'copied')              # goes on as a run of its own there
    code, out, err = run_alone('train.py', *keys, '--out_dir=copied', '--init_from=resume', '--max_iters=5', cwd=place,
                               WANDB_MODE='offline', WANDB_SILENT='true')
    assert code == 0 and json.loads((place / 'copied' / 'run.json').read_text())['wandb'] not in ids, out + err


# ----------------------------------------------------------------------------- pretrained weights

def test_pretrained(whole, place):
    """It starts where the other run ended. The architecture is the other run's, in config.json too, which repeats the run"""
    keys = {**TINY, 'init_from': 'whole', 'max_iters': 4, 'eval_interval': 2}
    (place / 'tuned.json').write_text(json.dumps({**keys, 'n_layer': 5}))           # a file's sizes give way, a flag's would not
    train(place, 'tuned.json', '--out_dir=tuned')
    assert evaluations(place / 'tuned')[0]['val_loss'] == pytest.approx(evaluations(whole)[-1]['val_loss'], abs=1e-6)
    assert keys.items() <= json.loads((place / 'tuned' / 'config.json').read_text()).items()
    train(place, 'tuned/config.json', '--out_dir=tuned-half', '--max_iters=2')
    train(place, 'tuned-half/config.json', '--init_from=resume', '--max_iters=4')
    assert rows(place / 'tuned-half') == rows(place / 'tuned')


# ----------------------------------------------------------------------------- measuring while training

def test_measuring_changes_nothing(place):
    """Not a bit of a run with dropout, nor does stopping, with the measurements beyond the checkpoint that a kill leaves"""
    keys = {**TINY, 'dropout': 0.2, 'max_iters': 4, 'eval_interval': 2, 'n_layer': 1}
    measures = dict(measure_interval=2, measure_batches=1)
    train(place, *flags(**keys, out_dir='unmeasured'))
    train(place, *flags(**keys, **measures, out_dir='measured'))
    run, half = place / 'measured', place / 'measured-half'
    assert rows(run) == rows(place / 'unmeasured') and not (place / 'unmeasured' / 'measure.jsonl').exists()
    assert_same_weights(run, place / 'unmeasured')
    found = [json.loads(line) for line in (run / 'measure.jsonl').read_text().splitlines()]
    assert [row['iter'] for row in found] == [0, 2, 4] and found[0]['updates']['qk'] > 0 and 'updates' not in found[2]
    assert found[2]['sharpness']['ffn']['log10_mean'] != found[0]['sharpness']['ffn']['log10_mean']
    train(place, *flags(**{**keys, **measures, 'max_iters': 2}, out_dir=half.name))
    with open(half / 'measure.jsonl', 'a') as f:
        f.write('{"iter": 3}\n{"iter": 4, "gra')
    train(place, *flags(**keys, **measures, out_dir=half.name, init_from='resume'))
    assert (half / 'measure.jsonl').read_bytes() == (run / 'measure.jsonl').read_bytes()
