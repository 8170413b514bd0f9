"""
The numbers of a sweep: runs.csv has a row for each run, and the tables are made of these rows alone.
"""
import csv
import io
import itertools
import math
import os
import re
import statistics
from contextlib import suppress

from engine.checkpoint import write_whole
from engine.errors import last_iter, read_json, read_rows, read_table
from lab.statistics import contrast, corrected, rate_sensitivity, samples, tolerance

LR = 'learning_rate'
CHOOSER = '1'                   # the seed whose validation losses choose a row's learning rate, and which is in no comparison
SPLITS = dict(val='validation', test='test')
STATUS = ('done', 'diverged', 'failed')
RISE_ROWS = 5                   # logged losses whose mean counts in the largest rise


# ----------------------------------------------------------------------------- runs and runs.csv

def is_number(text):
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def number(text):
    if not is_number(text):
        raise ValueError(f'{text!r} is no finite number')
    return float(text)


def number_or_nan(text):
    """NaN for an empty cell"""
    return number(text) if text else math.nan


def read_status(text):
    if text not in STATUS:
        raise ValueError(f'status={text}: wants one of {", ".join(STATUS)}')
    return text


def read_curve(text):
    """'0:5.5 100:3.2' → [(0, 5.5), (100, 3.2)]"""
    return [(int(it), number(loss)) for it, _, loss in (pair.partition(':') for pair in text.split())]


# the columns of runs.csv behind the axes and the seed, and how the cells are read
CELLS = dict(status=read_status, iterations=number_or_nan, parameters=number_or_nan, tokens_per_iteration=number_or_nan,
             val_losses=read_curve, val_loss=number_or_nan, test_loss=number_or_nan, largest_rise=number_or_nan, code=str,
             data=str, keys=str, commit=str, machine=str, attention_kernel=str, precision=str, torch=str, seconds=number)
POINT = ('val_loss', 'standard_error', 'test_loss', 'test_standard_error', *STATUS)       # the columns of table.csv behind them
COLUMNS = {*CELLS, *POINT}


def digits(x):
    return f'{x:.6g}' if math.isfinite(x) else ''


def name_of(labels):
    """The folder of a run, from its place on the axes"""
    return re.sub(r'[^\w.,=+-]', '_', ','.join(f'{axis}={label}' for axis, label in labels.items() if label))


def labels_of(row):
    """The place on the axes of a row of runs.csv, without its seed"""
    return {axis: label for axis, label in row.items() if label and axis not in CELLS and axis != 'seed'}


def read_about(folder):
    return read_json(os.path.join(folder, 'run.json'), 'remove it') or {}


def row_of_run(run, folder, status):
    """The row of runs.csv, as texts, of a run that has ended in this folder. ValueError if it is done and has no loss."""
    about, rows = read_about(folder), read_rows(os.path.join(folder, 'log.jsonl'))
    evaluations = [row for row in rows if math.isfinite(row.get('val_loss', math.nan))]
    if status == 'done' and not evaluations:
        raise ValueError(f'{folder} has lost its log.jsonl: remove the folder, and its run will be trained again')
    last = evaluations[-1] if status == 'done' else {}
    per_iter = about.get('tokens_per_iter', about.get('images_per_iter', ''))
    return dict(
        run['labels'], status=status, iterations=str(max(0, last_iter(os.path.join(folder, 'log.jsonl')))),
        parameters=str(about.get('parameters', '')), tokens_per_iteration=str(per_iter),
        val_losses=' '.join(f'{row["iter"]}:{row["val_loss"]:.6g}' for row in evaluations),
        val_loss=digits(last.get('val_loss', math.nan)), test_loss=digits(last.get('test_loss', math.nan)),
        largest_rise=digits(largest_rise([row['loss'] for row in rows if 'loss' in row])), code=about.get('code', ''),
        data=about.get('data', ''), keys=run['keys'], commit=about.get('commit', '') + '-dirty' * bool(about.get('changed')),
        machine=about.get('machine', ''), attention_kernel=about.get('attention_backend', ''),
        precision=about.get('dtype', '').removeprefix('torch.'), torch=about.get('torch', ''),
        seconds=digits(training_seconds(rows, per_iter or 0)))


