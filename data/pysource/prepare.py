"""
The Python sources of well-known packages, as bytes: 160 MB of wheels, which pip downloads in 20 seconds. train.txt, val.txt and
test.txt here, requirement files of pip's, pin them by their hashes, so that everybody gets the same bytes, today and later.
Nothing is extracted or installed.

    python data/pysource/prepare.py

A package is in one split only. A zero byte ends each file. A hash of their paths draws the files of a package, at most as many
bytes as LIMITS says. Left out are files that nobody wrote by hand, and copies, which would bring into the test split what
training has seen:
  - tests, and vendored packages, which are copies of others (NOT_THEIRS)
  - files that share at least half of their lines with files before them, such as identical ones
  - files that a program has written, as one of their first 12 lines says (GENERATED)
  - data: files with a line of more than 1000 bytes, with zero bytes, or not in UTF-8
"""
import sys
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure

import hashlib
import re
import subprocess
import tarfile
import zipfile
from tempfile import TemporaryDirectory

from data.write import TEXT_SPLITS, write_tokens

LIMITS = dict(train=1_500_000, val=300_000, test=300_000)       # bytes of each package at most, so that none dominates
FINGERPRINT = '7d6d7cb8c0d1b532897b402b7ba8c535'                # of what this gives
NOT_THEIRS = {'test', 'tests', '_tests', '_vendor', 'vendor', 'vendored', 'externals', 'third_party'}       # folders
TEST = re.compile(r'tests?(_.*)?|.*_tests?|conftest')
GENERATED = re.compile(rb'(?i)generated (automatically )?(by|from|using|with)|auto(matically |-?)generated|do not edit')
REQUIREMENT = re.compile(r'(?m)^([\w.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$')        # package, version, hash
SHORT = 8               # bytes; so short a line is in most files and says nothing about a copy


# ----------------------------------------------------------------------------- what data/pydocs shares

def files_in(archive):
    """Yield (path, bytes) for each file in a wheel or a source archive. In the latter, paths start below its only folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            for member in wheel.infolist():
                if not member.is_dir():
                    yield member.filename, wheel.read(member)
    else:
        with tarfile.open(archive, 'r:gz') as sources:
            for member in sources:
                if member.isfile():
                    yield member.name.partition('/')[2], sources.extractfile(member).read()


def chosen(texts, limit, seen):
    """Return those of {path: text} that are no copies, at most `limit` bytes, in the order of their paths. A hash of the path
    draws them, so another version of a package changes little. A copy shares at least half of its lines with texts before it.
    `seen` holds the lines of all texts chosen so far, and takes theirs."""
    kept, size = {}, 0
    for path in sorted(texts, key=lambda path: hashlib.blake2b(path.encode(), digest_size=16).digest()):
        lines = {line.strip() for line in texts[path].splitlines() if len(line.strip()) > SHORT}
        if size + len(texts[path]) <= limit and 2 * len(lines & seen) < len(lines):
            kept[path], size = texts[path], size + len(texts[path])
            seen |= lines
    return dict(sorted(kept.items()))


def is_text(content):
    """Return whether it is UTF-8 without zero bytes, of which one ends each text"""
    try:
        return '\0' not in content.decode()
    except UnicodeDecodeError:
        return False


def prepare(here, limits, text_of, fingerprint='', options=()):
    """Write the tokens of the packages that the requirement files in the folder `here` name. text_of(path, bytes) is the text of
    a file, or b'' to leave it out; a package gives at most limits[split] bytes. pip gets these `options`. Data with another
    fingerprint, if one is given, is refused. The archives are only read, so any Python will do."""
    lists, texts, sources, seen = {split: Path(here, f'{split}.txt') for split in TEXT_SPLITS}, {}, {}, set()
    with TemporaryDirectory() as archives:
        command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--require-hashes', '--ignore-requires-python',
                   '--disable-pip-version-check', *options, '-d', archives, *(f'-r{path}' for path in lists.values())]
        if subprocess.run(command).returncode:
            raise OSError(f'pip could not download the archives of {here}/*.txt, which needs the network: see its errors above')
        path_of = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in Path(archives).iterdir()}
        for split in TEXT_SPLITS:
            texts[split], sources[split] = [], {}
            for package, version, sha256 in REQUIREMENT.findall(lists[split].read_text(encoding='utf-8')):
                files = {path: text for path, content in files_in(path_of[sha256]) if (text := text_of(path, content))}
                kept = chosen(files, limits[split], seen)
                texts[split] += [text + b'\0' for text in kept.values()]
                sources[split][package] = dict(version=version, files=len(kept), bytes=sum(map(len, kept.values())))
    write_tokens(here, texts, 256, 'bytes', fingerprint=fingerprint, sources=sources)


# -----------------------------------------------------------------------------

def source(path, content):
    """What is taken of this file: all of it, or b''."""
    path = PurePosixPath(path)
    if path.suffix != '.py' or NOT_THEIRS & set(path.parts) or TEST.fullmatch(path.stem) or not is_text(content):
        return b''
    lines = content.splitlines()
    if GENERATED.search(b'\n'.join(lines[:12])) or max(map(len, lines), default=0) > 1000:
        return b''
    return content


if __name__ == '__main__':
    configure(globals())
    prepare(Path(__file__).parent, LIMITS, source, FINGERPRINT, ['--only-binary=:all:'])
