"""Tabulate a sweep: runs.csv has a row for each run, and all tables, as pandas frames, come from these rows alone."""
import math
import os
import re
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import polygamma, psi
from scipy.stats import false_discovery_control, t

NEAR = 0.01                     # nats: points as close to the best one get the other tuning seeds too
SPLITS = dict(val='validation', test='test')
# the columns of runs.csv after the axes and the seed
CELLS = ('status', 'iterations', 'parameters', 'tokens_per_iteration', 'val_losses', 'val_loss', 'test_loss', 'largest_rise',
         'code', 'data', 'keys', 'commit', 'machine', 'attention_kernel', 'precision', 'torch', 'seconds')
NUMBERS = ('seed', 'iterations', 'parameters', 'tokens_per_iteration', 'val_loss', 'test_loss', 'largest_rise', 'seconds')
ORIGIN = dict(code='codes', torch='versions of PyTorch', data='data sets', precision='precisions')


class Tuning(NamedTuple):
    """How a sweep's rows are tuned. `keys`: those whose values are chosen. `seeds`: seeds 1 to this number choose them.
    `elsewhere`: they did so in another sweep, so that no comparison here uses them."""
    keys: tuple = ('learning_rate',)
    seeds: int = 1
    elsewhere: bool = False

    @classmethod
    def of(cls, keys):
        """Return the Tuning that the keys of lab.sweep state."""
        return cls((*filter(None, keys['tuned'].split(',')),), keys['tuning_seeds'], keys['tuned_elsewhere'])

    def choose(self, runs):
        """Return the chosen point, the point of seed 1's lowest validation loss, and the (point, seed) that must train before the
        choice is final. `runs`: {point: its runs}. Seed 1's lowest loss chooses. With several tuning seeds, points within NEAR of
        it need them all, and the lowest mean chooses. Both points are None if all of seed 1's runs diverged."""
        losses = {point: {int(run['seed']): run['val_loss'] if run['status'] == 'done' else math.inf for run in at}
                  for point, at in runs.items()}
        losses = {point: by_seed for point, by_seed in losses.items() if by_seed.get(1, math.inf) < math.inf}
        if not losses:
            return None, None, []
        lowest = min(losses, key=lambda point: losses[point][1])
        near = [point for point in losses if losses[point][1] <= losses[lowest][1] + NEAR] if self.seeds > 1 else [lowest]
        seeds = range(1, self.seeds + 1) if len(near) > 1 else [1]
        missing = [(point, seed) for point in near for seed in seeds if seed not in losses[point]]
        best = lowest if missing else min(near, key=lambda point: fmean(losses[point][seed] for seed in seeds))
        return best, lowest, missing


# ----------------------------------------------------------------------------- runs.csv

def row_name(labels):
    return ','.join(f'{axis}={label}' for axis, label in labels.items() if label)


def canonical(label):
    """Return the same text for all spellings of a value: '8e-3' and '0.008'."""
    try:
        return repr(float(label))
    except ValueError:
        return label


def key_of(run):
    """Return what identifies a row of runs.csv, or a run by its labels: its place on the axes, with its seed."""
    return frozenset((axis, canonical(str(label))) for axis, label in run.items() if axis not in CELLS and label != '')


def axes_of(runs):
    return [name for name in runs if name not in ('seed', *CELLS)]


def read_csv(path):
    """Return the rows of a runs.csv as texts, or none if there is no file. Rows of failed runs are from earlier versions."""
    if not os.path.exists(path):
        return pd.DataFrame(columns=['seed', *CELLS], dtype=str)
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    if missing := {'seed', *CELLS} - {*rows}:
        raise ValueError(f'{path} is not the runs.csv of a sweep: it has no column {min(missing)!r}')
    return rows[rows.status != 'failed']


def runs_of(rows, path, diverged_loss=0.0, diverged_rise=0.0, codes='', **_):
    """Convert rows of runs.csv: numbers to numbers, and labels to their first spelling. The last arguments are keys of lab.sweep.
    Raise ValueError for rows that cannot be of one sweep."""
    runs, axes = rows.reset_index(drop=True), axes_of(rows)
    for name in NUMBERS:
        runs[name] = pd.to_numeric(runs[name])
    for axis in axes:
        runs[axis] = runs.groupby(runs[axis].map(canonical))[axis].transform('first')
    if (twice := runs.duplicated([*axes, 'seed'])).any():
        raise ValueError(f'{path}: the run {row_name(runs[twice].iloc[0][[*axes, "seed"]])} is there twice')
    check_origin(runs, path, codes)
    high = (runs.val_loss > (diverged_loss or math.inf)) | (runs.largest_rise > (diverged_rise or math.inf))
    runs.loc[(runs.status == 'done') & high, 'status'] = 'diverged'
    return runs


