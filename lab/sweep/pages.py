"""
The pages of results/: results/pages/NAME.md is the source of results/NAME.md, and {{…}} in it calls a method of Page.
"""
import ast
import glob
import os
import re
import runpy

import pandas as pd

from lab.sweep.claims import HEAD, interval, signed, test_all
from lab.sweep.plan import read_sweep, stated
from lab.sweep.statistics import contrast
from lab.sweep.table import (
    RATE_HEAD,
    SPLITS,
    as_text,
    axes_of,
    read_contrasts,
    read_csv,
    rows_of,
    runs_of,
    samples_of,
    split_of,
)

MADE = '<!-- Made by `make results` from results/pages/{} and results/csv/. Edit these. -->\n'     # begins a page


class Results:
    """The runs of a sweep so far as rows, each at its best rate, and the Sample of each row's losses that are compared. They are
    those of the test split, if the runs have them."""

    def __init__(self, file, path):
        keys = read_sweep(file)
        runs = runs_of(read_csv(path), path, keys['diverged_loss'], keys['diverged_rise'])
        self.runs = runs[runs.status != 'failed']       # which are tried again
        self.rows, self.split = rows_of(self.runs, bool(stated(file, '_seed_1_chose'))), split_of(self.runs)
        self.samples = samples_of(self.rows, self.split)


class Page:
    """The functions that the {{…}} of a page may call"""

    def __init__(self, sweeps, tests):
        self.sweeps, self.tests = sweeps, tests

    def fill(self, source):
        """The text of a page with what its {{…}} give"""
        return re.sub(r'\{\{(\w+)\((.*?)\)\}\}', lambda tag: getattr(self, tag[1])(*ast.literal_eval(f'[{tag[2]}]')), source,
                      flags=re.DOTALL)

    def difference(self, name, text):
        """'−0.123 [−0.150, −0.096], exploratory' for a contrast of rows of a sweep that is no claim"""
        sweep = self.sweeps[name]
        weights, = read_contrasts(text, sweep.rows).values()
        e = contrast(weights, sweep.samples)
        return f'{signed(e.mean)} {interval(e.low, e.high)}, exploratory' if e.n else 'not run'

    def table(self, name):
        """The rows of a sweep at their best rates, with their rate sensitivity and tolerance"""
        sweep = self.sweeps[name]
        most = max((len(row.rates) for row in sweep.rows), default=0)
        lines = [{**row.labels, 'learning rate': row.rate_text(), f'{SPLITS[sweep.split]} loss': row.text(sweep.split),
                  'runs': str(len(row.counted)), **dict(zip(RATE_HEAD, row.rate_cells(most)))} for row in sweep.rows]
        numbers = [column for column in (lines or [{}])[0] if column not in axes_of(sweep.runs)]
        table = pd.DataFrame(lines, columns=[*axes_of(sweep.runs), *numbers]).fillna('')
        return as_text(table.loc[:, (table != '').any()])[1] if lines else '*Not run yet.*'

    def claim_table(self, family):
        """The claims of a family, with their verdicts"""
        return as_text(pd.DataFrame([test.line() for test in self.tests[family]], columns=HEAD))[1]

    def share_table(self, family):
        """What parts of the claims' contrasts make up, in percent, with Fieller's 95% intervals"""
        lines = [[test.claim['text'], text, f'{100 * ratio:.0f}%',
                  f'[{100 * low:.0f}%, {100 * high:.0f}%]'.replace('-', '−') if low == low else '(no interval)']
                 for test in self.tests[family] for text, (ratio, low, high) in test.shares.items()]
        return as_text(pd.DataFrame(lines, columns=['claim', 'part', 'share', '95% interval']))[1] if lines else '*Not run yet.*'

    def state(self, name):
        """How many runs there are, and on which commit and machine they were made"""
        runs = self.sweeps[name].runs
        kinds = sorted({f'commit {run["commit"][:7]}{"-dirty" * run["commit"].endswith("-dirty")}, {run["machine"]}, '
                        f'PyTorch {run["torch"]}, {run["precision"]}' for run in runs.to_dict('records')})
        return f'{len(runs)} runs: {"; ".join(kinds)}' if len(runs) else 'no run yet'


def build(place, sweep_files, claims_file):
    """{path: text} of the pages of the folder `place`"""
    files = {os.path.basename(path).removesuffix('.py'): path for path in sorted(glob.glob(os.path.join(sweep_files, '*.py')))}
    sweeps = {name: Results(file, os.path.join(place, 'csv', f'{name}.csv')) for name, file in files.items()}
    claims = runpy.run_path(claims_file)
    page, pages = Page(sweeps, test_all(claims['families'], sweeps, claims['seeds'])), {}
    for path in sorted(glob.glob(os.path.join(place, 'pages', '*.md'))):
        name = os.path.basename(path)
        with open(path, encoding='utf-8') as f:
            pages[os.path.join(place, name)] = MADE.format(name) + page.fill(f.read())
    return pages
