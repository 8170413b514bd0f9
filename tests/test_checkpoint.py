"""engine/checkpoint.py: files that are whole or not there, and what is refused. test_train.py has the rest."""
from configurator import TRAIN, defaults_of

import os

import pytest
import torch
from helpers import TINY

from engine.checkpoint import Checkpoints, link_or_copy, load_run, write_whole
from engine.keys import gpt_config
from model import GPT, GPTConfig
from optim import OPTIMIZERS, param_groups


@pytest.mark.parametrize('error', [OSError('no space left'), RuntimeError('PytorchStreamWriter failed writing file\nand more')])
def test_what_cannot_be_written_leaves_what_was_there(error, tmp_path):
    """In one line, and without half a file beside it"""
    def fails(f):
        f.write(b'half')
        raise error

    path = str(tmp_path / 'ckpt.pt')
    write_whole(path, lambda f: f.write(b'before'))
    with pytest.raises(OSError, match='ckpt.pt could not be written, what was there is kept: ') as told:
        write_whole(path, fails)
    assert '\n' not in str(told.value) and os.listdir(tmp_path) == ['ckpt.pt']
    assert (tmp_path / 'ckpt.pt').read_bytes() == b'before'


def test_a_second_name_that_a_kill_left(tmp_path):
    """Is not written into: a resumed run reads the file behind it, and would end by SIGBUS"""
    ckpt, best = (str(tmp_path / name) for name in ('ckpt.pt', 'best.pt'))
    write_whole(ckpt, lambda f: f.write(b'first'))
    os.link(ckpt, best + '.tmp')
    with open(ckpt, 'rb') as mapped:
        write_whole(ckpt, lambda f: f.write(b'second'))
        link_or_copy(ckpt, best)
        assert mapped.read() == b'first'
    assert (tmp_path / 'best.pt').read_bytes() == b'second' and sorted(os.listdir(tmp_path)) == ['best.pt', 'ckpt.pt']


def test_a_second_name_stays_as_it_is(tmp_path, monkeypatch):
    """best.pt, while ckpt.pt is written again; on a disk without links, too"""
    ckpt, best = (str(tmp_path / name) for name in ('ckpt.pt', 'best.pt'))
    for _ in range(2):
        write_whole(ckpt, lambda f: f.write(b'first'))
        link_or_copy(ckpt, best)
        write_whole(ckpt, lambda f: f.write(b'second'))
        assert (tmp_path / 'best.pt').read_bytes() == b'first' and (tmp_path / 'ckpt.pt').read_bytes() == b'second'
        monkeypatch.setattr(os, 'link', lambda *paths: exec('raise OSError("this file system has no links")'))


# ----------------------------------------------------------------------------- files of older code

OLD_NAMES = {'.attn_residual.': '.attn_join.', '.ffn_residual.': '.ffn_join.', '.v_gain': '.value_mix.own',
             '.v1_gain': '.value_mix.first'}


def name_before(name):
    block, _, gain = name.removeprefix('h.').partition('.')
    if gain in ('x_gain', 'x0_gain'):
        return f'embedding_skips.{block}.{dict(x_gain="stream", x0_gain="embedding")[gain]}'
    return next((name.replace(new, old) for new, old in OLD_NAMES.items() if new in name), name)


def test_a_checkpoint_of_older_code(tmp_path):
    """Of plain dicts, with the names that parameters once had, without the groups at the start and without a fingerprint"""
    keys = defaults_of(TRAIN, GPTConfig) | dict(TINY, dataset='tiny', residual='gpas', value_residual=True, embedding_skip=True)
    torch.manual_seed(7)
    model = GPT(gpt_config(keys))
    names = [name for name, _ in model.named_parameters()]
    assert sum(name != name_before(name) for name in names) == 10
    for p in model.parameters():
        p.data.normal_()
    weights = model.state_dict()
    moments = [{key: torch.rand_like(weights[name]) for key in ('exp_avg', 'exp_avg_sq')} for name in names]
    state = dict(model={name_before(name): value for name, value in weights.items()}, scaler={}, config=keys, iter=3,
                 best_val_loss=2.0, optimizer=dict(
                     state={i: dict(step=torch.tensor(3.0), **moment) for i, moment in enumerate(moments)},
                     param_groups=[dict(params=list(range(len(names))), param_names=[name_before(name) for name in names],
                                        lr=0.25, weight_decay=0.5, betas=(0.8, 0.9))]))
    torch.save(state, tmp_path / 'ckpt.pt')

    model, found = load_run(str(tmp_path / 'ckpt.pt'))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    optimizer = OPTIMIZERS['adamw'](param_groups(model, 0.1), keys)
    Checkpoints(None, {}, None, False, optimizer).resume(found, None)
    params = dict(model.named_parameters())
    for i, name in enumerate(names):
        for key, value in moments[i].items():
            assert torch.equal(optimizer.state[params[name]][key], value), name
        assert optimizer.state[params[name]]['step'] == 3
    assert {(group['lr'], group['betas']) for group in optimizer.param_groups} == {(0.25, (0.9, 0.95))}, 'rates, no settings'