def check_origin(runs, path, codes):
    """Raise ValueError if runs have different code or PyTorch versions, or different data sets or precisions, unless an axis such
    as `dataset` has one of these for each label. Codes named in `codes` count as one, and None as any."""
    for what, name in ORIGIN.items():
        found = {*runs[what].dropna()}
        apart = what in ('data', 'precision') and any(
            runs.groupby(axis)[what].nunique().max() == runs.groupby(what)[axis].nunique().max() == 1 for axis in axes_of(runs))
        if len(found) > 1 and not apart and not (what == 'code' and found <= {*codes.split(',')}):
            raise ValueError(f'{path} has runs of several {name} ({", ".join(sorted(found))}), which are never averaged: choose '
                             'another --csv' + ', or name codes that repeat a run digit by digit in codes' * (what == 'code'))


# ----------------------------------------------------------------------------- rows of the table

class Row:
    """The runs that differ only in the tuned keys and the seed. `points`: {values of the tuned keys: its runs}, ascending.
    `best`: the point that the tuning seeds chose. `compared`: the other seeds there, or all seeds if there was no choice. They
    are shown, or all that is there while they are missing. `first`: seed 1's runs, which chose among several points. `spread`:
    the variance of a loss, its degrees of freedom, and the group of rows that it comes from, see moderate()."""
    spread = None

    def __init__(self, labels, runs, tuning, split):
        self.labels, self.split, self.keys = labels, split, [key for key in tuning.keys if key in runs]
        self.runs = runs.sort_values(self.keys, key=pd.to_numeric, kind='stable') if self.keys else runs
        self.points = dict([*self.runs.groupby(self.keys, sort=False)]) if self.keys else {(): runs}
        several = len(self.points) > 1
        self.first = self.runs[self.runs.seed == 1] if several else self.runs
        chosen, *_ = tuning.choose({point: at.to_dict('records') for point, at in self.points.items()})
        self.best = next(iter(self.points)) if chosen is None or not several else chosen
        self.at_best = self.points[self.best]
        self.compared = self.at_best[self.at_best.seed > tuning.seeds] if several or tuning.elsewhere else self.at_best
        self.shown = self.compared if len(self.compared) else self.at_best

    def __str__(self):
        return row_name(self.labels)

    def losses(self, runs=None):
        """Return the final losses of runs that are done; without `runs`, those that may be compared."""
        runs = self.compared if runs is None else runs
        return runs[f'{self.split}_loss'][runs.status == 'done'].dropna()

    def text(self):
        """Return the mean loss of the runs that are shown, and how many at the point diverged."""
        losses, lost = self.losses(self.shown), sum(self.at_best.status == 'diverged')
        mean = [f'{fmean(losses):.3f}' + (f' ± {losses.sem():.3f}' if len(losses) > 1 else '')] if len(losses) else []
        return ', '.join(mean + [f'diverged {lost}/{len(self.at_best)}'] * (lost > 0))

    def is_at_edge(self):
        """Return whether a tuned key has the lowest or highest of its values that seed 1 tried."""
        tried = self.first[self.keys].astype(float)
        ends = zip(self.best, tried.min(), tried.max())
        return any(low < high and float(value) in (low, high) for value, low, high in ends)

    def rate_cells(self):
        """Return Wortsman's rate sensitivity and the tolerance in octaves, as texts, from seed 1's validation losses at all rates
        beside the best point; '' unless runs at several rates have all ended."""
        rates = {float(point[-1]): runs[runs.seed == 1] for point, runs in self.points.items()
                 if self.keys and point[:-1] == self.best[:-1]}
        runs = pd.concat(rates.values()) if len(rates) > 1 else self.runs[:0]
        starts = [float(text.split()[0][2:]) for text in runs.val_losses if text.startswith('0:')]
        if not starts or len(runs) < len(rates):
            return '', ''
        losses = np.fmin(runs.val_loss.to_numpy(), fmean(starts))       # fmin: a run that train.py stopped has NaN
        width, is_open = tolerance([*rates], losses)
        return f'{losses.mean() - losses.min():.3f}', '≥ ' * is_open + f'{width:.1f}'


