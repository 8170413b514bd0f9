"""data/pysource and data/pydocs: only what their lists name comes into the data, no text into two splits."""
import hashlib
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT

from data.pysource.prepare import REQUIREMENT, chosen, prepare
from data.write import TEXT_SPLITS


def lines(name, count=10):
    """A text that shares no line with another"""
    return ''.join(f'the line {i} of {name}\n' for i in range(count)).encode()


@pytest.mark.parametrize('name', ['pysource', 'pydocs'])
def test_no_package_is_in_two_splits(name):
    archives = [row for split in TEXT_SPLITS for row in REQUIREMENT.findall((ROOT / f'data/{name}/{split}.txt').read_text())]
    assert len({sha256 for _, _, sha256 in archives}) == len({name.lower() for name, _, _ in archives}) == len(archives) > 30


def test_wheels_to_tokens(tmp_path, monkeypatch):
    """Copies of what training has seen stay out of the other splits. An archive that is not the listed one is refused"""
    monkeypatch.chdir(tmp_path)
    wheels = dict(train={'one/a.py': lines('a'), 'one/b.py': lines('b'), 'one/data.txt': lines('data')},
                  val={'two/copy.py': lines('a'), 'two/c.py': lines('c')},
                  test={'three/near.py': lines('b', 6) + lines('more', 5), 'three/d.py': lines('d')})
    for split, files in wheels.items():
        path, about = Path(f'{split}-1.0-py3-none-any.whl'), {'METADATA': f'Metadata-Version: 2.1\nName: {split}\nVersion: 1.0\n',
                                                             'WHEEL': 'Wheel-Version: 1.0\nTag: py3-none-any\n', 'RECORD': ''}
        with zipfile.ZipFile(path, 'w') as archive:
            for name, content in {**files, **{f'{split}-1.0.dist-info/{name}': text for name, text in about.items()}}.items():
                archive.writestr(name, content)
        Path(f'{split}.txt').write_text(f'{split}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n')
    for name, value in dict(CONFIG_FILE=os.devnull, NO_INDEX='1', FIND_LINKS=tmp_path).items():
        monkeypatch.setenv(f'PIP_{name}', str(value))           # pip knows this folder alone
    arguments = '.', dict.fromkeys(TEXT_SPLITS, 10 ** 6), lambda path, content: content * path.endswith('.py')
    prepare(*arguments)
    for split, texts in dict(train=[lines('a'), lines('b')], val=[lines('c')], test=[lines('d')]).items():
        assert bytes(np.fromfile(f'{split}.bin', np.uint16).astype(np.uint8)).split(b'\0')[:-1] == texts
    sources = json.loads(Path('meta.json').read_text())['sources']
    assert sources['train'] == {'train': dict(version='1.0', files=2, bytes=len(lines('a') + lines('b')))}
    with open('val-1.0-py3-none-any.whl', 'ab') as f:
        f.write(b'changed')
    with pytest.raises(OSError, match='pip could not download'):
        prepare(*arguments)


def test_a_limit_for_each_package():
    """About so many bytes are drawn, and when a few files change the others stay"""
    files = {f'p/{i}.py': lines(i) for i in range(400)}
    limit = sum(map(len, files.values())) // 4
    kept = chosen(files, limit, set())
    assert 0.9 * limit < sum(map(len, kept.values())) <= limit and list(kept) == sorted(kept)
    assert len(chosen({**files, 'p/more.py': lines('more'), 'p/7.py': lines('seven')}, limit, set()).keys() ^ kept) < 10
