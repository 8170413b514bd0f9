"""
Make results/NAME.md from its source results/pages/NAME.md. {{…}} in a source calls a method of Page. Text between {{if NAME}} and
{{end}} stays if the runs of the picture NAME have ended or, if there is no such picture, the sweep NAME has runs.
"""
import ast
import glob
import math
import os
import re
import runpy

import matplotlib
import pandas as pd

from lab.plot.lines import STYLE
from lab.sweep.claims import HEAD, interval, signed, test_all
from lab.sweep.pictures import PICTURES
from lab.sweep.plan import read_sweep, runs_left_of, stated
from lab.sweep.statistics import contrast
from lab.sweep.table import (
    RATE_HEAD,
    SPLITS,
    as_text,
    axes_of,
    find_row,
    read_contrasts,
    read_csv,
    rows_of,
    runs_of,
    samples_of,
    split_of,
)
from lab.track.entry import Division
from lab.track.table import division_table

MADE = '<!-- Made by `make results` from results/pages/{} and results/{}/. Edit these. -->\n'     # begins a page


class Results:
    """The runs of a sweep so far: its rows at their best rates, and the Sample of each row's losses that may be compared, on
    the test split if the runs have it."""

    def __init__(self, file, path):
        self.file, self.csv, keys = file, path, read_sweep(file)
        runs = runs_of(read_csv(path), path, keys['diverged_loss'], keys['diverged_rise'])
        self.runs = runs[runs.status != 'failed']       # failed runs are tried again
        self.rows, self.split = rows_of(self.runs, bool(stated(file, '_seed_1_chose'))), split_of(self.runs)
        self.samples = samples_of(self.rows, self.split)


