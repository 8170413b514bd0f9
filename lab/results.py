"""
Makes the pages of results/ from the raw numbers in results/csv/:

    python -m lab.results                   # all pages; `make results` does the same
    python -m lab.results --check=True      # changes nothing, and fails if a page is not what the numbers give

results/pages/NAME.md is the source of results/NAME.md. In it, {{…}} calls one of TAGS, which are methods of Page.
results/csv/SWEEP.csv has the runs of config/sweep/SWEEP.py. config/claims.py states what they test, see lab/claims.py. Any other
comparison is marked as exploratory, and has no p.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.results')

from configurator import ROOT, configure, defaults_of, parse_args

import glob
import os
import re

from engine.checkpoint import write_whole
from lab import placements
from lab.claims import HEAD, interval, read_claims, signed, test_all
from lab.statistics import contrast
from lab.sweep_plan import stated
from lab.sweep_table import RATE_HEAD, SPLITS, as_text, find_row, read_contrasts, read_runs, rows_of, samples_of, split_of

# ----------------------------------------------------------------------------- keys
folder = 'results'                  # the folder of pages/ and csv/, from the root of the repository
sweeps = 'config/sweep'             # the folder of the sweeps' files, from there
claims = 'config/claims.py'         # the file of the claims, from there
check = False                       # change nothing, and fail if a page differs from what would be written
# -----------------------------------------------------------------------------
MADE = '<!-- Made by `make results` from results/pages/{} and results/csv/. Edit these. -->\n'     # begins a page


class Sweep:
    """The runs of a sweep so far as rows, each at its best rate, and the Sample of each row's losses that are compared. They are
    those of the test split, if the runs have them. ValueError if the runs are of two codes, or two data of one name."""

    def __init__(self, file, path):
        keys = parse_args([file], defaults_of(os.path.join(ROOT, 'lab', 'sweep.py')))
        runs = read_runs(path, keys['diverged_loss'], keys['diverged_rise']) if os.path.exists(path) else []
        runs = [run for run in runs if run['status'] != 'failed']          # which are tried again
        if len({run['code'] for run in runs}) > 1:
            raise ValueError(f'{path} has runs of several codes: {", ".join(sorted({run["code"] for run in runs}))}')
        known = {run['data'] for run in runs}
        if len(known) > len({run['labels'].get('text') for run in runs}):       # the axis that names the data set
            raise ValueError(f'{path} has runs of several data: {", ".join(sorted(known))}')
        self.runs, self.rows, self.split = runs, rows_of(runs, bool(stated(file, '_seed_1_chose'))), split_of(runs)
        self.samples = samples_of(self.rows, self.split)


class Page:
    """A page in the making: the functions that its {{…}} may call."""

    def __init__(self, name, source, sweeps, tests):
        self.name, self.sweeps, self.tests = name, sweeps, tests
        self.pieces = re.split(r'\{\{(.*?)\}\}', source, flags=re.DOTALL)
        scope = {'__builtins__': {}, **{tag: getattr(self, tag) for tag in TAGS}}
        try:
            self.pieces[1::2] = [eval(piece.strip(), scope) for piece in self.pieces[1::2]]
        except (NameError, SyntaxError, TypeError) as error:
            raise ValueError(f'{name}: {error}; a tag is a call of {", ".join(TAGS)}') from error

    def __str__(self):
        return MADE.format(self.name) + ''.join(map(str, self.pieces))

    def sweep(self, name):
        if name not in self.sweeps:
            raise ValueError(f'{self.name}: there is no sweep {name}, choose among {", ".join(self.sweeps)}')
        return self.sweeps[name]

    def difference(self, name, text):
        """'−0.123 [−0.150, −0.096], exploratory' for a contrast of rows of a sweep that is no claim"""
        sweep = self.sweep(name)
        (_, weights), = read_contrasts(text, sweep.rows)
        e = contrast(weights, sweep.samples)
        return f'{signed(e.mean)} {interval(e.low, e.high)}, exploratory' if e.n else 'not run'

    def loss(self, name, row):
        """The mean loss of a row at its best rate, and its standard error"""
        sweep = self.sweep(name)
        return find_row(sweep.rows, row, 'loss').best.text(sweep.split)

    def table(self, name):
        """The rows of a sweep at their best rates, with their rate sensitivity and tolerance"""
        sweep = self.sweep(name)
        axes = list(dict.fromkeys(axis for row in sweep.rows for axis in row.labels))
        most = max((len(row.points) for row in sweep.rows), default=0)
        lines = [[*(row.labels.get(axis, '') for axis in axes), row.rate(), row.best.text(sweep.split),
                  str(len(row.best.counted)), *row.rate_cells(most)] for row in sweep.rows]
        head = [*axes, 'learning rate', f'{SPLITS[sweep.split]} loss', 'runs', *RATE_HEAD]
        used = [i for i in range(len(head)) if any(line[i] for line in lines)]
        return as_text([[line[i] for i in used] for line in (head, *lines)])[1] if lines else '*Not run yet.*'

    def claim_table(self, family):
        """The claims of a family, with their verdicts"""
        return as_text([HEAD, *(test.line() for test in self.tests_of(family))])[1]

    def share_table(self, family):
        """What parts of the claims' contrasts make up, in percent, with Fieller's 95% intervals"""
        lines = [[test.claim['text'], text, f'{100 * ratio:.0f}%',
                  f'[{100 * low:.0f}%, {100 * high:.0f}%]'.replace('-', '−') if low == low else '(no interval)']
                 for test in self.tests_of(family) for text, (ratio, low, high) in test.shares.items()]
        return as_text([['claim', 'part', 'share', '95% interval'], *lines])[1] if lines else '*Not run yet.*'

    def tests_of(self, family):
        if family not in self.tests:
            raise ValueError(f'{self.name}: there is no family {family} of claims, choose among {", ".join(self.tests)}')
        return self.tests[family]

    def state(self, name):
        """How many runs there are, and on which commit and machine they were made"""
        runs = self.sweep(name).runs
        kinds = sorted({f'commit {run["commit"][:7]}{"-dirty" * run["commit"].endswith("-dirty")}, {run["machine"]}, '
                        f'PyTorch {run["torch"]}, {run["precision"]}' for run in runs})
        return f'{len(runs)} runs: {"; ".join(kinds)}' if runs else 'no run yet'


TAGS = ('difference', 'loss', 'table', 'claim_table', 'share_table', 'state')


def build(place, sweep_files, claims_file):
    """{path: text} of the pages of the folder `place`"""
    files = {os.path.basename(path).removesuffix('.py'): path for path in sorted(glob.glob(os.path.join(sweep_files, '*.py')))}
    sweeps = {name: Sweep(file, os.path.join(place, 'csv', f'{name}.csv')) for name, file in files.items()}
    families, seeds = read_claims(claims_file)
    tests = test_all(families, sweeps, seeds)
    pages = {}
    for path in sorted(glob.glob(os.path.join(place, 'pages', '*.md'))):
        name = os.path.basename(path)
        with open(path, encoding='utf-8') as f:
            pages[os.path.join(place, name)] = str(Page(name, f.read(), sweeps, tests))
    return pages


def main():
    configure(globals())
    place = os.path.join(ROOT, folder)
    pages = build(place, os.path.join(ROOT, sweeps), os.path.join(ROOT, claims))
    if not pages:
        raise ValueError(f'folder={folder}: there is no page in {folder}/pages/')
    for path, text in pages.items():
        if not check:
            write_whole(path, lambda f: f.write(text.encode()))
        elif not os.path.exists(path) or open(path, encoding='utf-8').read() != text:
            raise ValueError(f'{path} is not what csv/ and pages/ give: run  make results')
    if folder == 'results' and not check:
        write_whole(os.path.join(ROOT, 'docs', 'placements.md'), lambda f: f.write(placements.page().encode()))
    print(f'{len(pages)} pages agree with the numbers' if check else f'wrote {len(pages)} pages into {folder}')


if __name__ == '__main__':
    main()
