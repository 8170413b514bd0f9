"""
Make the pages of results/ from the raw numbers in results/csv/:

    python -m lab.results                   # all pages; `make results` does the same
    python -m lab.results --check=True      # changes nothing, and fails if a page does not match the numbers

results/csv/SWEEP.csv has the runs of config/sweep/SWEEP.py. config/claims.py states the claims that they test, see
lab/sweep/claims.py. Other comparisons are marked exploratory, without a p. results/track/ has the placement track's entries, see
lab/track/. docs/placements.md comes from config/arch's headers.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.results')

from configurator import ROOT, configure

import os
import re

from engine.checkpoint import write_whole
from lab.sweep.pages import build

# ----------------------------------------------------------------------------- keys
folder = 'results'                  # the folder of pages/ and csv/, relative to the repository's root
sweeps = 'config/sweep'             # the folder of sweep files, relative to the root
claims = 'config/claims.py'         # the file of claims, relative to the root
check = False                       # change nothing, and fail if a page is out of date
# -----------------------------------------------------------------------------

PLACEMENTS = """# All placements

Each file in `config/arch/` sets every key of an architecture but the sizes. `pre.py` is complete. Each other file includes the
one that it is a step away from, and shows that step. They work in `train.py` and `vision.train`, and stack on any config:

    python train.py config/train_quick.py config/arch/hyper.py --out_dir=out-hyper

`python -m lab.results` makes this page.

| file | what it is (source) | the step |
| --- | --- | --- |
"""


def placements():
    """Return the text of docs/placements.md."""
    text, arch = PLACEMENTS, os.path.join(ROOT, 'config', 'arch')
    for name in sorted(name.removesuffix('.py') for name in os.listdir(arch) if name.endswith('.py')):
        with open(os.path.join(arch, f'{name}.py'), encoding='utf-8') as f:
            file = f.read()
        header = file.splitlines()[0].removeprefix('# ').replace('|', '\\|')
        base = re.search(r"^include\('config/arch/(\w+)\.py'\)", file, re.MULTILINE)
        lines = re.findall(r'^ *([a-z]\w*) = (?:.* if _vit else )?([^#\n]*[^#\s])', file, re.MULTILINE)     # those of train.py
        keys = ' '.join(f'`{key}={value}`' for key, value in lines)
        text += f'| `{name}` | {header} | {f"`{base[1]}`: {keys}" if base else "all keys"} |\n'
    return text


def main():
    configure(globals())
    pages, figures = build(os.path.join(ROOT, folder), os.path.join(ROOT, sweeps), os.path.join(ROOT, claims))
    if not pages:
        raise ValueError(f'folder={folder}: there is no page in {folder}/pages/')
    for path, text in pages.items():
        if not check:
            write_whole(path, lambda f: f.write(text.encode()))
        elif not os.path.exists(path) or open(path, encoding='utf-8').read() != text:
            raise ValueError(f'{path} does not match csv/ and pages/: run  make results')
    if not check:
        os.makedirs(os.path.join(ROOT, folder, 'img'), exist_ok=True)
        for path, figure in figures.items():
            figure.savefig(path, dpi=200)
    if folder == 'results' and not check:
        write_whole(os.path.join(ROOT, 'docs', 'placements.md'), lambda f: f.write(placements().encode()))
    print(f'{len(pages)} pages agree with the numbers' if check else f'wrote {len(pages)} pages into {folder}')


if __name__ == '__main__':
    main()
