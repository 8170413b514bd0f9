"""
Karpathy's Tiny Shakespeare, one token per character: nine tenths for training, the last tenth for validation, as in nanoGPT.

    python data/shakespeare_char/prepare.py             # fetches input.txt into this folder, if it is not there
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure  # noqa: E402

import os  # noqa: E402
from urllib.request import urlretrieve  # noqa: E402

from data.prepare import from_files, split, write_text  # noqa: E402

url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'     # where it is fetched from

if __name__ == '__main__':
    configure(globals())
    path = Path(__file__).parent / 'input.txt'
    if not path.exists():
        try:
            urlretrieve(url, f'{path}.part')
        except OSError as error:
            raise OSError(f'could not reach {url} ({type(error).__name__}): '
                          f'this needs the network, or the file as {path}') from error
        os.replace(f'{path}.part', path)
    write_text(path.parent, split(from_files([str(path)])), 'char')
