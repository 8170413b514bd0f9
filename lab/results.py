"""
Makes the pages of results/ from the raw numbers in results/csv/, in less than a minute:

    python -m lab.results                   # all pages and pictures; `make results` does the same
    python -m lab.results --check=True      # changes nothing, and fails if a page is not what the numbers give

results/pages/NAME.md is the source of results/NAME.md, and front.md that of a section of the README.md of the repository. In it,
{{…}} calls one of TAGS, which are methods of Page. results/claims.py has the papers' claims, and results/csv/SWEEP.csv is the
runs.csv of config/sweep/SWEEP.py. The p-values of a paper's claims are corrected together, and so are those of all other tests of
a sweep: a test that is added elsewhere changes no verdict.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.results')

from configurator import ROOT, configure

import glob
import math
import os
import re
import statistics

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

from engine.checkpoint import write_whole  # noqa: E402
from lab.plot import COLORS, FULL, log_scale, panels, run_style  # noqa: E402
from lab.statistics import LEVEL, contrast, corrected  # noqa: E402
from lab.sweep_table import (  # noqa: E402
    LR,
    SPLITS,
    as_text,
    find_row,
    points_of,
    read_contrasts,
    read_runs,
    rows_of,
    split_of,
)

# ----------------------------------------------------------------------------- keys
folder = 'results'                  # the folder of pages/, csv/, claims.py and img/, from the root of the repository
check = False                       # change nothing, and fail if a page differs from what would be written
# -----------------------------------------------------------------------------
VERDICTS = ('supported', 'contradicted', 'underpowered', 'not testable here')
FRONT = 'front.md'
MADE = '<!-- Made by `make results` from results/pages/{} and results/csv/. Edit these. -->\n'     # begins a page, or a section
END = '<!-- The section ends here. -->\n'
NAMES = {'adamw': 'AdamW', 'muon': 'Muon', 'sgdw': 'mSGDW'}      # of labels, as the pages show them
MIN_PAIRS = 4                       # so many must be left for a test to leave out the seeds by which rates were chosen


# ----------------------------------------------------------------------------- the numbers

class Sweep:
    """The runs of a runs.csv, as rows, each at its best rate. Losses are those of the test split, if the runs have them."""

    def __init__(self, path):
        self.name, self.runs = os.path.basename(path).removesuffix('.csv'), read_runs(path)
        self.rows, self.split = rows_of(points_of(self.runs)), split_of(self.runs)
        if self.split == 'val' and any(math.isfinite(run['test_loss']) for run in self.runs):
            raise ValueError(f'{path}: some runs that are done have a test_loss and others have none')
        self.axes = list(dict.fromkeys(axis for row in self.rows for axis in row.labels))

    def axis(self, name):
        if name not in self.axes:
            raise ValueError(f'csv/{self.name}.csv has no axis {name!r}, choose among {", ".join(self.axes)}')
        return name

    def only(self, labels):
        """The rows with the labels of 'axis=value,axis=value|value'"""
        pairs = pairs_of(labels)
        found = [row for row in self.rows if all(row.labels.get(self.axis(axis)) in value.split('|') for axis, value in pairs)]
        if not found:
            raise ValueError(f'only={labels!r} chooses none of the rows: {"; ".join(map(str, self.rows))}')
        return found


class Test:
    """A contrast of rows of a sweep, 'ROW - ROW' or 'ROW - ROW - ROW + ROW'. `p` is corrected once all tests are known. The seeds
    by which the rates were chosen do not count if MIN_PAIRS others are left. `lost` of the `runs` at the best rates did not end:
    then the seeds that are left may be those that went well."""

    def __init__(self, sweep, text):
        (_, weights, self.rows), = read_contrasts(text, sweep.rows)
        losses = [row.best.losses(sweep.split) for row in self.rows]
        chosen_by = set().union(*(row.chosen_by for row in self.rows if len(row.points) > 1))
        left = set.intersection(*map(set, losses)) - chosen_by
        if len(left) >= MIN_PAIRS:
            losses = [{seed: loss for seed, loss in one.items() if seed in left} for one in losses]
        self.estimate, self.p = contrast(weights, losses), math.nan
        runs = [run for row in self.rows for run in row.best.runs]
        self.runs, self.lost = len(runs), sum(run['status'] != 'done' for run in runs)

    def cell(self):
        """The difference with its interval, and how many runs did not end"""
        e = self.estimate
        if not e.n:
            return 'no runs'
        lost = f', {self.lost} of {self.runs} runs did not end' * bool(self.lost)
        return f'{signed(e.mean)} {interval(e)}' + ' (edge)' * any(row.at_edge() for row in self.rows) + lost

    def cells(self):
        """Of a line of the table of claims: the difference, pairs, detectable, corrected p, tokens a parameter"""
        ratios = [run['iterations'] * run['tokens_per_iteration'] / run['parameters']
                  for row in self.rows for run in row.best.done]
        return [self.cell(), str(self.estimate.n), f'{self.estimate.detectable:.3f}', pvalue(self.p),
                f'{statistics.fmean(ratios):.0f}' if ratios else '–']

    def __str__(self):
        return f'{self.cell()}, corrected p {pvalue(self.p)}' if self.estimate.n else self.cell()


def signed(x):
    return f'{x:+.3f}'.replace('-', '−')


def interval(e):
    return f'[{signed(e.low)}, {signed(e.high)}]' if math.isfinite(e.low) else '(no interval)'


def pvalue(p):
    return '–' if math.isnan(p) else '< 0.001' if p < 0.001 else f'{p:.4f}'


def verdict(claim, test):
    """One of VERDICTS for a claim of results/claims.py, from the sign of its contrast and the corrected p. Only the direction of
    the paper's `effect`, or the `sign` of a claim without a number, counts: sizes at 124M parameters are not those of small
    models, and nats a token are not nats a byte."""
    if 'why' in claim:
        return f'{VERDICTS[3]}: {claim["why"]}'
    if test.lost:
        return f'{VERDICTS[3]}: {test.lost} of {test.runs} runs did not end'
    if not test.p < LEVEL:
        return VERDICTS[2]
    return VERDICTS[0] if test.estimate.mean * claim.get('effect', claim.get('sign')) > 0 else VERDICTS[1]


# ----------------------------------------------------------------------------- pages

class Page:
    """A page in the making: the functions that its {{…}} may call. `tests` are those of all pages, {(sweep, contrast): Test}."""

    def __init__(self, name, source, sweeps, claims, tests, images):
        self.name, self.sweeps, self.claims, self.tests, self.images = name, sweeps, claims, tests, images
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
            raise ValueError(f'{self.name}: there is no csv/{name}.csv, choose among {", ".join(self.sweeps)}')
        return self.sweeps[name]

    def difference(self, name, text, p=True):
        """'−0.123 [−0.150, −0.096], corrected p 0.0031' for a contrast of rows of a sweep, or without its p"""
        test = self.tests.setdefault((name, text), Test(self.sweep(name), text))
        return test if p else test.cell()

    def loss(self, name, row):
        """The mean loss of a row at its best rate, and its standard error"""
        sweep = self.sweep(name)
        return find_row(sweep.rows, row, 'loss').best.text(sweep.split)

    def table(self, name, across='', only='', best_first=False):
        """The rows of a sweep at their best rates. `only` chooses rows, as 'axis=value,axis=value|value'. With `across`, an axis,
        one column for each of its values. best_first sorts the lines by the lowest loss in them."""
        sweep = self.sweep(name)
        rows, across = sweep.only(only), across and sweep.axis(across)
        columns = list(dict.fromkeys(row.labels.get(across, '') for row in rows)) if across else [f'{SPLITS[sweep.split]} loss']
        several = len({len(row.best.done) for row in rows}) > 1
        losses, lines = {}, {}
        for row in rows:
            key = tuple((axis, label) for axis, label in row.labels.items() if axis != across)
            losses[key] = min(row.best.mean(sweep.split)[0], losses.get(key, math.inf))
            seeds = f', {len(row.best.done)} seed{"s" * (len(row.best.done) != 1)}' * several
            cell = row.best.text(sweep.split) + seeds + f' at {row.rate()}' * bool(row.rate())
            lines.setdefault(key, {})[row.labels.get(across, '') if across else columns[0]] = cell
        axes = list(dict.fromkeys(axis for key in lines for axis, _ in key))
        order = sorted(lines, key=losses.get) if best_first else lines
        return markdown([[*axes, *map(shown, columns)], *([*(shown(dict(key).get(axis, '')) for axis in axes),
                                               *(lines[key].get(column, '') for column in columns)] for key in order)])

    def leaderboard(self, name):
        """The rows of a sweep by their loss, with rate sensitivity, the largest rate whose runs all went to the end, and the
        median of the runs' seconds"""
        sweep = self.sweep(name)
        lines = []
        for row in sorted(sweep.rows, key=lambda row: row.best.mean(sweep.split)[0]):
            stable = [point.labels[LR] for point in row.points if point.ended['done'] == len(point.runs)]
            seconds = [run['seconds'] for point in row.points for run in point.done]
            sensitivity = row.sensitivity()
            lines.append([*(shown(row.labels.get(axis, '')) for axis in sweep.axes), row.best.text(sweep.split), row.rate(),
                          f'{sensitivity:.3f}' if sensitivity >= 0 else '', stable[-1] if stable else '',
                          f'{statistics.median(seconds):.0f}' if seconds else ''])
        return markdown([[*sweep.axes, 'loss', LR, 'rate sensitivity', 'largest rate that ended', 'seconds'], *lines])

    def claim_table(self, paper=''):
        """The claims of one paper, or of all, with the verdicts"""
        claims = [claim for claim in self.claims if paper in ('', claim['paper'])]
        return Claims([(claim, None if 'why' in claim else self.difference(claim['sweep'], claim['contrast']))
                       for claim in claims])

    def curves(self, file, name, x, minus='', only='', xlabel=''):
        """A picture img/FILE.png: the loss at each row's best rate, with its 95% interval, against the axis x, a curve for each
        combination of the other axes. With minus='axis=a,b', the difference b − a on that axis. `only` chooses rows, and the
        order of the values of x if it names them. `xlabel` stands at the axis in place of x."""
        sweep, at = self.sweep(name), {}
        axis, _, values = minus.partition('=')
        ends = values.split(',')[::-1] if minus else [None]
        one_valued = {key for key, value in pairs_of(only) if '|' not in value}
        rows, hidden = sweep.only(only), {sweep.axis(x), minus and sweep.axis(axis), *one_valued}
        for row in rows:
            curve = ', '.join(shown(label) for key, label in row.labels.items() if key not in hidden)
            at.setdefault(curve, {}).setdefault(row.labels.get(x, ''), {})[row.labels.get(axis)] = row.best.losses(sweep.split)
        present = {row.labels.get(x, '') for row in rows}
        labels = [label for label in dict(pairs_of(only)).get(x, '').split('|') if label in present] or sorted(present)
        numeric = all(map(leading_number, labels))
        places = {label: leading_number(label) if numeric else i for i, label in enumerate(labels)}
        figure, (ax,) = panels(1, height=2.6)
        figure.set_size_inches(FULL, 2.8)
        for i, (curve, of_label) in enumerate(at.items()):
            shift, points = 0 if numeric else 0.1 * (i - (len(at) - 1) / 2), []
            for label in sorted(of_label, key=places.get):
                if {*ends} <= of_label[label].keys():
                    e = contrast([1, -1][:len(ends)], [of_label[label][end] for end in ends])
                    points += [(places[label] + shift, e.mean, e.high - e.mean if math.isfinite(e.low) else 0)] if e.n else []
            if points:
                ax.errorbar(*zip(*points), capsize=2, label=curve, **run_style(i) | ({} if numeric else dict(linestyle='none')))
        if not ax.containers:
            raise ValueError(f'{file}: there is nothing to draw, minus={minus!r}')
        loss = f'{SPLITS[sweep.split]} loss'
        ax.set(xlabel=xlabel or x, ylabel=f'{loss}: {" − ".join(map(shown, ends))}' if minus else loss)
        if numeric:
            log_scale(ax, 'x')
        else:
            ax.set_xticks(range(len(labels)), map(shown, labels))
        if minus:
            ax.axhline(0, color='#888', linewidth=0.8)
        if len(at) > 1:
            figure.legend(loc='outside right center')
        return self.images.add(file, figure)

    def forest(self, file):
        """A picture img/FILE.png: the effects of all claims, the papers' on the left and ours with intervals on the right. They
        are in different units, and so have an axis each."""
        shown = [claim for claim in self.claims if 'effect' in claim and 'why' not in claim]
        figure, (theirs, ours) = panels(2, height=1)
        figure.set_size_inches(FULL, 1.0 + 0.3 * len(shown))
        for i, claim in enumerate(shown):
            theirs.plot(claim['effect'], i, 'D', color=COLORS[1], markersize=4)
            e = self.difference(claim['sweep'], claim['contrast']).estimate
            if e.n:
                spread = [[e.mean - e.low], [e.high - e.mean]] if math.isfinite(e.low) else None
                ours.errorbar(e.mean, i, xerr=spread, fmt='o', color=COLORS[0], capsize=2)
        for ax, title in (theirs, 'in the paper'), (ours, 'here, with 95% intervals'):
            ax.axvline(0, color='#888', linewidth=0.8)
            ax.set(title=title, xlabel='difference in loss', ylim=(len(shown) - 0.5, -0.5))
            ax.set_yticks(range(len(shown)), [claim['short'] for claim in shown] if ax is theirs else [])
        return self.images.add(file, figure)


