"""engine/checkpoint.py: files that are whole or not there, and what is refused. test_train.py has the rest."""

import os

import pytest

from engine.checkpoint import link_or_copy, write_whole


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
