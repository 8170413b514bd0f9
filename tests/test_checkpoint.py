"""Checkpoints and other files are whole, or not there. test_train.py has the rest."""

import os

import pytest
import torch

from engine.checkpoint import load_checkpoint, save
from engine.files import write_whole


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


def test_a_flipped_bit_is_noticed(tmp_path):
    """It changes a weight to another number, which only the sums in the file show"""
    path, weight = tmp_path / 'ckpt.pt', torch.full((100,), 1.5)
    save([str(path)], dict(model={'w': weight}, optimizer={}, scaler={}, about={'script': 'train.py'}, iter=1, best_val_loss=1.0,
                           config=dict(dataset='', init_from='scratch', optimizer='sgdw'), data=''))
    assert torch.equal(load_checkpoint(path)['model']['w'], weight)
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 100] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match='ckpt.pt is damaged'):
        load_checkpoint(path)
