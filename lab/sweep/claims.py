"""
Test the claims of config/claims.py, which were written down before the runs, on the runs of results/csv/.

`families` there is {name: [claim, …]}. The p-values of a family are corrected together. Undecided claims count as p = 1, so that
later runs take no verdict back. `seeds` is {sweep: number of losses that each of its rows needs}. A claim is a dict:

    text        what is claimed
    contrast    'ROW - ROW' or 'ROW - ROW - ROW + ROW', the difference in the final loss. A ROW is SWEEP/axis=value,…
    sign        -1: the difference is below 0, 1: above 0, 0: it lies within ±margin
    margin      δ in nats, with sign=0
    paper       (optional) its numbers in the paper
    shares      (optional) {text: contrast}: parts of the claim's contrast, which are estimated but not tested

Each claim has one p: with a sign, by a t-test of independent means; with sign=0, the larger of two one-sided t-tests of ±δ.
"""
import math
from contextlib import suppress

from lab.sweep.statistics import LEVEL, contrast, corrected, share, within_margin
from lab.sweep.table import find_row, read_contrast

HEAD = ['claim', 'in the paper', 'difference', 'seeds', 'p', 'verdict']
FEWEST_RATES = 3            # rates that a row needs to choose one: with fewer, a better one may lie between or beyond


def weights_of(text, sweeps):
    """Return a contrast's {row: weight}. Raise LookupError while a row has no runs."""
    def find(name):
        sweep, _, labels = name.partition('/')
        if sweep not in sweeps:
            raise ValueError(f'contrast={text!r}: there is no sweep {sweep!r}')
        try:
            return find_row(sweeps[sweep].rows, labels, 'contrast')
        except ValueError as error:
            raise LookupError(f'{name} has no runs') from error

    return read_contrast(text, find)


class Test:
    """A claim's test. `p` is corrected by `test_all`. `open` says why the claim cannot be decided yet, and `has_run` whether
    all rates and seeds of its rows have ended. `sweeps`: {name: sweep}, with `rows` and their `samples`. `seeds` is as in the
    file."""

    def __init__(self, claim, sweeps, seeds):
        self.claim, self.p, self.estimate, self.shares = claim, math.nan, None, {}
        try:
            weights = weights_of(claim['contrast'], sweeps)
        except LookupError:
            self.open, self.has_run = 'not run', False
            return
        samples = {row: sample for sweep in sweeps.values() for row, sample in sweep.samples.items()}
        self.estimate = contrast(weights, samples)
        reasons = [why_open(row, samples[row].n, seeds[name])
                   for name, sweep in sweeps.items() for row in sweep.rows if row in weights]
        self.open = next(filter(None, reasons), '')
        self.has_run = not self.open.endswith('have ended')
        if self.open:
            return
        self.p = self.estimate.p if claim['sign'] else within_margin(self.estimate, claim['margin'])
        for text, part in claim.get('shares', {}).items():
            with suppress(LookupError):
                self.shares[text] = share(weights_of(part, sweeps), weights, samples)

    def verdict(self):
        e, margin = self.estimate, self.claim.get('margin')
        if self.open:
            return self.open if self.open == 'not run' else f'open: {self.open}'
        if margin is None:
            return 'open' if not self.p < LEVEL else 'supported' if e.mean * self.claim['sign'] > 0 else 'contradicted'
        if self.p < LEVEL:
            return f'equal within ±{margin:g}'
        return f'contradicted: beyond ±{margin:g}' if e.low > margin or e.high < -margin else 'open'

    def line(self):
        e, verdict = self.estimate, self.verdict()
        color = {'supported': '🟢 ', 'equal': '🟢 ', 'contradicted': '🔴 '}.get(verdict.split()[0].strip(':'), '⚪ ')
        shown = e is not None and e.n
        return [self.claim['text'], self.claim.get('paper', ''), f'{signed(e.mean)} {interval(e.low, e.high)}' if shown else '–',
                str(e.n) if shown else '0', pvalue(self.p), color + verdict]


def why_open(row, n, seeds):
    """Return why no claim about the row can be decided yet, such as too few rates or only n of `seeds` losses, or ''."""
    lost = sum(row.compared.status != 'done')
    if 1 < len(row.rates) and len(row.tuning) < FEWEST_RATES:
        return f'fewer than {FEWEST_RATES} rates of {row} have ended'
    if row.is_at_edge():
        return f'the best rate of {row} is at the edge'
    if lost:
        return f'{lost} of {len(row.compared)} runs of {row} did not end'
    return f'{n} of {seeds} seeds of {row} have ended' if n < seeds else ''


def test_all(families, sweeps, seeds):
    """Return {family: its Tests}, with p-values corrected for the number of claims in the family."""
    tested = {name: [Test(claim, sweeps, seeds) for claim in family] for name, family in families.items()}
    for tests in tested.values():
        ps = corrected([1.0 if math.isnan(test.p) else test.p for test in tests])      # claims that are open count too
        for test, p in zip(tests, ps):
            test.p = math.nan if test.open else p
    return tested


def signed(x):
    return f'{x:+.3f}'.replace('-', '−')


def interval(low, high):
    return f'[{signed(low)}, {signed(high)}]' if math.isfinite(low) else '(no interval)'


def pvalue(p):
    return '–' if math.isnan(p) else '< 0.001' if p < 0.001 else f'{p:.2g}'
