"""
The Python sources of this interpreter's standard library, as bytes: real text that needs no download. With --packages=True, those
of the packages of requirements.txt and of all that they require too. With --bpe, in a vocabulary that is trained on them.

    python data/pycode/prepare.py
    python data/pycode/prepare.py --packages=True --folder=data/pypkg
    python data/pycode/prepare.py --packages=True --bpe=4096 --folder=data/pypkg-bpe

Every tenth file is for validation. A zero byte, or of a BPE the token <|endoftext|>, ends each file. Tests are left out: some
distributions do not ship them.

With --packages=True there is a test split too. A hash of a file's path says in which split it is, so that other versions of the
packages change little. The same hash draws limit_mb of each package. Left out besides are files that nobody wrote by hand, and
copies, which would bring into the test split what training has seen:
  - vendored packages (NOT_THEIRS), which are copies of others
  - files that share at least half of their lines with files before them, such as identical ones
  - files that a program has written, as one of their first 12 lines says (GENERATED)
  - data: files with a line of more than 1000 bytes, with zero bytes, or not in UTF-8
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import ROOT, at_least, configure, refuse  # noqa: E402

import hashlib  # noqa: E402
import platform  # noqa: E402
import re  # noqa: E402
import sysconfig  # noqa: E402
from importlib import metadata  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

from packaging.requirements import Requirement  # noqa: E402
from packaging.utils import canonicalize_name  # noqa: E402

from data.text import train_bpe, write_text  # noqa: E402
from data.tokens import write_tokens  # noqa: E402

packages = False                    # the packages of requirements.txt and all that they require too, with a test split
limit_mb = 8.0                      # packages: megabytes of each of them at most; 0: all
bpe = 0                             # entries of a byte-level BPE that is trained on the training split; 0: bytes
folder = ''                         # where the tokens go; empty: data/pycode
processes = 0                       # bpe: processes that tokenize; 0: one per core

LEFT_OUT = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages'}
NOT_THEIRS = {*LEFT_OUT, '_tests', '_vendor', 'vendor', 'vendored', 'externals', 'third_party'}         # folders in packages
TEST = re.compile(r'test_.*|.*_test|conftest')
GENERATED = re.compile(rb'(?i)generated (automatically )?(by|from|using|with)|auto(matically |-?)generated|do not edit')
SHARE = 0.05                        # of all bytes, for validation and for test each
LARGEST = 5e6                       # bytes of each of them at most, about


def library(sources):
    """{path: file} of the standard library's sources, in order; paths are relative to the folder `sources`."""
    files = {path.relative_to(sources): path for path in sorted(Path(sources).rglob('*.py'))}
    files = {name: path for name, path in files.items() if not LEFT_OUT & set(name.parts)}
    if len(files) < 10:
        raise ValueError(f'{sources} holds {len(files)} Python sources, which is no standard library: '
                         f'run this with an interpreter that ships its sources, such as one from python.org')
    return files


def distributions(sites, wanted):
    """{name: distribution} of these requirements, lines as in requirements.txt, and of all that they require, as far as they are
    installed in the folders `sites`. Optional requirements (extras) do not count."""
    installed = {canonicalize_name(one.metadata['Name'] or ''): one for one in metadata.distributions(path=list(sites))}
    found, wanted = {}, list(wanted)
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        asked = requirement.marker is None or requirement.marker.evaluate({'extra': ''})
        if asked and name in installed and name not in found:
            found[name] = installed[name]
            wanted += installed[name].requires or []
    return dict(sorted(found.items()))


def digest(path):
    return hashlib.blake2b(path.as_posix().encode(), digest_size=16).hexdigest()


def split_of(path, share):
    place = int(digest(path)[16:], 16) / 2 ** 64        # the first half of the digest has drawn the file
    return 'val' if place < share else 'test' if place >= 1 - share else 'train'


