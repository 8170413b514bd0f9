"""
Karpathy's Tiny Shakespeare, one token per character: nine tenths for training, the last tenth for validation, as in nanoGPT.

    python data/shakespeare_char/prepare.py             # fetches input.txt into this folder, if it is not there
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure  # noqa: E402

from http.client import HTTPException  # noqa: E402
from urllib.request import urlretrieve  # noqa: E402

from data.text import TextFiles, split, write_text  # noqa: E402
from data.tokens import preparing, replacing  # noqa: E402

url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'     # where it is fetched from

if __name__ == '__main__':
    configure(globals())
    path = Path(__file__).parent / 'input.txt'
    if not path.exists():
        with preparing(path.parent), replacing(path.parent, [path.name]) as new:
            try:
                urlretrieve(url, new[path.name])
            except (OSError, HTTPException) as error:
                raise OSError(f'could not reach {url} ({type(error).__name__}): '
                              f'this needs the network, or the file as {path}') from error
    write_text(path.parent, split(TextFiles([str(path)])), 'char')
