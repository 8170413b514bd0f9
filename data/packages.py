"""
The text of packages: what data/pysource and data/pydocs share. Their archives are pinned by their hashes, so that everybody gets
the same bytes, today and later.

train.txt, val.txt and test.txt beside a prepare.py are requirement files of pip's. They name an archive a line, and a package in
one split only. Archives are read where they lie: nothing is extracted or installed.
"""
from configurator import at_least, refuse

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from data.text import progress_bar, train_bpe, write_text
from data.tokens import TEXT_SPLITS, write_tokens

REQUIREMENT = re.compile(r'([\w.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})', re.ASCII)
SHORT = 8               # bytes; so short a line is in most files and says nothing about a copy


def read_list(path):
    """Return [(package, version, sha256)] of a requirement file; lines with # are comments."""
    lines = [line for line in Path(path).read_text(encoding='utf-8').splitlines() if line and line[0] != '#']
    for line in lines:
        if not REQUIREMENT.fullmatch(line):
            raise ValueError(f'{path}: {line!r} must be like  name==1.0 --hash=sha256:…  with 64 hexadecimal digits')
    return [REQUIREMENT.fullmatch(line).groups() for line in lines]


def download(lists, folder, *options):
    """Have pip download the archives of these requirement files into the folder. OSError with pip's last error if it fails."""
    command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--require-hashes', '--ignore-requires-python',
               '--disable-pip-version-check', *options, '-d', str(folder)]       # they are only read: any Python will do
    command += [f'-r{path}' for path in lists]
    lines, total = ['it gives no reason'], sum(len(read_list(path)) for path in lists)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace') as pip, \
            progress_bar('downloading', total, 'archives') as progress:
        for line in filter(None, map(str.strip, pip.stdout)):
            lines.append(line)
            progress.update(line.startswith(('Collecting ', 'Processing ')))       # from an index, from a folder
    if pip.returncode:
        errors = [line for line in lines if line.startswith(('ERROR:', '×'))] or lines
        raise OSError(f'pip could not download the archives of {lists[0].parent}/*.txt, which needs the network: {errors[-1]}')


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


def texts_of(lists, limits, text_of, *options):
    """Return {split: [text]} of the packages in {split: requirement file}, and what meta.json says about them. text_of(path,
    bytes) is the text of a file, or b'' to leave it out; a package gives at most limits[split] bytes."""
    packages = {split: read_list(path) for split, path in lists.items()}
    texts, sources, seen = {}, {}, set()
    with TemporaryDirectory() as folder:
        download(list(lists.values()), folder, *options)
        archives = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in Path(folder).iterdir()}
        for split in lists:
            texts[split], sources[split] = [], {}
            for package, version, sha256 in packages[split]:
                files = {path: text_of(path, content) for path, content in files_in(archives[sha256])}
                kept = chosen({path: text for path, text in files.items() if text}, limits[split], seen)
                texts[split] += kept.values()
                sources[split][package] = dict(version=version, files=len(kept), bytes=sum(map(len, kept.values())))
    return texts, sources


def prepare(here, folder, limits, text_of, size, bpe=0, processes=0, fingerprints=None, options=()):
    """Prepare the packages of train.txt, val.txt and test.txt in the folder `here`. The tokens go to `folder`, or if it is empty
    to `here`. `size` says how much pip downloads, with these `options`. Data with another fingerprint than fingerprints[bpe], if
    that is given, is refused."""
    at_least(dict(bpe=bpe, processes=processes), bpe=0, processes=0)
    if 0 < bpe < 257:
        raise ValueError(f'bpe={bpe}: wants at least 257, the bytes and the end of a document, or 0 for bytes')
    if not bpe:
        refuse(('processes',), 'it needs --bpe')
    here, folder = Path(here), Path(folder or here)
    lists = {split: here / f'{split}.txt' for split in TEXT_SPLITS}
    print(f'downloading {sum(len(read_list(path)) for path in lists.values())} archives, {size}, by pip', flush=True)
    texts, sources = texts_of(lists, limits, text_of, *options)
    for split, packages in sources.items():
        print(f'{split}: {len(packages)} packages, {len(texts[split]):,} files, {sum(map(len, texts[split])) / 1e6:.1f} MB')
    about = dict(fingerprint=(fingerprints or {}).get(bpe, ''), sources=sources)
    if not bpe:
        write_tokens(folder, {split: (text + b'\0' for text in some) for split, some in texts.items()}, 256, 'bytes', **about)
        return
    texts = {split: [text.decode() for text in some] for split, some in texts.items()}
    with TemporaryDirectory() as tokenizer:
        train_bpe(texts['train'], bpe, tokenizer)
        write_text(folder, texts, tokenizer, processes, own=True, **about)
