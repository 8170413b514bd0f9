"""
data/packages.py, and the rules of data/pysource and data/pydocs: only what the lists name comes into the data, no text comes into
two splits, and what is no code, or no prose, stays out.
"""
import hashlib
import json
import os
import re
import runpy
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT

from data.packages import chosen, prepare, read_list

SETS = ('pysource', 'pydocs')
SPLITS = ('train', 'val', 'test')


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    """A folder of its own, and a pip that knows no index but the folder `archives`"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['prepare.py'])
    Path('archives').mkdir()
    for name in [name for name in os.environ if name.startswith('PIP_')]:
        monkeypatch.delenv(name)
    for name, value in dict(CONFIG_FILE=os.devnull, NO_INDEX='1', FIND_LINKS=tmp_path / 'archives').items():
        monkeypatch.setenv(f'PIP_{name}', str(value))


def rule(name, function):
    """The function of data/<name>/prepare.py that says what is taken of a file"""
    return runpy.run_path(ROOT / 'data' / name / 'prepare.py')[function]


def lines(name, count=10):
    """A text that shares no line with another"""
    return ''.join(f'the line {i} of {name}\n' for i in range(count)).encode()


def wheel(name, files):
    """A wheel in the folder `archives` → its line in a list"""
    path, about = Path(f'archives/{name}-1.0-py3-none-any.whl'), f'{name}-1.0.dist-info'
    with zipfile.ZipFile(path, 'w') as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f'{about}/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n')
        archive.writestr(f'{about}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        archive.writestr(f'{about}/RECORD', '')
    return f'{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n'


def write_lists(**lists):
    Path('lists').mkdir(exist_ok=True)
    for split, text in lists.items():
        Path(f'lists/{split}.txt').write_text(text)


def prepare_sources(folder='out', limit=10 ** 6, **more):
    prepare('lists', folder, dict.fromkeys(SPLITS, limit), rule('pysource', 'source'), 'little', **more)
    return json.loads(Path(folder, 'meta.json').read_text())


def texts(folder, split):
    return bytes(np.fromfile(f'{folder}/{split}.bin', np.uint16).astype(np.uint8)).split(b'\0')[:-1]


KEPT = {'train': [lines('a'), lines('b')], 'val': [lines('c')], 'test': [lines('d')]}


def three_packages():
    """A package for each split; the other two have copies from the first one. KEPT are the texts that come into the data."""
    write_lists(train=wheel('one', {'one/a.py': lines('a'), 'one/b.py': lines('b'), 'one/data.txt': lines('data')}),
                val=wheel('two', {'two/copy.py': lines('a'), 'two/c.py': lines('c')}),
                test=wheel('three', {'three/near.py': lines('b', 6) + lines('more', 5), 'three/d.py': lines('d')}))


# ----------------------------------------------------------------------------- the lists

@pytest.mark.parametrize('name', SETS)
def test_the_lists(name):
    """Each archive is pinned, no project is in two splits, and small splits are of several projects"""
    lists = {split: read_list(ROOT / 'data' / name / f'{split}.txt') for split in SPLITS}
    assert all(len(lists[split]) >= 5 for split in SPLITS)
    projects = [re.sub('[-_.]+', '-', package).lower() for split in SPLITS for package, _, _ in lists[split]]
    hashes = [sha256 for split in SPLITS for _, _, sha256 in lists[split]]
    assert len({*projects}) == len(projects) and len({*hashes}) == len(hashes)
    assert all(lists[split] == sorted(lists[split]) for split in SPLITS)


# ----------------------------------------------------------------------------- from archives to tokens

def test_wheels_to_tokens():
    """Training comes first, so what is a copy is left out of the others; meta.json says what each package gave. Other data than
    expected is an error"""
    three_packages()
    meta = prepare_sources()
    assert {split: texts('out', split) for split in SPLITS} == KEPT
    assert meta['sources']['train'] == {'one': dict(version='1.0', files=2, bytes=len(lines('a') + lines('b')))}
    assert meta['tokens'] == {split: sum(len(text) + 1 for text in KEPT[split]) for split in SPLITS}
    assert not [path for path in Path().rglob('*.py')], 'nothing is extracted'
    expected = meta['fingerprint']
    assert prepare_sources(fingerprint=expected)['fingerprint'] == expected
    write_lists(train=wheel('one', {'one/a.py': lines('other')}))
    with pytest.raises(ValueError, match=f'where {expected} is expected'):
        prepare_sources(fingerprint=expected)


def test_what_pip_cannot_download():
    """Leaves no files: an archive that has changed has another hash"""
    three_packages()
    wheel('two', {'two/c.py': lines('changed')})
    with pytest.raises(OSError, match='pip could not download'):
        prepare_sources()
    assert not Path('out').exists()


# ----------------------------------------------------------------------------- choosing

def test_a_limit_for_each_package():
    """About so many bytes are drawn, and when a few files change the others stay"""
    files = {f'p/{i}.py': lines(i) for i in range(400)}
    limit = sum(map(len, files.values())) // 4
    kept = chosen(files, limit, set())
    assert 0.9 * limit < sum(map(len, kept.values())) <= limit and list(kept) == sorted(kept)
    assert chosen(dict(reversed(files.items())), limit, set()) == kept
    newer = chosen({**files, 'p/more.py': lines('more'), 'p/7.py': lines('seven')}, limit, set())
    assert len({*newer} ^ {*kept}) < 10