def largest_rise(losses):
    """How far the training loss, a mean over RISE_ROWS logged values, has risen above its lowest value before, at most: the
    height of a spike. NaN for fewer than two means."""
    means = [statistics.fmean(losses[i:i + RISE_ROWS]) for i in range(0, len(losses) - RISE_ROWS + 1, RISE_ROWS)]
    lowest = itertools.accumulate(means, min)
    return max((mean - low for mean, low in zip(means, lowest)), default=math.nan) if len(means) > 1 else math.nan


def training_seconds(rows, per_iter):
    """The time in iterations, by the logged speeds: a run that was interrupted counts as a whole, without its evaluations."""
    seconds, before = 0.0, -1
    for row in rows:
        per_s = row.get('tokens_per_s', row.get('images_per_s', 0))
        if per_s > 0:
            seconds, before = seconds + (row['iter'] - before) * per_iter / per_s, row['iter']
    return seconds


def judged(run, diverged_loss=0.0, diverged_rise=0.0):
    """The run. It counts as diverged too if it ends above diverged_loss or its largest rise is above diverged_rise; 0: any."""
    high = run['val_loss'] > (diverged_loss or math.inf) or run['largest_rise'] > (diverged_rise or math.inf)
    return {**run, 'status': 'diverged'} if run['status'] == 'done' and high else run


def runs_csv(rows):
    """runs.csv as text, of rows as row_of_run makes them."""
    axes = list(dict.fromkeys(axis for row in rows for axis in labels_of(row)))
    text = io.StringIO(newline='')
    table = csv.DictWriter(text, [*axes, 'seed', *CELLS], restval='')
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def read_csv(path):
    """The rows of a runs.csv as texts, [] if there is none. ValueError for another file."""
    def checked(kind):
        return lambda text: (kind(text), text)[1]

    kinds = {'seed': str, f'{LR}?': checked(number_or_nan), **{name: checked(kind) for name, kind in CELLS.items()}}
    return read_table(path, kinds, 'it is no runs.csv of a sweep') or []


def read_runs(path, *rule):
    """The runs of a runs.csv, see runs_of. ValueError if there is none."""
    rows = read_csv(path)
    if not rows:
        raise ValueError(f'there is no {path}')
    return runs_of(rows, *rule, path=path)


def runs_of(rows, *rule, path=''):
    """Rows of runs.csv, as dicts of `labels`, the `seed`, the `curve` [(iteration, validation loss)] and the cells. A `rule` is
    for `judged`. ValueError if the rows cannot be of one sweep."""
    runs = []
    for row in rows:
        labels = labels_of(row)
        cells = {name: kind(row[name]) for name, kind in CELLS.items()}
        if cells['status'] == 'done' and not (cells['val_losses'] and math.isfinite(cells['val_loss'])):
            raise ValueError(f'{path}: the run {name_of(labels)},seed={row["seed"]} is done and has no val_loss')
        runs.append(judged(dict(labels=labels, seed=row['seed'], curve=cells.pop('val_losses'), **cells), *rule))
    if len({LR in run['labels'] for run in runs}) > 1:
        raise ValueError(f'{path}: some runs have a {LR} and others have none')
    return runs


def split_of(runs):
    """The split whose losses a table shows: 'test' if every run that is done has such a loss, else 'val'"""
    losses = [run['test_loss'] for run in runs if run['status'] == 'done']
    return 'test' if losses and all(map(math.isfinite, losses)) else 'val'


# ----------------------------------------------------------------------------- points and rows of the table

