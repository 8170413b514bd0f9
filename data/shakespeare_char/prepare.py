"""
Karpathy's Tiny Shakespeare, one token per character: nine tenths for training, the last tenth for validation, as in nanoGPT.

    python data/shakespeare_char/prepare.py             # fetches input.txt into this folder, if it is not there
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure

import os
from urllib.request import urlretrieve

from data.prepare import from_files, split, write_text

url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'     # where it is fetched from

if __name__ == '__main__':
    configure(globals())
    path = Path(__file__).with_name('input.txt')
    if not path.exists():
        try:
            urlretrieve(url, f'{path}.part')
        except OSError as error:
            raise OSError(f'could not reach {url} ({type(error).__name__}): download it as {path}') from error
        os.replace(f'{path}.part', path)
    write_text(path.parent, split(from_files([str(path)])), 'char')