def tolerance(rates, losses, slack=0.1):
    """Return the width, in octaves, of the interval of learning rates around the best one in which the loss, interpolated
    linearly in log rate, is at most the lowest loss + slack, and whether it reaches an end of the grid. `rates`: ascending."""
    x, best, limit = np.log2(rates), losses.argmin(), losses.min() + slack

    def reach(x, losses):                               # from the best rate outwards
        for a, b, at_a, at_b in zip(x, x[1:], losses, losses[1:]):
            if at_b > limit:
                return a + (b - a) * (limit - at_a) / (at_b - at_a), False
        return x[-1], True

    (high, open_above), (low, open_below) = reach(x[best:], losses[best:]), reach(x[best::-1], losses[best::-1])
    return high - low, open_above or open_below


def rows_of(runs, tuning=Tuning(), split='val'):
    """Return the Rows of runs, and compare their losses of a split."""
    axes = [name for name in axes_of(runs) if name not in tuning.keys]
    groups = runs.groupby(axes, sort=False) if axes else [((), runs)] * (len(runs) > 0)
    return [Row({axis: label for axis, label in zip(axes, labels) if label}, group, tuning, split)
            for labels, group in groups]


def find_row(rows, wanted, key='against'):
    """Return the one row whose labels are those in 'axis=value,…'."""
    matches = [row for row in rows if wanted and sorted(str(row).split(',')) == sorted(wanted.split(','))]
    if len(matches) != 1:
        raise ValueError(f'{key}={wanted!r} names {len(matches)} rows of the table: must be one of {"; ".join(map(str, rows))}')
    return matches[0]


# ----------------------------------------------------------------------------- comparisons

class Estimate(NamedTuple):
    mean: float
    low: float = math.nan           # of the 95% interval
    high: float = math.nan
    p: float = math.nan             # two-sided, against zero
    n: int = 0                      # the fewest losses behind a mean
    error: float = math.nan         # the standard error
    df: float = math.nan            # its degrees of freedom


def moderate(rows):
    """Set the `spread` of rows. Few seeds say little about a row's variance s², with d degrees of freedom. It is shrunk towards
    the s₀² of all rows of its optimizer and size, which is worth d₀, and the more these agree, the further (Smyth 2004):
    (d₀ s₀² + d s²)/(d₀ + d), with d₀ + d degrees of freedom, at most those of all rows. Let e = ln s² − ψ(d/2) + ln(d/2). Then
    ψ′(d₀/2) = var(e) − mean ψ′(d/2), with d₀ = ∞ unless this is above 0, and ln s₀² = mean(e) + ψ(d₀/2) − ln(d₀/2)."""
    groups = {}
    for row in rows:
        if row.losses().var() > 0:
            size = row.labels.get('size', f'{row.shown.parameters.iloc[0]:.1g}')
            groups.setdefault((row.labels.get('optim'), size), []).append(row)
    for group in groups.values():
        s2, d = np.array([(np.var(row.losses().to_numpy(), ddof=1), len(row.losses()) - 1) for row in group]).T
        if len(group) > 1:
            e = np.log(s2) - psi(d / 2) + np.log(d / 2)
            excess = e.var(ddof=1) - polygamma(1, d / 2).mean()
            if excess > 0:
                d0 = 2 * brentq(lambda x: polygamma(1, x) - excess, 1e-8, 1 / excess + 1)   # ψ′(x) is between 1/x and 1/x + 1/x²
                s0 = np.exp(e.mean() + psi(d0 / 2) - np.log(d0 / 2))
                s2, d = (d0 * s0 + d * s2) / (d0 + d), np.minimum(d0 + d, d.sum())
            else:
                s2, d = np.full(len(group), np.exp(e.mean())), np.full(len(group), d.sum())
        for row, variance, df in zip(group, s2.tolist(), d.tolist()):
            row.spread = variance, df, tuple(group)


def contrast(weights):
    """Estimate Σ w m over {row: weight w}, for the means m of independent losses, by Welch's t-test. Its variance is V = Σ v, v =
    w² s²/n, with V²/Σ(v²/df) degrees of freedom (Satterthwaite 1946). Rows that share a variance form one term of the latter sum,
    which gives at most the degrees of freedom of all rows behind the variances. A row without a variance gives an Estimate
    without an interval."""
    losses = {row: row.losses() for row, weight in weights.items() if weight}
    n = min(map(len, losses.values()), default=0)
    mean = math.fsum(weights[row] * fmean(losses[row]) for row in losses) if n else math.nan
    if not n or not all(row.spread for row in losses):
        return Estimate(mean, n=n)
    parts = dict.fromkeys((row.spread for row in losses), 0.0)          # {(variance, df, group): v}
    for row in losses:
        parts[row.spread] += weights[row] ** 2 * row.spread[0] / len(losses[row])
    variance = math.fsum(parts.values())
    df, error = variance ** 2 / math.fsum(v ** 2 / df for (_, df, _), v in parts.items()), math.sqrt(variance)
    df = min(df, sum(len(row.losses()) - 1 for row in {row for *_, group in parts for row in group}))
    low, high = t.interval(0.95, df, mean, error)
    return Estimate(mean, low, high, float(2 * t.sf(abs(mean) / error, df)), n, error, df)