def rank(runs):
    """Sorts learning rates, of which these are the runs: one at which some run was done comes first, then one with fewer failed
    and diverged runs, then one with the lower mean validation loss."""
    done = [run['val_loss'] for run in runs if run['status'] == 'done']
    return (not done, len(runs) - len(done), statistics.fmean(done) if done else math.inf)


class Point:
    """The runs of a row at one learning rate. Where CHOOSER's run chose the rate, it counts in no mean, unless it is alone."""

    def __init__(self, runs, chosen):
        self.labels, self.runs = runs[0]['labels'], runs
        self.compared = [run for run in runs if not chosen or run['seed'] != CHOOSER]
        self.counted = self.compared or runs
        self.done = [run for run in self.counted if run['status'] == 'done']
        self.curve = [(at[0][0], statistics.fmean(loss for _, loss in at)) for at in zip(*(run['curve'] for run in self.done))]
        self.ended = {status: sum(run['status'] == status for run in runs) for status in STATUS}

    def losses(self, split):
        """{seed: final loss} on a split, val or test, of the runs that may be compared and were done"""
        return {run['seed']: run[f'{split}_loss'] for run in self.compared if run['status'] == 'done'}

    def mean(self, split):
        """The mean over the runs that count, and its standard error"""
        losses = [run[f'{split}_loss'] for run in self.done if math.isfinite(run[f'{split}_loss'])]
        return (statistics.fmean(losses) if losses else math.inf,
                statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan)

    def text(self, split):
        mean, error = self.mean(split)
        parts = [f'{mean:.3f}' + (f' ± {error:.3f}' if error == error else '')] if self.done else []
        parts += [f'{status} {self.ended[status]}/{len(self.runs)}' for status in ('diverged', 'failed') if self.ended[status]]
        return ', '.join(parts)

    def reaches(self, loss):
        """The iteration at which the mean validation loss has fallen to this, by linear interpolation between evaluations."""
        for (it0, loss0), (it1, loss1) in zip(self.curve, self.curve[1:]):
            if loss0 > loss >= loss1:
                return it0 + (loss0 - loss) / (loss0 - loss1) * (it1 - it0)
        return math.inf


class Row:
    """The runs that differ only in learning rate and seed: `points`, from the lowest rate to the highest, and `best`, that at
    which CHOOSER's run has the lowest validation loss. `chosen`: whether CHOOSER chose a single rate too, in another sweep."""

    def __init__(self, labels, runs, chosen=False):
        self.labels, at = labels, {}
        for run in sorted(runs, key=lambda run: float(run['labels'].get(LR, 0))):
            at.setdefault(run['labels'].get(LR), []).append(run)
        self.points = [Point(some, chosen or len(at) > 1) for some in at.values()]
        self.tried = [point for point in self.points if len(at) == 1 or self.choosing(point)]
        self.best = min(self.tried, key=lambda point: rank(self.choosing(point)), default=self.points[0])

    def choosing(self, point):
        """The runs that choose: CHOOSER's, or of a single rate all"""
        return [run for run in point.runs if run['seed'] == CHOOSER] if len(self.points) > 1 else point.runs

    def __str__(self):
        return ','.join(f'{axis}={label}' for axis, label in self.labels.items())

    def at_edge(self):
        """Whether the best of several rates is the lowest or the highest, so that a better one may lie beyond"""
        ended = [point for point in self.tried if any(run['status'] != 'failed' for run in self.choosing(point))]
        done = not rank(self.choosing(self.best))[0]
        return len(self.points) > 1 and done and self.best in (ended[0], ended[-1])

    def rate(self):
        """The best rate, as text"""
        return self.best.labels.get(LR, '') + ' (edge)' * self.at_edge()

    def by_rate(self, measure):
        """rate_sensitivity or tolerance of CHOOSER's validation losses, None unless its runs at several rates have ended. A run
        that train.py stopped has no final loss. The initial loss is the mean over the rates."""
        runs = [run for point in self.points for run in self.choosing(point)]
        starts = [loss for run in runs for it, loss in run['curve'][:1] if it == 0]
        if len(self.points) == 1 or not starts or len(runs) < len(self.points) or any(run['status'] == 'failed' for run in runs):
            return None
        rates = [float(run['labels'][LR]) for run in runs]
        return measure(rates, [run['val_loss'] for run in runs], statistics.fmean(starts))

    def rate_cells(self, most):
        """Its rate sensitivity and its tolerance in octaves, as texts. Of fewer than `most` rates, how many is said."""
        sensitivity, octaves = self.by_rate(lambda rates, *losses: rate_sensitivity(*losses)), self.by_rate(tolerance)
        if sensitivity is None:
            return ['', '']
        fewer = f' ({len(self.points)} rates)' if len(self.points) < most else ''
        length, is_open = octaves
        return [f'{sensitivity:.3f}{fewer}', '≥ ' * is_open + f'{length:.1f}{fewer}' if length == length else '']


