"""
The Python sources of this interpreter's standard library, as bytes: real text that needs no download.

    python data/pycode/prepare.py

Every tenth file is for validation. A zero byte ends each file. Tests are left out: some distributions do not ship them. Another
version of Python gives other data; data/pysource is the same everywhere.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure

import sysconfig

from data.write import write_tokens

LEFT_OUT = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages'}


def prepare(sources, folder):
    files = [path for path in sorted(Path(sources).rglob('*.py')) if not LEFT_OUT & set(path.relative_to(sources).parts)]
    if len(files) < 10:
        raise ValueError(f'{sources} holds {len(files)} Python sources, which is no standard library: '
                         f'run this with an interpreter that ships its sources, such as one from python.org')
    texts = [path.read_bytes() + b'\0' for path in files]
    write_tokens(folder, {'train': [text for i, text in enumerate(texts) if i % 10 != 9], 'val': texts[9::10]}, 256, 'bytes')


if __name__ == '__main__':
    configure(globals())
    prepare(sysconfig.get_path('stdlib'), Path(__file__).parent)
