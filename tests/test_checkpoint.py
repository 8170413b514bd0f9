"""engine/files.py: files that are whole or not there. test_train.py has the rest."""

import os

import pytest

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
