"""
The text of packages: what data/pysource and data/pydocs share. Their archives are pinned by their hashes, so that everybody gets
the same bytes, today and later.

train.txt, val.txt and test.txt beside a prepare.py are requirement files of pip's. They name an archive a line, and a package in
one split only. Archives are read where they lie: nothing is extracted or installed.
"""
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from data.tokens import TEXT_SPLITS, write_tokens

REQUIREMENT = re.compile(r'(?m)^([\w.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$')
SHORT = 8               # bytes; so short a line is in most files and says nothing about a copy


def read_list(path):
    """Return [(package, version, sha256)] of a requirement file."""
    return REQUIREMENT.findall(Path(path).read_text(encoding='utf-8'))


def download(here, folder, options):
    """Have pip download the archives of the requirement files in `here` into the folder. OSError with pip's last error if it
    fails. The archives are only read, so any Python will do."""
    lists = [f'-r{here / split}.txt' for split in TEXT_SPLITS]
    pip = subprocess.run([sys.executable, '-m', 'pip', 'download', '--no-deps', '--require-hashes', '--ignore-requires-python',
                          '--disable-pip-version-check', *options, '-d', folder, *lists], stderr=subprocess.PIPE, text=True)
    if pip.returncode:
        error, = re.findall('^(?:ERROR:|×).*', pip.stderr, re.MULTILINE)[-1:] or ['it gives no reason']
        raise OSError(f'pip could not download the archives of {here}/*.txt, which needs the network: {error}')


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


def prepare(here, folder, limits, text_of, size, fingerprint='', options=()):
    """Write the tokens of the packages in train.txt, val.txt and test.txt of the folder `here` to `folder`, or if it is empty to
    `here`. text_of(path, bytes) is the text of a file, or b'' to leave it out; a package gives at most limits[split] bytes.
    `size` says how much pip downloads, with these `options`. Data with another fingerprint, if one is given, is refused."""
    here, texts, sources, seen = Path(here), {}, {}, set()
    packages = {split: read_list(here / f'{split}.txt') for split in TEXT_SPLITS}
    print(f'downloading {sum(map(len, packages.values()))} archives, {size}, by pip', flush=True)
    with TemporaryDirectory() as archives:
        download(here, archives, options)
        path_of = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in Path(archives).iterdir()}
        for split in TEXT_SPLITS:
            texts[split], sources[split] = [], {}
            for package, version, sha256 in packages[split]:
                files = {path: text for path, content in files_in(path_of[sha256]) if (text := text_of(path, content))}
                kept = chosen(files, limits[split], seen)
                texts[split] += [text + b'\0' for text in kept.values()]
                sources[split][package] = dict(version=version, files=len(kept), bytes=sum(map(len, kept.values())))
            print(f'{split}: {len(sources[split])} packages, {len(texts[split]):,} files', flush=True)
    write_tokens(folder or here, texts, 256, 'bytes', fingerprint=fingerprint, sources=sources)