TAGS = ('difference', 'loss', 'table', 'leaderboard', 'claim_table', 'curves', 'forest')


class Claims:
    """The table of claims, of one paper or of several, each with its test or None; it is written once the tests are corrected"""

    def __init__(self, lines):
        self.lines = lines

    def __str__(self):
        several = len({claim['paper'] for claim, _ in self.lines}) > 1
        table = [['paper'] * several + ['claim', 'in the paper', 'here', 'pairs', 'detectable', 'corrected p', 'verdict',
                                        'tokens a parameter']]
        for claim, test in self.lines:
            *ours, ratio = test.cells() if test else ['–'] * 5
            table.append([claim['paper']] * several + [claim['text'], claim['said'], *ours, verdict(claim, test), ratio])
        return markdown(table)


class Images:
    """Pictures in the making, {file: figure}"""

    def __init__(self):
        self.figures = {}

    def add(self, file, figure):
        self.figures[file] = figure
        return f'img/{file}.png'


def leading_number(text):
    """'6.4M' → 6.4, for the place of a label on an axis; None if there is no number above 0"""
    found = re.match(r'\d+(\.\d+)?(e-?\d+)?', text)
    return float(found[0]) or None if found else None


def shown(label):
    return NAMES.get(label, label)


def pairs_of(labels):
    """'axis=value,axis=value' → [(axis, value), …]"""
    return [pair.partition('=')[::2] for pair in labels.split(',')] if labels else []


