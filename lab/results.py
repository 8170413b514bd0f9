"""
Makes the pages of results/ from the raw numbers in results/csv/, in less than a minute:

    python -m lab.results                   # all pages and pictures; `make results` does the same
    python -m lab.results --check=True      # changes nothing, and fails if a page is not what the numbers give

results/pages/NAME.md is the source of results/NAME.md. In it, {{…}} calls one of TAGS, which are methods of Page. All tests of
a page are corrected together. results/claims.py has the papers' claims, and results/csv/SWEEP.csv is the runs.csv of
config/sweep/SWEEP.py.
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
from lab.statistics import contrast, corrected  # noqa: E402
from lab.sweep_table import LR, as_text, find_row, points_of, read_contrasts, read_runs, rows_of, split_of  # noqa: E402

# ----------------------------------------------------------------------------- keys
folder = 'results'                  # the folder of pages/, csv/, claims.py and img/, from the root of the repository
check = False                       # change nothing, and fail if a page differs from what would be written
# -----------------------------------------------------------------------------
VERDICTS = ('supported', 'contradicted', 'underpowered', 'not testable here')
LEVEL = 0.05                        # of the corrected p
NAMES = dict(val='validation', test='test')


# ----------------------------------------------------------------------------- the numbers

class Sweep:
    """The runs of a runs.csv, as rows, each at its best rate. Losses are those of the test split if all runs have one."""

    def __init__(self, path):
        self.name, self.runs = os.path.basename(path).removesuffix('.csv'), read_runs(path)
        self.rows = rows_of(points_of(self.runs))
        self.split = split_of(self.runs)

    def estimate(self, text):
        """'ROW - ROW' or 'ROW - ROW - ROW + ROW' → the rows and the Estimate of this contrast"""
        (_, weights, rows), = read_contrasts(text, self.rows)
        return rows, contrast(weights, [row.best.losses(self.split) for row in rows])

    def tokens_per_parameter(self, rows):
        ratios = [run['iterations'] * run['tokens_per_iteration'] / run['parameters'] for row in rows for run in row.best.done]
        return statistics.fmean(ratios) if ratios else math.nan


class Test:
    """A difference and its place among the tests of a page, whose corrected p is known when all of them are"""

    def __init__(self, estimate):
        self.estimate, self.p = estimate, math.nan

    def __str__(self):
        e = self.estimate
        if not e.n:
            return 'no runs yet'
        return f'{signed(e.mean)} {interval(e)}, corrected p {pvalue(self.p)}'


def signed(x):
    return f'{x:+.3f}'.replace('-', '−')


def interval(e):
    return f'[{signed(e.low)}, {signed(e.high)}]' if math.isfinite(e.low) else '(one seed)'


def pvalue(p):
    return 'not testable' if math.isnan(p) else '< 0.001' if p < 0.001 else f'{p:.3f}'


def verdict(claim, test):
    """One of VERDICTS for a claim of results/claims.py, from the interval and the corrected p of its contrast.

    A claim has an `effect`, the paper's value of the contrast. It is supported if the contrast differs from 0 in the effect's
    direction, and contradicted if it differs in the other one, or if its interval excludes an effect as large as the paper's.
    With `sign`, 1 or -1, the paper gives no number, and only the direction counts.
    With `margin` it says that the contrast is below that, so that it may have an `effect` too, for the picture: it is supported
    if the interval lies below the margin, and contradicted if it lies above. In all other cases the test could not tell:
    underpowered.
    """
    if 'why' in claim:
        return VERDICTS[3]
    e = test.estimate
    if not math.isfinite(e.low):
        return VERDICTS[2]
    if 'margin' in claim:
        above = e.low > claim['margin'] and test.p < LEVEL
        return VERDICTS[0] if e.high < claim['margin'] else VERDICTS[1] if above else VERDICTS[2]
    sign = math.copysign(1, claim.get('effect', claim.get('sign')))
    if test.p < LEVEL:
        return VERDICTS[0] if sign * e.mean > 0 else VERDICTS[1]
    largest = e.high if sign > 0 else -e.low            # effect in the paper's direction that the interval allows
    return VERDICTS[1] if 'effect' in claim and largest < abs(claim['effect']) else VERDICTS[2]


# ----------------------------------------------------------------------------- pages

class Page:
    """A page in the making: its tests, and the functions that its {{…}} may call"""

    def __init__(self, name, sweeps, claims, images):
        self.name, self.sweeps, self.claims, self.images, self.tests = name, sweeps, claims, images, []

    def sweep(self, name):
        if name not in self.sweeps:
            raise ValueError(f'{self.name}: there is no csv/{name}.csv, choose among {", ".join(self.sweeps)}')
        return self.sweeps[name]

    def test(self, estimate):
        self.tests.append(Test(estimate))
        return self.tests[-1]

    def difference(self, name, text):
        """'−0.123 [−0.150, −0.096], corrected p 0.003' for a contrast of rows of a sweep"""
        return self.test(self.sweep(name).estimate(text)[1])

    def loss(self, name, row):
        """The mean loss of a row at its best rate, and its standard error"""
        sweep = self.sweep(name)
        return find_row(sweep.rows, row, 'loss').best.text(sweep.split)

    def table(self, name, across='', only='', best_first=False):
        """The rows of a sweep at their best rates, of which `only` chooses as 'axis=value,…'. With `across`, an axis, one column
        for each of its values. best_first sorts the lines by the lowest loss in them."""
        sweep = self.sweep(name)
        losses, lines, rows = {}, {}, chosen(sweep.rows, only)
        columns = list(dict.fromkeys(row.labels[across] for row in rows)) if across else [f'{NAMES[sweep.split]} loss']
        for row in rows:
            key = tuple((axis, label) for axis, label in row.labels.items() if axis != across)
            losses[key] = min(row.best.mean(sweep.split)[0], losses.get(key, math.inf))
            at = f' at {rate(row)}' if LR in row.best.labels else ''
            lines.setdefault(key, {})[row.labels[across] if across else columns[0]] = row.best.text(sweep.split) + at
        axes = list(dict.fromkeys(axis for key in lines for axis, _ in key))
        order = sorted(lines, key=losses.get) if best_first else lines
        return markdown([[*axes, *columns], *([*(dict(key).get(axis, '') for axis in axes),
                                               *(lines[key].get(column, '') for column in columns)] for key in order)])

    def leaderboard(self, name):
        """The rows of a sweep by their loss, with rate sensitivity, the largest rate that some run survived, and the time"""
        sweep = self.sweep(name)
        lines = []
        for row in sorted(sweep.rows, key=lambda row: row.best.mean(sweep.split)[0]):
            stable = [float(point.labels[LR]) for point in row.points if point.done]
            times = [1000 * run['seconds'] / run['iterations'] for run in row.best.done if run['iterations']]
            sensitivity = row.sensitivity()
            lines.append([str(row), row.best.text(sweep.split), rate(row), f'{sensitivity:.3f}' if sensitivity >= 0 else '',
                          f'{max(stable):g}' if stable else '', f'{statistics.fmean(times):.0f}' if times else ''])
        return markdown([['row', 'loss', LR, 'rate sensitivity', 'largest stable rate', 'ms an iteration'], *lines])

    def claim_table(self, paper=''):
        """The claims of one paper, or of all, with the verdicts"""
        return Claims(self, [claim for claim in self.claims if paper in ('', claim['paper'])])

    def curves(self, file, name, x, minus='', only=''):
        """A picture img/FILE.png: the loss at each row's best rate, with its 95% interval, against the axis x, a curve for each
        combination of the other axes. With minus='axis=a,b', the difference b − a on that axis. `only` chooses rows."""
        sweep, at = self.sweep(name), {}
        axis, _, values = minus.partition('=')
        first, _, second = values.partition(',')
        rows, hidden = chosen(sweep.rows, only), {x, axis, *(key for key, _ in pairs_of(only))}
        for row in rows:
            curve = ', '.join(label for key, label in row.labels.items() if key not in hidden)
            at.setdefault(curve, {}).setdefault(row.labels[x], {})[row.labels.get(axis)] = row
        labels = list(dict.fromkeys(row.labels[x] for row in rows))
        numeric = all(map(leading_number, labels))
        places = {label: leading_number(label) if numeric else i for i, label in enumerate(labels)}
        figure, (ax,) = panels(1, height=2.6)
        figure.set_size_inches(FULL, 2.8)
        for i, (curve, places_of) in enumerate(at.items()):
            points = []
            for label, of_axis in sorted(places_of.items(), key=lambda item: places[item[0]]):
                if not minus or {first, second} <= of_axis.keys():
                    losses = [of_axis[one].best.losses(sweep.split) for one in ((second, first) if minus else (None,))]
                    e = contrast([1, -1][:len(losses)], losses)
                    points += [(places[label], e.mean, e.high - e.mean if math.isfinite(e.low) else 0)] if e.n else []
            if points:
                ax.errorbar(*zip(*points), capsize=2, label=curve, **run_style(i))
        ax.set(xlabel=x, ylabel=f'{second} − {first}, nats a token' if minus else f'{NAMES[sweep.split]} loss, nats a token')
        if numeric:
            log_scale(ax, 'x')
        else:
            ax.set_xticks(range(len(labels)), labels)
        if minus:
            ax.axhline(0, color='#888', linewidth=0.8)
        figure.legend(loc='outside right center')
        return self.images.add(file, figure)

    def forest(self, file):
        """A picture img/FILE.png: the effects of all claims with intervals, the papers' beside ours"""
        shown = [claim for claim in self.claims if 'why' not in claim and 'effect' in claim]
        figure, (ax,) = panels(1, height=0.8 + 0.32 * len(shown))
        figure.set_size_inches(FULL, 1.0 + 0.32 * len(shown))
        for i, claim in enumerate(shown):
            e = self.sweep(claim['sweep']).estimate(claim['contrast'])[1]
            ax.plot(claim['effect'], i, 'D', color=COLORS[1], markersize=4)
            if e.n:
                spread = [[e.mean - e.low], [e.high - e.mean]] if math.isfinite(e.low) else None
                ax.errorbar(e.mean, i, xerr=spread, fmt='o', color=COLORS[0], capsize=2)
        ax.axvline(0, color='#888', linewidth=0.8)
        ax.set_yticks(range(len(shown)), [claim['short'] for claim in shown])
        ax.invert_yaxis()
        ax.set_xlabel('difference in loss, nats a token')
        names = ['paper', 'here, with its 95% interval']
        figure.legend([*ax.lines[:1], *ax.containers[:1]], names, loc='outside lower center', ncols=2)
        return self.images.add(file, figure)

    def text(self, source):
        """The page as text, of its source"""
        pieces = re.split(r'\{\{(.*?)\}\}', source, flags=re.DOTALL)
        scope = {'__builtins__': {}, **{name: getattr(self, name) for name in TAGS}}
        try:
            pieces[1::2] = [eval(piece.strip(), scope) for piece in pieces[1::2]]
        except (NameError, SyntaxError, TypeError) as error:
            raise ValueError(f'{self.name}: {error}; a tag is a call of {", ".join(TAGS)}') from error
        for test, p in zip(self.tests, corrected([test.estimate.p for test in self.tests])):
            test.p = p
        made = f'<!-- Made by `make results` from pages/{self.name} and csv/. Edit these. -->\n'
        return made + ''.join(map(str, pieces))


