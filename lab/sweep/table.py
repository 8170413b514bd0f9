"""
Tabulate a sweep: runs.csv has a row for each run, and all tables, as pandas frames, come from these rows alone.
"""
import math
import os
import re
from statistics import fmean

import numpy as np
import pandas as pd

from engine.checkpoint import write_whole
from lab.sweep.statistics import contrast, corrected, rate_sensitivity, samples, tolerance

LR = 'learning_rate'
TUNING_SEED = 1                 # its validation losses choose a row's learning rate; no comparison uses it
SPLITS = dict(val='validation', test='test')
STATUS = ('done', 'diverged', 'failed')
# the columns of runs.csv after the axes and the seed
CELLS = ('status', 'iterations', 'parameters', 'tokens_per_iteration', 'val_losses', 'val_loss', 'test_loss', 'largest_rise',
         'code', 'data', 'keys', 'commit', 'machine', 'attention_kernel', 'precision', 'torch', 'seconds')
NUMBERS = ('iterations', 'parameters', 'tokens_per_iteration', 'val_loss', 'test_loss', 'largest_rise', 'seconds')
POINT = ('tuning_loss', 'val_loss', 'standard_error', 'test_loss', 'test_standard_error', *STATUS)      # of table.csv
COLUMNS = {*CELLS, *POINT}      # names that an axis cannot have
ORIGIN = dict(code='codes', torch='versions of PyTorch', data='data sets', precision='precisions')


# ----------------------------------------------------------------------------- runs.csv

def name_of(labels):
    """Return the name of a run's folder, made of its place on the axes."""
    return re.sub(r'[^\w.,=+-]', '_', ','.join(f'{axis}={label}' for axis, label in labels.items() if label))


def row_name(labels):
    return ','.join(f'{axis}={label}' for axis, label in labels.items())


def canonical(label):
    """Return the same text for all spellings of a value: a spreadsheet turns 0.01 into 1E-02, and True into TRUE."""
    try:
        return repr(float(label))
    except ValueError:
        return {'TRUE': 'True', 'FALSE': 'False'}.get(label, label)


def key_of(labels):
    """Return what identifies a run within its sweep: its place on the axes, with its seed."""
    return frozenset((axis, canonical(label)) for axis, label in labels.items() if label != '')


def axes_of(runs):
    return [name for name in runs if name not in CELLS and name not in (LR, 'seed') and not name.startswith('_')]


def labels_of(row):
    """Return the place on the axes of a runs.csv row, with its learning rate and seed."""
    return {name: str(label) for name, label in row.items() if name not in CELLS and not name.startswith('_') and label != ''}


def read_csv(path):
    """Return the rows of a runs.csv as texts, or none if there is no file. Raise ValueError for another file."""
    if not os.path.exists(path):
        return pd.DataFrame(columns=['seed', *CELLS], dtype=str)
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding='utf-8-sig')
        if missing := [name for name in ('seed', *CELLS) if name not in rows]:
            raise ValueError(f'it has no column {missing[0]!r}')
        if rows.empty or not isinstance(rows.index, pd.RangeIndex):
            raise ValueError('it has no rows, or more cells than columns')
    except ValueError as error:
        raise ValueError(f'{path} is damaged, or not the runs.csv of a sweep: {error}') from error
    return rows


def write_csv(path, rows):
    axes = [name for name in rows if name not in ('seed', *CELLS)]
    write_text(path, rows[[*axes, 'seed', *CELLS]].to_csv(index=False, lineterminator='\r\n'))


def write_text(path, text):
    write_whole(path, lambda f: f.write(text.encode()))


