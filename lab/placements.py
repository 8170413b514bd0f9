"""docs/placements.md, the table of all architectures, from the headers of config/arch. `python -m lab.results` writes it."""
from configurator import ROOT

import os
import re

HEAD = """# All placements

Every architecture is a file in `config/arch/`. It sets every key but the sizes: `pre.py` is complete, and each other file
includes the one that it is a step away from, and shows that step. They work in `train.py` and in `vision.train`, with every
optimizer, and stack on any config:

    python train.py config/train_quick.py config/arch/hyper.py --out_dir=out-hyper

This page is made from their first lines by `python -m lab.results`.

| file | what it is (source) | a step from | sets |
| --- | --- | --- | --- |
"""


def row(name, text):
    """The row of the table for a file of config/arch with this text"""
    header = text.splitlines()[0].removeprefix('# ').replace('|', '\\|')
    base = re.search(r"^include\('config/arch/(\w+)\.py'\)", text, re.MULTILINE)
    lines = re.findall(r'^ *([a-z]\w*) = (?:.* if _vit else )?([^#\n]*[^#\s])', text, re.MULTILINE)          # those of train.py
    keys = [f'`{key}={value}`' for key, value in lines]
    return f'| `{name}` | {header} | {f"`{base[1]}`" if base else ""} | {" ".join(keys) if base else "all keys"} |\n'


def page():
    folder = os.path.join(ROOT, 'config', 'arch')
    rows = []
    for file in sorted(os.listdir(folder)):
        if file.endswith('.py'):
            with open(os.path.join(folder, file), encoding='utf-8') as f:
                rows.append(row(file.removesuffix('.py'), f.read()))
    return HEAD + ''.join(rows)