TAGS = ('difference', 'loss', 'table', 'leaderboard', 'claim_table', 'curves', 'forest')


class Claims:
    """The table of some claims, which is written once the page's tests are corrected"""

    def __init__(self, page, claims):
        self.lines = []
        for claim in claims:
            if 'why' in claim:
                self.lines.append((claim, None, math.nan))
            else:
                sweep = page.sweep(claim['sweep'])
                rows, estimate = sweep.estimate(claim['contrast'])
                self.lines.append((claim, page.test(estimate), sweep.tokens_per_parameter(rows)))

    def __str__(self):
        table = [['claim', 'in the paper', 'here, with its 95% interval', 'corrected p', 'verdict', 'tokens a parameter']]
        for claim, test, ratio in self.lines:
            e = test and test.estimate
            ours = [f'{signed(e.mean)} {interval(e)}', pvalue(test.p)] if e and e.n else ['–', '–']
            why = f': {claim["why"]}' if 'why' in claim else ''
            table.append([claim['text'], claim['said'], *ours, verdict(claim, test) + why, f'{ratio:.0f}' if ratio >= 0 else '–'])
        return markdown(table)


class Images:
    """Pictures in the making, {file: figure}"""

    def __init__(self):
        self.figures = {}

    def add(self, file, figure):
        self.figures[file] = figure
        return f'img/{file}.png'