class Page:
    """The functions that a page's {{…}} may call. `tests`: {family: its Tests}. `shown`: the names whose {{if NAME}} holds."""

    def __init__(self, sweeps, tests, shown):
        self.sweeps, self.tests, self.shown = sweeps, tests, shown

    def fill(self, source):
        """Return a page's text, with the results of its {{…}}."""
        source = re.sub(r'\{\{if (\w+)\}\}\n(.*?)\{\{end\}\}\n', lambda part: part[2] * (part[1] in self.shown), source,
                        flags=re.DOTALL)
        return re.sub(r'\{\{(\w+)\((.*?)\)\}\}', lambda tag: getattr(self, tag[1])(*ast.literal_eval(f'[{tag[2]}]')), source,
                      flags=re.DOTALL)

    def difference(self, name, text):
        """Return '−0.123 [−0.150, −0.096], exploratory' for a contrast of a sweep's rows that is not a claim."""
        sweep = self.sweeps[name]
        weights, = read_contrasts(text, sweep.rows).values()
        e = contrast(weights, sweep.samples)
        return f'{signed(e.mean)} {interval(e.low, e.high)}, exploratory' if e.n else 'not run'

    def table(self, name):
        """Return a table of a sweep's rows at their best rates, with rate sensitivity and tolerance."""
        sweep = self.sweeps[name]
        most = max((len(row.rates) for row in sweep.rows), default=0)
        lines = [{**row.labels, 'learning rate': row.rate_text(), f'{SPLITS[sweep.split]} loss': row.text(sweep.split),
                  'runs': str(len(row.counted)), **dict(zip(RATE_HEAD, row.rate_cells(most)))} for row in sweep.rows]
        numbers = [column for column in (lines or [{}])[0] if column not in axes_of(sweep.runs)]
        table = pd.DataFrame(lines, columns=[*axes_of(sweep.runs), *numbers]).fillna('')
        return as_text(table.loc[:, (table != '').any()])[1] if lines else '*Not run yet.*'

    def screen(self, name, base):
        """Return a table of a sweep's rows at their best rates, the lowest loss first, and the difference from the row `base`."""
        sweep, lines = self.sweeps[name], []
        loss = {row: row.done[f'{sweep.split}_loss'].mean() if len(row.done) else math.inf for row in sweep.rows}
        of_base = next((loss[row] for row in sweep.rows if str(row) == base), math.inf)
        for row in sorted(loss, key=loss.get):
            difference = loss[row] - of_base
            lines.append({**row.labels, 'learning rate': row.rate_text(), f'{SPLITS[sweep.split]} loss': row.text(sweep.split),
                          f'− {base}': signed(difference) if math.isfinite(difference) else ''})
        return as_text(pd.DataFrame(lines))[1]

    def loss(self, name, row):
        """Return a row's final loss at its best rate."""
        sweep = self.sweeps[name]
        return find_row(sweep.rows, row).text(sweep.split)

    def octaves(self, name, row):
        """Return a row's tolerance in octaves."""
        return find_row(self.sweeps[name].rows, row).rate_cells(0)[1]

    def test_of(self, text):
        return next(test for tests in self.tests.values() for test in tests if test.claim['text'] == text)

    def claim(self, text):
        """Return a claim's difference as '−0.123 [−0.150, −0.096]'."""
        e = self.test_of(text).estimate
        return f'{signed(e.mean)} {interval(e.low, e.high)}'

    def share_table(self, family):
        """Return a table of what parts make up of the claims' contrasts, in percent, with Fieller's 95% intervals."""
        lines = [[test.claim['text'], part, f'{ratio:.0%} ' + (
            f'[{low:.0%}, {high:.0%}]'.replace('-', '−') if low == low else '(no interval)')]
            for test in self.tests[family] for part, (ratio, low, high) in test.shares.items()]
        return as_text(pd.DataFrame(lines, columns=['claim', 'part', 'share, with its 95% interval']))[1] if lines else ''

    def claim_table(self, family):
        """Return a table of the claims of a family that have run, with their verdicts."""
        return as_text(pd.DataFrame([test.line() for test in self.tests[family] if test.has_run], columns=HEAD))[1]

    def verdicts(self, *families):
        """Count the verdicts on the claims of these families."""
        marks = [test.verdict().split()[0].strip(':') for family in families for test in self.tests[family] if test.has_run]
        counts = {'supported': marks.count('supported') + marks.count('equal'),
                  **{name: marks.count(name) for name in ('contradicted', 'open')}}
        return f'{len(marks)} claims: {", ".join(f"{n} {name}" for name, n in counts.items())}'

    def not_run(self):
        """List the claims and the sweeps that lack runs."""
        claims = [f'- {test.claim["text"]}' for tests in self.tests.values() for test in tests if not test.has_run]
        left = {name: runs_left_of(sweep.file, sweep.csv)[0] for name, sweep in self.sweeps.items()
                if stated(sweep.file, '_commit')}
        sweeps = [f'`{name}.py` ({number})' for name, number in left.items() if number]
        return '\n'.join(claims + ([f'- runs missing, by sweep: {", ".join(sweeps)}'] if sweeps else [])) or 'All have run.'

    def track(self, division):
        """Return the table of a division of the placement track."""
        return division_table(Division(division))

    def state(self, name):
        """Return how many runs there are, and their commits and machines."""
        runs = self.sweeps[name].runs
        kinds = sorted({f'commit {run["commit"][:7]}{"-dirty" * run["commit"].endswith("-dirty")}, {run["machine"]}, '
                        f'PyTorch {run["torch"]}, {run["precision"]}' for run in runs.to_dict('records')})
        return f'{len(runs)} runs: {"; ".join(kinds)}' if len(runs) else 'no run yet'


def build(place, sweep_files, claims_file):
    """Return {path: text} for the pages of the folder `place`, and {path: matplotlib figure} for their pictures."""
    files = {os.path.basename(path).removesuffix('.py'): path for path in sorted(glob.glob(os.path.join(sweep_files, '*.py')))}
    sweeps = {name: Results(file, os.path.join(place, 'csv', f'{name}.csv')) for name, file in files.items()}
    claims = runpy.run_path(claims_file)
    with matplotlib.rc_context(STYLE):
        figures = {name: draw(sweeps, claims['seeds']) for name, draw in PICTURES.items()}
    figures = {name: figure for name, figure in figures.items() if figure}
    shown = {*figures, *(name for name, sweep in sweeps.items() if name not in PICTURES and sweep.rows)}
    page, pages = Page(sweeps, test_all(claims['families'], sweeps, claims['seeds']), shown), {}
    for path in sorted(glob.glob(os.path.join(place, 'pages', '*.md'))):
        name = os.path.basename(path)
        made, numbers = ('track/README.md', 'track') if name == 'track.md' else (name, 'csv')       # beside its entries
        with open(path, encoding='utf-8') as f:
            pages[os.path.join(place, made)] = MADE.format(name, numbers) + page.fill(f.read())
    return pages, {os.path.join(place, 'img', f'{name}.png'): figure for name, figure in figures.items()}
