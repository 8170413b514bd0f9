"""
The claims that a sweep's file states before its runs, and what the runs say of them. A claim is a dict:

    text        what is claimed
    contrast    'ROW - ROW' or 'ROW - ROW - ROW + ROW', rows of the table: the difference in the final loss
    sign        -1: the difference is below 0, 1: above 0, 0: it is within the margin
    margin      δ, in nats: differences within ±δ count as equal
    pairs       how many seeds are to test it
    paper, said (optional) whose claim it is, and its numbers there

Each claim has two tests of the paired differences. With a sign, these are the t-test of a difference of 0, and two one-sided
t-tests of ±δ (Schuirmann 1987). Without one, they are the latter and the t-test of a difference beyond ±δ. The p-values of all
claims are corrected together.
"""
import math

from lab.statistics import LEVEL, beyond_margin, contrast, corrected, within_margin
from lab.sweep_table import CHOOSER, read_contrasts

FIELDS = dict(text=str, contrast=str, sign=int, margin=float, pairs=int)
OPTIONAL = dict(paper=str, said=str)
MOST_APART, FEWEST_RATES = 2.1, 3       # of a row that a claim names: the ratio of neighbouring rates, and their number


def check_claims(claims, rows):
    """ValueError for a claim that the planned rows cannot test."""
    for claim in claims:
        wrong = [key for key, kind in FIELDS.items() if not isinstance(claim.get(key), kind)]
        wrong += [key for key in claim if not isinstance(claim[key], {**FIELDS, **OPTIONAL}.get(key, ()))]
        if wrong or claim['sign'] not in (-1, 0, 1) or claim['margin'] <= 0 or claim['pairs'] < 2:
            what = ', '.join(dict.fromkeys(wrong)) or 'sign, margin or pairs'
            raise ValueError(f'claims: {claim.get("text", claim)!r}: {what} is not right, wants {", ".join(FIELDS)}: '
                             f'see lab/sweep_claims.py')
        (_, _, named), = read_contrasts(claim['contrast'], rows)
        for row in named:
            seeds = {run['labels']['seed'] for run in row.runs()}
            rates = [float(rate) for rate in row.grid if rate]
            if len(seeds - {CHOOSER} if len(rates) > 1 else seeds) < claim['pairs']:
                raise ValueError(f'claims: {claim["text"]!r} wants {claim["pairs"]} pairs, and {row} has {len(seeds)} seeds, '
                                 f'of which the first chooses the rate')
            if len(rates) > 1 and (len(rates) < FEWEST_RATES or any(b > MOST_APART * a for a, b in zip(rates, rates[1:]))):
                raise ValueError(f'claims: {claim["text"]!r} wants {FEWEST_RATES} rates or more of {row}, each at most twice the '
                                 f'one before: {", ".join(row.grid)}')


class Test:
    """What the rows of a sweep say of a claim. `ps` are its two p-values, corrected by `correct`. `open` says why it cannot be
    decided: runs that are missing or did not end, or a best rate at the edge of its grid."""

    def __init__(self, claim, rows, split):
        self.claim, self.ps, self.estimate, self.open = claim, (math.nan, math.nan), None, ''
        try:
            (_, weights, named), = read_contrasts(claim['contrast'], rows)
        except ValueError:
            self.open = 'not run'
            return
        self.rows = list(dict.fromkeys(named))
        losses = [row.best.losses(split) for row in named]
        seeds = sorted(set.intersection(*map(set, losses)), key=int)[:claim['pairs']]       # no more than were planned
        self.estimate = e = contrast(weights, [{seed: of_row[seed] for seed in seeds} for of_row in losses])
        runs = [run for row in self.rows for run in row.best.compared]
        lost = sum(run['status'] != 'done' for run in runs)
        edges = [row for row in self.rows if row.at_edge()]
        few = [row for row in self.rows if len(row.points) > 1 and len(
            [run for point in row.points for run in row.choosing(point) if run['status'] != 'failed']) < FEWEST_RATES]
        if few:
            self.open = f'fewer than {FEWEST_RATES} rates of {few[0]} have ended'
        elif edges:
            self.open = f'the best rate of {edges[0]} is at the edge'
        elif lost:
            self.open = f'{lost} of {len(runs)} runs did not end'
        elif e.n < claim['pairs']:
            self.open = f'{e.n} of {claim["pairs"]} pairs were run'
        else:
            self.ps = (e.p, within_margin(e, claim['margin'])) if claim['sign'] else (
                beyond_margin(e, claim['margin']), within_margin(e, claim['margin']))

    def verdict(self):
        differs, equal = self.ps
        if self.open:
            return self.open if self.open == 'not run' else f'open: {self.open}'
        if differs < LEVEL:
            return 'supported' if self.estimate.mean * self.claim['sign'] > 0 else 'contradicted'
        return f'equal within ±{self.claim["margin"]:g}' if equal < LEVEL else 'open'

    def line(self):
        e = self.estimate
        shown = e is not None and e.n
        return [self.claim['text'], self.claim.get('said', ''), f'{signed(e.mean)} {interval(e)}' if shown else '–',
                str(e.n) if shown else '0', pvalue(self.ps[0]), pvalue(self.ps[1]), self.verdict()]


HEAD = ['claim', 'in the paper', 'difference', 'pairs', 'p', 'p of equality', 'verdict']


def correct(tests):
    """Corrects the p-values of these tests together."""
    ps = iter(corrected([p for test in tests for p in test.ps]))
    for test in tests:
        test.ps = next(ps), next(ps)


def claim_lines(claims, rows, split):
    """The table of the claims of one sweep: lines of texts, the first is the head."""
    tests = [Test(claim, rows, split) for claim in claims]
    correct(tests)
    return [HEAD, *(test.line() for test in tests)]


def signed(x):
    return f'{x:+.3f}'.replace('-', '−')


def interval(e):
    return f'[{signed(e.low)}, {signed(e.high)}]' if math.isfinite(e.low) else '(no interval)'


def pvalue(p):
    return '–' if math.isnan(p) else '< 0.001' if p < 0.001 else f'{p:.2g}'