def read_runs(path, *rule):
    """Return the runs of a runs.csv, see runs_of. Raise ValueError if the file is missing."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}')
    return runs_of(read_csv(path), path, *rule)


def runs_of(rows, path, diverged_loss=0.0, diverged_rise=0.0):
    """Convert rows of runs.csv: numbers to numbers, the learning rate to `_rate`, validation losses to `_curve`, [(iteration,
    loss)], and labels to their first spelling. Runs that end above diverged_loss, or whose largest rise exceeds diverged_rise,
    count as diverged too; 0: no limit. Raise ValueError for rows that cannot be of one sweep."""
    runs = rows.reset_index(drop=True)
    if LR not in runs:
        runs[LR] = ''
    try:
        for name in (*NUMBERS, 'seed'):
            runs[name] = pd.to_numeric(runs[name])
        runs['_rate'] = pd.to_numeric(runs[LR])
        runs['_curve'] = [[(int(it), float(loss)) for it, _, loss in (pair.partition(':') for pair in text.split())]
                          for text in runs.val_losses]
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    for axis in (*axes_of(runs), LR):
        runs[axis] = runs.groupby(runs[axis].map(canonical))[axis].transform('first')
    faults = {f'has a status that is none of {", ".join(STATUS)}': ~runs.status.isin(STATUS),
              'has no seed, or no seconds': runs[['seed', 'seconds']].isna().any(axis=1),
              'is done and has no val_loss': (runs.status == 'done') & ~(np.isfinite(runs.val_loss) & (runs.val_losses != '')),
              'is there twice': runs.duplicated([*axes_of(runs), LR, 'seed'])}
    for fault, has_it in faults.items():
        for labels in map(labels_of, runs[has_it].to_dict('records')):
            raise ValueError(f'{path}: the run {row_name(labels)} {fault}')
    if (runs[LR] == '').nunique() > 1:
        raise ValueError(f'{path}: some runs have a {LR} and others have none')
    check_origin(runs[runs.status != 'failed'], path)
    high = (runs.val_loss > (diverged_loss or math.inf)) | (runs.largest_rise > (diverged_rise or math.inf))
    runs.loc[(runs.status == 'done') & high, 'status'] = 'diverged'
    return runs


def check_origin(runs, path):
    """Raise ValueError if runs have different code or PyTorch versions, or different data sets or precisions that no axis
    separates. `dataset` and `dtype` separate them if each label has a single value."""
    def are_apart(what, axis):
        return runs.groupby(axis)[what].nunique().max() == runs.groupby(what)[axis].nunique().max() == 1

    for what, name in ORIGIN.items():
        axes = axes_of(runs) if what in ('data', 'precision') else []
        if runs[what].nunique() > 1 and not any(are_apart(what, axis) for axis in axes):
            raise ValueError(f'{path} has runs of several {name} ({", ".join(sorted(set(runs[what])))}), which are never '
                             f'averaged: move the rows of all but one into another file')


def by_key(runs):
    """Return {key_of a run: the run as a dict}."""
    return {key_of(labels_of(run)): run for run in runs.to_dict('records')}


def split_of(runs):
    """Return the split whose losses a table shows: 'test' if every finished run has a test loss, else 'val'."""
    losses = runs.test_loss[runs.status == 'done']
    return 'test' if len(losses) and losses.notna().all() else 'val'


# ----------------------------------------------------------------------------- rows of the table

def loss_text(counted, runs, split):
    """Return the mean loss of the counted runs that are done, and how many of all runs diverged or failed."""
    mean, error = mean_loss(counted, split)
    parts = [f'{mean:.3f}' + (f' ± {error:.3f}' if error == error else '')] if mean == mean else []
    lost = [(status, sum(runs.status == status)) for status in STATUS[1:]]
    return ', '.join([*parts, *(f'{status} {number}/{len(runs)}' for status, number in lost if number)])


def mean_loss(runs, split):
    """Return the mean loss of the runs that are done, and its standard error; NaN without such runs."""
    losses = runs[f'{split}_loss'][runs.status == 'done'].dropna()
    return fmean(losses) if len(losses) else math.nan, losses.sem()


class Row:
    """The runs that differ only in learning rate and seed.

    If there are several `rates`, which are texts in ascending order, TUNING_SEED's runs are `tuning`: the one with the lowest
    validation loss has the `best` rate. The other seeds are `compared` at that rate. TUNING_SEED is `counted` in the shown mean
    only if it is alone. With a single rate, all seeds are in all of these, unless TUNING_SEED chose the rate in another sweep.
    """

    def __init__(self, labels, runs, seed_1_chose=False):
        self.labels, self.runs = labels, runs.sort_values('_rate', kind='stable')
        self.rates = [*self.runs[LR].unique()]
        several = len(self.rates) > 1
        self.tuning = self.runs[self.runs.seed == TUNING_SEED] if several else self.runs
        done = self.tuning[self.tuning.status == 'done']
        self.best = done[LR][done.val_loss.idxmin()] if len(done) else [*self.tuning[LR], *self.rates][0]
        self.at_best = self.runs[self.runs[LR] == self.best]
        self.compared = self.at_best[self.at_best.seed != TUNING_SEED] if several or seed_1_chose else self.at_best
        self.counted = self.compared if len(self.compared) else self.at_best
        self.done = self.counted[self.counted.status == 'done']

    def __str__(self):
        return row_name(self.labels)

    def losses(self, split):
        """Return the final losses that may be compared."""
        return self.compared[f'{split}_loss'][self.compared.status == 'done'].tolist()

    def text(self, split):
        return loss_text(self.counted, self.at_best, split)

    def tuning_text(self, rate):
        """Return the validation loss that chooses the rate, with a star at the chosen rate."""
        runs = self.tuning[self.tuning[LR] == rate]
        star = ' *' * (len(self.rates) > 1 and rate == self.best and sum(runs.status == 'done') > 0)
        return loss_text(runs, runs, 'val') + star

    def is_at_edge(self):
        """Return whether the best of several rates is the lowest or highest, so that a better one may lie beyond."""
        ended = self.tuning[self.tuning.status != 'failed']
        chosen = ended[(ended[LR] == self.best) & (ended.status == 'done')]
        return len(self.rates) > 1 and len(chosen) > 0 and self.best in (ended[LR].iloc[0], ended[LR].iloc[-1])

    def rate_text(self):
        return self.best + ' (edge)' * self.is_at_edge()

    def rate_cells(self, most):
        """Return rate sensitivity and tolerance in octaves, from TUNING_SEED's validation losses, as texts; '' unless runs at
        several rates have all ended. Add the number of rates if it is below `most`. The initial loss is the mean over the
        rates."""
        starts = [curve[0][1] for curve in self.tuning._curve if curve and curve[0][0] == 0]
        if len(self.rates) == 1 or not starts or len(self.tuning) < len(self.rates) or 'failed' in set(self.tuning.status):
            return '', ''
        fewer = f' ({len(self.rates)} rates)' if len(self.rates) < most else ''
        losses = self.tuning.val_loss.tolist(), fmean(starts)
        octaves, is_open = tolerance(self.tuning._rate.tolist(), *losses)
        return (f'{rate_sensitivity(*losses):.3f}{fewer}',
                '≥ ' * is_open + f'{octaves:.1f}{fewer}' if octaves == octaves else '')

    def curve(self):
        """Return [(iteration, mean validation loss)] of the runs that count."""
        return [(points[0][0], fmean(loss for _, loss in points)) for points in zip(*self.done._curve)]

    def reaches(self, loss):
        """Return the iteration at which the mean validation loss falls to `loss`, interpolating linearly between
        evaluations."""
        curve = self.curve()
        for (it0, loss0), (it1, loss1) in zip(curve, curve[1:]):
            if loss0 > loss >= loss1:
                return it0 + (loss0 - loss) / (loss0 - loss1) * (it1 - it0)
        return math.inf


def rows_of(runs, seed_1_chose=False):
    """Return the Rows of runs."""
    axes = axes_of(runs)
    groups = runs.groupby(axes, sort=False) if axes else [((), runs)] * (len(runs) > 0)
    return [Row({axis: label for axis, label in zip(axes, labels) if label}, group, seed_1_chose) for labels, group in groups]


def find_row(rows, wanted, key='against'):
    """Return the one row whose labels are those in 'axis=value,…'."""
    matches = []
    for row in rows:
        rest = wanted
        for axis, label in row.labels.items():
            rest = rest.replace(f'{axis}={label}', '', 1)
        if wanted and not rest.strip(','):
            matches.append(row)
    if len(matches) != 1:
        raise ValueError(f'{key}={wanted!r} names {len(matches)} rows of the table, wants one of: {"; ".join(map(str, rows))}')
    return matches[0]


# ----------------------------------------------------------------------------- comparisons

ESTIMATE = ['difference', 'seeds', 'p', 'corrected p', 'detectable']
RATE_HEAD = ['rate sensitivity', 'tolerance in octaves']


def cells_of(estimates):
    """Return {column of ESTIMATE: cell} for each difference, with empty cells for None or a difference without seeds."""
    ps = iter(corrected([e.p for e in estimates if e and e.n]))
    cells = [[f'{e.mean:+.3f}' + (f' [{e.low:+.3f}, {e.high:+.3f}]' if e.low == e.low else ''), str(e.n), f'{e.p:.2g}',
              f'{next(ps):.2g}', f'{e.detectable:.3f}'] if e and e.n else [''] * len(ESTIMATE) for e in estimates]
    return [dict(zip(ESTIMATE, line)) for line in cells]


def samples_of(rows, split):
    """Return {row: Sample of the losses that may be compared, at its best rate}. Moderate variances over the rows of one
    optimizer and size: the axes optim and size, or without a size axis the number of parameters, rounded to one digit."""
    groups = {}
    for row in rows:
        parameters = f'{row.done.parameters.iloc[0]:.1g}' if len(row.done) else ''
        groups.setdefault((row.labels.get('optim'), row.labels.get('size', parameters)), []).append(row)
    return {row: sample for group in groups.values()
            for row, sample in zip(group, samples([row.losses(split) for row in group]))}


def compare(rows, base, split):
    """Return {column: cell} for each row, at its best rate, with its difference from the row `base`."""
    known = samples_of(rows, split)
    compared = [row is not base and len(row.done) and len(base.done) for row in rows]
    found = cells_of([contrast({row: 1, base: -1}, known) if yes else None for row, yes in zip(rows, compared)])
    for cells, row, yes in zip(found, rows, compared):
        reached = row.reaches(mean_loss(base.done, 'val')[0]) if yes else math.inf
        share = f'{reached:.0f} ({reached / base.curve()[-1][0]:.0%})' if reached < math.inf else 'not reached'
        cells['iterations to its loss'] = share if yes else ''
    return found


def read_contrast(text, find):
    """Parse 'ROW - ROW - ROW + ROW' into {row: weight}; find(text) returns a row."""
    first, *rest = re.split(r'\s+([+-])\s+', text.strip())
    terms = [(1, first), *zip(({'+': 1, '-': -1}[sign] for sign in rest[::2]), rest[1::2])]
    if sum(sign for sign, _ in terms):
        raise ValueError(f'contrast={text!r}: wants as many rows with + as with -, as in ROW - ROW or ROW - ROW - ROW + ROW')
    weights = {}
    for sign, name in terms:
        row = find(name)
        weights[row] = weights.get(row, 0) + sign
    return weights


def read_contrasts(text, rows):
    """Parse 'ROW - ROW; ROW - ROW - ROW + ROW' into {contrast's text: {row: weight}}."""
    return {one: read_contrast(one, lambda name: find_row(rows, name, 'contrast'))
            for one in map(str.strip, text.split(';')) if one}


# ----------------------------------------------------------------------------- tables

def make_tables(runs, select='all', against='', contrasts=''):
    """Return the caption and the tables, which are frames of texts."""
    rows, split = rows_of(runs), split_of(runs)
    rates, most = runs.sort_values('_rate')[LR].unique(), max(len(row.rates) for row in rows)
    wide, name = most > 1 and select == 'all', SPLITS[split]
    columns = [axis for axis in axes_of(runs) if (runs[axis] != '').any()]
    columns += [f'lr {rate}' for rate in rates] if wide else [LR] if rates[0] else []
    columns += [f'{name} loss', *(RATE_HEAD if most > 1 and not wide else [])]
    lines = [{**row.labels, **{f'lr {rate}': row.tuning_text(rate) for rate in row.rates}, LR: row.rate_text(),
              f'{name} loss': row.text(split), **dict(zip(RATE_HEAD, row.rate_cells(most)))} for row in rows]
    if against:
        found = compare(rows, find_row(rows, against), split)
        lines = [{**line, **cells} for line, cells in zip(lines, found)]
        columns += found[0]
    tables = [pd.DataFrame(lines, columns=columns).fillna('')]
    if read := read_contrasts(contrasts, rows):
        known = samples_of(rows, split)
        cells = cells_of([contrast(weights, known) for weights in read.values()])
        tables.append(pd.DataFrame([{'contrast': text, **line} for text, line in zip(read, cells)]))
    caption = [f'{name} loss at the end, mean ± standard error over seeds']
    if most > 1:
        caption += [f'seed {TUNING_SEED} chose the rates by validation loss' + ' (in their columns, * the lowest)' * wide
                    + ', and counts only where it is alone']
    caption += ['(edge) no rate beyond the best was tried'] if rates[0] and not wide else []
    ended = runs[runs.status != 'failed']
    caption += [f'rows are of several {name}' for what, name in ORIGIN.items() if ended[what].nunique() > 1]
    caption = '; '.join([*caption, f'{runs.seconds.sum() / 3600:.2f} hours of runs'])
    if against or read:
        caption += ('\ndifference: of means, with its 95% interval; corrected p: Benjamini-Hochberg over the table; '
                    'detectable: the smallest true difference that is found with 80% power')
    return caption, tables


def as_text(table):
    """Return a frame of texts as plain text and as Markdown."""
    head, *lines = [[*table], *table.values.tolist()]
    widths = [max(map(len, column)) for column in zip(head, *lines)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in (head, *lines)]
    return ('\n'.join('  '.join(line).rstrip() for line in padded),
            '\n'.join('| ' + ' | '.join(cell.replace('|', r'\|') for cell in line) + ' |'
                      for line in (head, ['---'] * len(head), *lines)))


def table_csv(rows):
    """Return the text of table.csv: a line for each learning rate of each row. If several rates were tried, tuning_loss is
    TUNING_SEED's validation loss, and the other losses are those of the other seeds."""
    lines = []
    for row in rows:
        for rate, runs in row.runs.groupby(LR, sort=False):
            several = len(row.rates) > 1
            others = runs[runs.seed != TUNING_SEED] if several else runs
            tuning = mean_loss(runs[runs.seed == TUNING_SEED], 'val')[0] if several else math.nan
            numbers = (tuning, *mean_loss(others, 'val'), *mean_loss(others, 'test'), *(sum(runs.status == s) for s in STATUS))
            lines.append({**row.labels, **({LR: rate} if rate else {}), **dict(zip(POINT, numbers))})
    axes = dict.fromkeys(name for line in lines for name in line if name not in POINT)
    table = pd.DataFrame(lines, columns=[*axes, *POINT])
    return table.fillna(dict.fromkeys(axes, '')).to_csv(index=False, na_rep='nan')


def write_report(runs, caption, tables, folder=''):
    """Print the tables, and write them and a picture into the folder, if one is given."""
    texts, markdowns = zip(*map(as_text, tables))
    print(f'\n{caption}\n\n' + '\n\n'.join(texts) + '\n')
    if folder:
        os.makedirs(folder, exist_ok=True)
        write_text(os.path.join(folder, 'table.txt'), '\n\n'.join(texts) + '\n')
        write_text(os.path.join(folder, 'table.md'), '\n\n'.join(markdowns) + '\n')
        write_text(os.path.join(folder, 'table.csv'), table_csv(rows_of(runs)))
        if 'done' in set(runs.status):
            from lab.plot import draw
            draw('sweep', [folder], os.path.join(folder, 'sweep.png'))