def markdown(lines):
    return as_text(lines)[1]


def read_claims(path):
    """The list CLAIMS of results/claims.py, [] if there is no such file. ValueError for a claim that lacks a field."""
    if not os.path.exists(path):
        return []
    scope = {}
    with open(path, encoding='utf-8') as f:
        exec(compile(f.read(), path, 'exec'), scope)
    for claim in scope['CLAIMS']:
        wanted = ['paper', 'short', 'text', 'said', *([] if 'why' in claim else ['sweep', 'contrast'])]
        missing = [key for key in wanted if key not in claim]
        if 'why' not in claim and not claim.get('effect', claim.get('sign')):
            missing.append('effect or sign')
        if missing:
            raise ValueError(f'{path}: {claim.get("text", claim)!r} lacks {", ".join(missing)}')
    return scope['CLAIMS']


def correct(tests, claims):
    """Sets the corrected p of {(sweep, contrast): Test}: of the tests of a paper's claims together, and of a sweep's others."""
    papers = {(claim['sweep'], claim['contrast']): claim['paper'] for claim in claims if 'why' not in claim}
    families = {}
    for key, test in tests.items():
        families.setdefault(('claims', papers[key]) if key in papers else ('sweep', key[0]), []).append(test)
    for family in families.values():
        for test, p in zip(family, corrected([test.estimate.p for test in family])):
            test.p = p


