"""Rank the entries of a division: scores against `pre`, shrunk estimates, and the tables of results/track/README.md."""
import math
import os
from statistics import NormalDist, fmean, stdev

import numpy as np
import pandas as pd

from engine.errors import read_json
from lab.sweep.claims import interval, signed
from lab.sweep.statistics import LEVEL
from lab.sweep.table import TUNING_SEED, as_text, read_csv
from lab.track.entry import chosen

COLUMNS = ['rank', 'entry', 'test loss − pre', '95% interval', 'shrunk', 'sd of seeds', 'tolerance, octaves', 'parameters',
           'FLOPs / pre', 'time / pre', 'decay', 'rate', 'code', 'date']


def pooled(groups, noise=None):
    """Return the standard deviation of losses around the means of their groups, and its degrees of freedom. `noise`: the same of
    earlier runs, which count too."""
    sd, df = noise or (0.0, 0)
    squares = df * sd ** 2 + math.fsum((loss - fmean(losses)) ** 2 for losses in groups for loss in losses)
    df += sum(len(losses) - 1 for losses in groups)
    return math.sqrt(squares / df) if df else math.nan, df


def shrink(means, variances):
    """Return empirical Bayes estimates μ + τ²/(τ² + v_i) (m_i − μ) of θ_i, for means m_i ~ N(θ_i, v_i) and θ_i ~ N(μ, τ²). τ² is
    that of DerSimonian and Laird 1986, and μ the mean weighted by 1/(τ² + v_i)."""
    m, v = np.array(means), np.array(variances)
    w = 1 / v
    q = (w * (m - np.average(m, weights=w)) ** 2).sum()
    tau2 = max(0.0, (q - len(m) + 1) / (w.sum() - (w ** 2).sum() / w.sum())) if len(m) > 1 else 0.0
    mu = np.average(m, weights=1 / (tau2 + v))
    return (mu + tau2 / (tau2 + v) * (m - mu)).tolist()


class Line:
    """An entry's numbers. `losses`: the test losses of its confirming seeds. `open`: why these give no score, or ''."""

    def __init__(self, entry):
        self.entry, self.runs = entry, entry.runs()
        self.best = chosen(self.runs)
        self.losses, self.shrunk = self.best.losses('test'), math.nan
        confirming = sum(self.runs.seed != TUNING_SEED)
        lost, left = confirming - len(self.losses), entry.wanted - confirming
        self.open = f'open: {lost} seeds diverged' if lost else f'open: {left} seeds left' if left else ''
        self.measured = read_json(entry.path('measured.json'), 'measure it again by --time') or {}

    def cells(self, pre):
        row, entry, flops = self.best, self.entry, [line.measured.get('flops_per_token') for line in (self, pre or self)]
        return {'entry': f'[{entry.name}]({entry.division.name}/{entry.name}/README.md)',
                'test loss − pre': self.open or 'open: pre has no score',
                'sd of seeds': '' if self.open else f'{stdev(self.losses):.3f}',
                'tolerance, octaves': row.rate_cells(0)[1], 'parameters': f'{self.runs.parameters.iloc[0]:,.0f}',
                'FLOPs / pre': f'{flops[0] / flops[1]:.2f}' if pre and all(flops) else '',
                'time / pre': f'{self.measured["time_ratio"]:.2f}' if self.measured else '', 'decay': row.labels['weight_decay'],
                'rate': row.best, 'code': f'`{self.runs.code.iloc[0]}`', 'date': entry.stated()['_date']}


def ranking(division):
    """Return the division's entries as lines {column: text}, those with a score in the order of their shrunk differences from pre
    and then the others; and the pooled standard deviation of a loss with its degrees of freedom."""
    lines = [Line(entry) for entry in division.entries()]
    scored = [line for line in lines if not line.open]
    sd, df = pooled([line.losses for line in scored], division.noise)
    pre = next((line for line in lines if line.entry.name == 'pre'), None)
    cells = {line: line.cells(pre) for line in lines}
    if pre not in scored:
        return [*cells.values()], sd, df
    estimates = shrink([fmean(line.losses) for line in scored], [sd ** 2 / len(line.losses) for line in scored])
    for line, estimate in zip(scored, estimates):
        line.shrunk, off = estimate - estimates[scored.index(pre)], fmean(line.losses) - fmean(pre.losses)
        half = NormalDist().inv_cdf(1 - LEVEL / 2) * sd * math.sqrt(1 / len(line.losses) + 1 / len(pre.losses))
        cells[line] |= {'test loss − pre': signed(off), '95% interval': interval(off - half, off + half),
                        'shrunk': signed(line.shrunk)}
    cells[pre] |= {'test loss − pre': f'0 (its loss: {fmean(pre.losses):.3f})', '95% interval': '', 'shrunk': '0'}
    scored = sorted(scored, key=lambda line: line.shrunk)
    ranked = [{'rank': str(rank), **cells[line]} for rank, line in enumerate(scored, 1)]
    return ranked + [cells[line] for line in lines if line.open], sd, df


def codes_of_pre(pre):
    """Return a sentence that names the codes on which pre repeats."""
    tested = {(str(run['seed']), run['learning_rate']): run['test_loss'] for run in pre.runs().to_dict('records')}
    own = {f'`{row.code}` (its own, commit {row.commit[:7]})': None for row in read_csv(pre.csv).itertuples()}
    others = [f'`{row.code}` (commit {row.commit[:7]}; seed {row.seed} is '
              f'{abs(float(row.test_loss) - tested[row.seed, row.learning_rate]):.4f} off)'
              for row in read_csv(pre.path('repeats.csv')).itertuples()]
    return f'`pre` repeats on the codes {", ".join([*own, *others])}.'


def division_table(division):
    """Return the table of a division and what it rests on, as Markdown."""
    lines, sd, df = ranking(division)
    left = ', '.join(name for name in (division.planned or '').split() if not os.path.exists(division.entry(name).csv))
    left = f'\n\nPlanned, and not run yet: {left}.' if left else ''
    if not lines:
        return f'*No entries yet.*{left}'
    pre = [codes_of_pre(entry) for entry in division.entries() if entry.name == 'pre'] or ['`pre` has not run.']
    noise = f'The pooled standard deviation of a test loss is {sd:.4f} ({df} degrees of freedom).' if df else ''
    return f'{as_text(pd.DataFrame(lines, columns=COLUMNS).fillna(""))[1]}\n\n{noise} {pre[0]}{left}'