def corrected(p_values):
    """Correct p-values as Benjamini and Hochberg 1995 do, in the given order. NaN stays NaN and does not count."""
    p = np.array(p_values, float)
    tested = ~np.isnan(p)
    p[tested] = false_discovery_control(p[tested]) if tested.any() else []
    return p.tolist()


def read_contrast(text, find):
    """Parse 'ROW - ROW' or 'ROW - ROW - ROW + ROW' into {row: weight}; find(text) returns a row."""
    first, *rest = re.split(r'\s+([+-])\s+', text.strip())
    weights = {}
    for sign, name in ('+', first), *zip(rest[::2], rest[1::2]):
        row = find(name)
        weights[row] = weights.get(row, 0) + (1 if sign == '+' else -1)
    if sum(weights.values()):
        raise ValueError(f'contrast={text!r}: must have as many rows with + as with -, as in ROW - ROW or ROW - ROW - ROW + ROW')
    return weights


def interval(e):
    """Return an Estimate as '−0.123 [−0.150, −0.096]'."""
    return (f'{e.mean:+.3f} ' + (f'[{e.low:+.3f}, {e.high:+.3f}]' if e.low == e.low else '(no interval)')).replace('-', '−')


def cells_of(estimates):
    """Return {column: cell} for each difference, with no cells for None or a difference without seeds."""
    ps = corrected([e.p if e else math.nan for e in estimates])
    return [{'difference': interval(e), 'n': str(e.n), 'p': f'{e.p:.2g}', 'corrected p': f'{p:.2g}'} if e and e.n else {}
            for e, p in zip(estimates, ps)]


class Results:
    """The `runs` and `rows` of a sweep's csv, and the `split` whose losses its table shows: the test split, if every finished run
    has a test loss. `keys`: those of lab.sweep. Rows are in the order of its grids, and others behind them by name."""

    def __init__(self, path, keys):
        self.runs = runs_of(read_csv(path), path, **keys)
        losses = self.runs.test_loss[self.runs.status == 'done']
        self.split = 'test' if len(losses) and losses.notna().all() else 'val'
        order = {axis: [canonical(str(label)) for grid in keys['grids'] for label in grid.get(axis, ())]
                 for axis in axes_of(self.runs)}

        def place(row):
            labels = {axis: canonical(row.labels.get(axis, '')) for axis in order}
            return [(order[axis].index(label) if label in order[axis] else math.inf, label) for axis, label in labels.items()]

        self.rows = sorted(rows_of(self.runs, Tuning.of(keys), self.split), key=place)
        moderate(self.rows)

    def tables(self, against='', contrasts=''):
        """Return frames of texts: the rows, and the contrasts if there are any."""
        lines = []
        for row in self.rows:
            lines.append(line := row.labels | dict(zip(row.keys, row.best)))
            if row.is_at_edge():
                line[row.keys[-1]] += ' (edge)'
            line |= {f'{SPLITS[self.split]} loss': row.text(), 'seeds': seeds_text(row.shown.seed)}
            line['rate sensitivity'], line['tolerance in octaves'] = row.rate_cells()
        if against:
            base = find_row(self.rows, against)
            found = cells_of([contrast({row: 1, base: -1}) if row is not base else None for row in self.rows])
            lines = [{**line, **cells} for line, cells in zip(lines, found)]
        tables = [pd.DataFrame(lines)]
        if texts := [*filter(None, map(str.strip, contrasts.split(';')))]:
            found = [contrast(read_contrast(text, lambda name: find_row(self.rows, name, 'contrast'))) for text in texts]
            tables.append(pd.DataFrame([{'contrast': text, **cells} for text, cells in zip(texts, cells_of(found))]))
        return [table.loc[:, (table != '').any()] for table in (table.fillna('') for table in tables)]


def seeds_text(seeds):
    """Return seeds as '4 to 11', or as '8 from 7078336 to 261944053' if there are others between the first and the last."""
    low, high, n = min(seeds), max(seeds), len(seeds)
    return f'{low}' if n == 1 else f'{low} to {high}' if high - low == n - 1 else f'{n} from {low} to {high}'