def build(place):
    """{path: text} of the pages, and the pictures, of the folder `place`"""
    sweeps = {sweep.name: sweep for sweep in map(Sweep, sorted(glob.glob(os.path.join(place, 'csv', '*.csv'))))}
    claims, tests, images, pages = read_claims(os.path.join(place, 'claims.py')), {}, Images(), {}
    for path in sorted(glob.glob(os.path.join(place, 'pages', '*.md'))):
        with open(path, encoding='utf-8') as f:
            name = os.path.basename(path)
            pages[os.path.join(place, name)] = Page(name, f.read(), sweeps, claims, tests, images)
    correct(tests, claims)
    texts = {path: str(page) for path, page in pages.items()}
    section = texts.pop(os.path.join(place, FRONT), None)
    if section:
        path = os.path.join(os.path.dirname(place), 'README.md')
        texts[path] = with_section(path, section)
    return texts, images.figures


def with_section(path, section):
    """The text of a file, with the section from its line MADE to its line END replaced"""
    with open(path, encoding='utf-8') as f:
        before, made, rest = f.read().partition(MADE.format(FRONT))
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f'{path} has no place for {FRONT}: it wants the lines {MADE.format(FRONT)}{END}'.rstrip())
    return before + section + end + after


def main():
    configure(globals())
    place = os.path.join(ROOT, folder)
    pages, figures = build(place)
    if not pages:
        raise ValueError(f'folder={folder}: there is no page in {folder}/pages/')
    if check:
        for path, text in pages.items():
            if not os.path.exists(path) or open(path, encoding='utf-8').read() != text:
                raise ValueError(f'{path} is not what csv/ and pages/ give: run  make results')
        print(f'{len(pages)} pages agree with the numbers')
        return
    for path, text in pages.items():
        write_whole(path, lambda f: f.write(text.encode()))
    os.makedirs(os.path.join(place, 'img'), exist_ok=True)
    for file, figure in figures.items():
        figure.savefig(os.path.join(place, 'img', f'{file}.png'), dpi=200)
        plt.close(figure)
    print(f'wrote {len(pages)} pages and {len(figures)} pictures into {folder}')


if __name__ == '__main__':
    main()
