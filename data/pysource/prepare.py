"""
The Python sources of well-known packages, as bytes. The wheels are pinned by their hashes (train.txt, val.txt and test.txt
here), so that everybody gets the same bytes.

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
from configurator import configure  # noqa: E402

import re  # noqa: E402

from data.packages import is_text, prepare  # noqa: E402

folder = ''                         # where the tokens go; empty: data/pysource

LIMITS = dict(train=1_500_000, val=300_000, test=300_000)       # bytes of each package at most, so that none dominates
FINGERPRINT = '7d6d7cb8c0d1b532897b402b7ba8c535'                # of what this gives
NOT_THEIRS = {'test', 'tests', '_tests', '_vendor', 'vendor', 'vendored', 'externals', 'third_party'}       # folders
TEST = re.compile(r'tests?(_.*)?|.*_tests?|conftest')
GENERATED = re.compile(rb'(?i)generated (automatically )?(by|from|using|with)|auto(matically |-?)generated|do not edit')


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
    prepare(Path(__file__).parent, folder, LIMITS, source, 'about 160 MB', FINGERPRINT, ['--only-binary=:all:'])