def chosen(files, limit, seen):
    """{path: bytes} of those `files`, {path: file}, that are no tests, copies or data and not written by programs, at most
    `limit` bytes. `seen` holds the lines of all files chosen so far, and takes theirs."""
    texts, size = {}, 0
    for path in sorted(files, key=digest):
        if NOT_THEIRS & set(path.parts) or TEST.fullmatch(path.stem):
            continue
        text = Path(files[path]).read_bytes()
        lines = text.splitlines()
        own = {line.strip() for line in lines if len(line.strip()) > 8}        # shorter ones are in most files
        if (size + len(text) <= limit and is_text(text) and len(max(lines, key=len, default=b'')) <= 1000
                and not GENERATED.search(b'\n'.join(lines[:12])) and 2 * len(own & seen) < len(own)):
            texts[path], size = text, size + len(text)
            seen.update(own)
    return dict(sorted(texts.items()))


def is_text(text):
    try:
        return '\0' not in text.decode()
    except UnicodeDecodeError:
        return False


def of_packages(sources, sites, wanted, limit_mb):
    """{split: texts} of the standard library and the packages, and what meta.json says about them."""
    found = distributions(sites, wanted)
    if not found:
        raise ValueError(f'packages=True: no package of requirements.txt is installed in {" or ".join(sites)}: '
                         f'run this with the interpreter of .venv')
    seen, texts, held = set(), {}, {}
    for name, one in {'python': None, **found}.items():
        if one:
            files = {path: path.locate() for path in one.files or [] if path.suffix == '.py' and path.parts[0] != '..'}
            files = {path: file for path, file in files.items() if file.is_file()}
        else:
            files = library(sources)
        theirs = chosen(files, 1e6 * limit_mb if one and limit_mb else float('inf'), seen)
        if theirs:
            held[name] = dict(version=one.version if one else platform.python_version(), files=len(theirs),
                              bytes=sum(map(len, theirs.values())))
            texts |= {(name, path): text for path, text in theirs.items()}
    share = min(SHARE, LARGEST / sum(map(len, texts.values())))
    splits = {split: [text for (_, path), text in texts.items() if split_of(path, share) == split]
              for split in ('train', 'val', 'test')}
    about = dict(files={split: len(some) for split, some in splits.items()},
                 bytes={split: sum(map(len, some)) for split, some in splits.items()}, limit_mb=limit_mb, sources=held)
    total, largest = sum(about['bytes'].values()), sorted(held, key=lambda name: -held[name]['bytes'])
    print(f'Python {held["python"]["version"]} and {len(held) - 1} packages, {len(texts):,} files, {total / 1e6:.1f} MB: '
          + ', '.join(f'{name} {held[name]["bytes"] / 1e6:.1f}' for name in largest[:12]) + (', …' if largest[12:] else ''))
    return splits, about


def prepare(sources, folder, sites=(), wanted=(), limit_mb=0, bpe=0, processes=0):
    """Prepares the standard library in the folder `sources`. With `sites`, folders like site-packages, it takes the packages
    there that the requirements `wanted` ask for too, of each at most limit_mb, or with 0 all."""
    if sites:
        splits, about = of_packages(sources, sites, wanted, limit_mb)
    else:
        texts, about = [path.read_bytes() for path in library(sources).values()], {}
        splits = {'train': [text for i, text in enumerate(texts) if i % 10 != 9], 'val': texts[9::10]}
    if not bpe:
        write_tokens(folder, {split: (text + b'\0' for text in some) for split, some in splits.items()}, 256, 'bytes', **about)
        return
    splits = {split: [text.decode('utf-8', 'replace') for text in some] for split, some in splits.items()}
    with TemporaryDirectory() as tokenizer:
        train_bpe(splits['train'], bpe, tokenizer)
        write_text(folder, splits, tokenizer, processes, own=True, **about)


if __name__ == '__main__':
    at_least(configure(globals()), limit_mb=0, bpe=0, processes=0)
    if 0 < bpe < 257:
        raise ValueError(f'bpe={bpe}: wants at least 257, the bytes and the end of a document, or 0 for bytes')
    if not packages:
        refuse(('limit_mb',), 'it needs --packages=True')
    if not bpe:
        refuse(('processes',), 'it needs --bpe')
    sites = sorted({sysconfig.get_path(name) for name in ('purelib', 'platlib')}) if packages else []
    lines = (Path(ROOT) / 'requirements.txt').read_text(encoding='utf-8').splitlines()
    prepare(sysconfig.get_path('stdlib'), Path(folder) if folder else Path(__file__).parent, sites,
            [line for line in lines if line and line[0] not in '#-'], limit_mb, bpe, processes)