def rows_of(runs, chosen=False):
    """The Rows of runs"""
    groups = {}
    for run in runs:
        labels = {axis: label for axis, label in run['labels'].items() if axis != LR}
        groups.setdefault(tuple(labels.items()), (labels, []))[1].append(run)
    return [Row(*group, chosen) for group in groups.values()]


def find_row(rows, wanted, key='against'):
    """The one row with the labels of 'axis=value,…'."""
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
    """The cells under ESTIMATE, of each difference. None, or one without seeds, has empty ones."""
    ps = iter(corrected([e.p for e in estimates if e and e.n]))
    return [[f'{e.mean:+.3f}' + (f' [{e.low:+.3f}, {e.high:+.3f}]' if e.low == e.low else ''), str(e.n), f'{e.p:.2g}',
             f'{next(ps):.2g}', f'{e.detectable:.3f}'] if e and e.n else [''] * len(ESTIMATE) for e in estimates]


def samples_of(rows, split):
    """{row: its Sample}, of the losses at its best rate that may be compared. Variances are moderated over the rows of one
    optimizer and size: by the axes optim and size, or without the latter by the number of parameters to one digit."""
    groups = {}
    for row in rows:
        parameters = f'{row.best.done[0]["parameters"]:.1g}' if row.best.done else ''
        groups.setdefault((row.labels.get('optim'), row.labels.get('size', parameters)), []).append(row)
    return {row: sample for group in groups.values()
            for row, sample in zip(group, samples([[*row.best.losses(split).values()] for row in group]))}


def compare(rows, base, split):
    """Of each row, at its best rate, the cells that say how it differs from the row `base`."""
    known = samples_of(rows, split)
    compared = [row is not base and row.best.done and base.best.done for row in rows]
    found = cells_of([contrast({row: 1, base: -1}, known) if yes else None for row, yes in zip(rows, compared)])
    for cells, row, yes in zip(found, rows, compared):
        reached = row.best.reaches(base.best.mean('val')[0]) if yes else math.inf
        share = f'{reached:.0f} ({reached / base.best.curve[-1][0]:.0%})' if reached < math.inf else 'not reached'
        cells.append(share if yes else '')
    return found


def read_contrast(text, find):
    """'ROW - ROW - ROW + ROW' → {row: weight}, whose rows `find` finds by their texts."""
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
    """'ROW - ROW; ROW - ROW - ROW + ROW' → [(the text of each, {row: weight})]"""
    return [(one, read_contrast(one, lambda name: find_row(rows, name, 'contrast')))
            for one in map(str.strip, text.split(';')) if one]


# ----------------------------------------------------------------------------- tables