def rate(row):
    return row.best.labels.get(LR, '') + ' (edge)' * row.at_edge()


def leading_number(text):
    """'6.4M' → 6.4, for the place of a label on an axis; None if there is no number above 0"""
    found = re.match(r'\d+(\.\d+)?(e-?\d+)?', text)
    return float(found[0]) or None if found else None


def pairs_of(only):
    """'axis=value,axis=value' → [(axis, value), …]"""
    return [tuple(pair.split('=', 1)) for pair in only.split(',')] if only else []


def chosen(rows, only):
    """The rows with these labels. ValueError if there are none."""
    found = [row for row in rows if all(row.labels.get(axis) == value for axis, value in pairs_of(only))]
    if not found:
        raise ValueError(f'only={only!r} chooses none of the rows: {"; ".join(map(str, rows))}')
    return found


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
        wanted = {'text', 'short', 'paper', 'said', *(('why',) if 'why' in claim else ('sweep', 'contrast'))}
        if wanted - claim.keys() or 'why' not in claim and not claim.keys() & {'effect', 'sign', 'margin'}:
            raise ValueError(f'{path}: {claim.get("text", claim)!r} wants {", ".join(sorted(wanted))}, '
                             f'and effect, sign or margin')
    return scope['CLAIMS']


def build(place):
    """{path: text} of the pages, and the pictures, of the folder `place`"""
    sweeps = {sweep.name: sweep for sweep in map(Sweep, sorted(glob.glob(os.path.join(place, 'csv', '*.csv'))))}
    claims, images, pages = read_claims(os.path.join(place, 'claims.py')), Images(), {}
    for path in sorted(glob.glob(os.path.join(place, 'pages', '*.md'))):
        with open(path, encoding='utf-8') as f:
            name = os.path.basename(path)
            pages[os.path.join(place, name)] = Page(name, sweeps, claims, images).text(f.read())
    return pages, images.figures


def main():
    configure(globals())
    place = os.path.join(ROOT, folder)
    pages, figures = build(place)
    if not pages:
        raise ValueError(f'folder={folder}: there is no page in {folder}/pages/')
    if check:
        for path, text in pages.items():
            if not os.path.exists(path) or open(path, encoding='utf-8').read() != text:
                name = os.path.join(folder, os.path.basename(path))
                raise ValueError(f'{name} is not what csv/ and pages/ give: run  make results')
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