def make_tables(runs, select='all', against='', contrasts=''):
    """The caption and the tables, each a list of lines, which are lists of strings; the first is the head."""
    rows = rows_of(runs)
    split = split_of(runs)
    axes = list(dict.fromkeys(axis for row in rows for axis in row.labels))
    rates = sorted({run['labels'][LR] for run in runs if LR in run['labels']}, key=float)
    wide, name = rates and select == 'all', SPLITS[split]
    base = find_row(rows, against) if against else None
    tuned = not wide and any(len(row.points) > 1 for row in rows)
    head = [*axes, *([f'lr {rate}' for rate in rates] if wide else [*([LR] if rates else []), f'{name} loss']),
            *(RATE_HEAD if tuned else []), *([*ESTIMATE, 'iterations to its loss'] if base else [])]
    lines = [[row.labels.get(axis, '') for axis in axes] for row in rows]
    for line, row in zip(lines, rows):
        if wide:
            star = row.best if len(row.points) > 1 and row.best.done else None
            at = {point.labels[LR]: point.text(split) + ' *' * (point is star) for point in row.points}
            line += [at.get(rate, '') for rate in rates]
        else:
            line += [*([row.rate()] if rates else []), row.best.text(split)]
        if tuned:
            line += row.rate_cells(max(len(row.points) for row in rows))
    if base:
        for line, cells in zip(lines, compare(rows, base, split)):
            line += cells
    tables = [[head, *lines]]
    if read := read_contrasts(contrasts, rows):
        known = samples_of(rows, split)
        estimates = [contrast(weights, known) for _, weights in read]
        tables.append([['contrast', *ESTIMATE], *([one, *cells] for (one, *_), cells in zip(read, cells_of(estimates)))])
    hours = sum(run['seconds'] for run in runs) / 3600
    chosen = any(len(row.points) > 1 for row in rows)
    caption = [f'{name} loss at the end, mean ± standard error over seeds',
               *([f'seed {CHOOSER} chose the rates by validation loss, and counts only where it is alone'] if chosen else []),
               *(['* best learning rate'] if wide else ['(edge) no rate beyond the best was tried'] if rates else []),
               f'{hours:.2f} hours of runs']
    if base or read:
        caption[-1] += ('\ndifference: of means, with its 95% interval; corrected p: Benjamini-Hochberg over the table; '
                        'detectable: the smallest true difference that is found with 80% power')
    return '; '.join(caption), tables


def as_text(table):
    """A table as plain text and as Markdown"""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in table]
    ruled = [table[0], ['---'] * len(widths), *table[1:]]
    return ('\n'.join('  '.join(line).rstrip() for line in padded),
            '\n'.join('| ' + ' | '.join(cell.replace('|', r'\|') for cell in line) + ' |' for line in ruled))


def table_csv(rows):
    """table.csv as text: a row for each point of the rows."""
    points = [point for row in rows for point in row.points]
    axes = list(dict.fromkeys(axis for point in points for axis in point.labels))
    text = io.StringIO(newline='')
    table = csv.writer(text)
    table.writerow([*axes, *POINT])
    for point in points:
        test = point.mean('test')
        table.writerow([*(point.labels.get(axis, '') for axis in axes), *point.mean('val'), *test, *point.ended.values()])
    return text.getvalue()


def write_text(path, text):
    write_whole(path, lambda f: f.write(text.encode()))


def write_report(runs, caption, tables, folder=''):
    """Prints what make_tables makes of the runs, and writes it into the folder, if there is one, with a picture."""
    texts, markdowns = zip(*map(as_text, tables))
    print(f'\n{caption}\n\n' + '\n\n'.join(texts) + '\n')
    if folder:
        os.makedirs(folder, exist_ok=True)
        rows = rows_of(runs)
        write_text(os.path.join(folder, 'table.txt'), '\n\n'.join(texts) + '\n')
        write_text(os.path.join(folder, 'table.md'), '\n\n'.join(markdowns) + '\n')
        write_text(os.path.join(folder, 'table.csv'), table_csv(rows))
        if any(run['status'] == 'done' for run in runs):
            from lab.plot import draw
            draw('sweep', [folder], os.path.join(folder, 'sweep.png'))
