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
from engine.files import NUMBER, read_json, read_rows, read_table
from engine.runlog import last_iter
from lab.statistics import contrast, corrected, paired_difference, rate_sensitivity

LR = 'learning_rate'
SPLITS = dict(val='validation', test='test')
STATUS = ('done', 'diverged', 'failed', 'stopped', 'missing')          # stopped: by halving


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


# the columns of runs.csv behind the axes and the seed, and how the cells are read; None: the table does not need them
CELLS = dict(status=read_status, iterations=number_or_nan, parameters=number_or_nan, tokens_per_iteration=number_or_nan,
             val_losses=read_curve, val_loss=number_or_nan, test_loss=number_or_nan, commit=None, machine=None,
             attention_kernel=None, precision=None, torch=None, seconds=number)
POINT = ('val_loss', 'standard_error', 'test_loss', 'test_standard_error', *STATUS)       # the columns of table.csv behind them
COLUMNS = {*CELLS, *POINT}
RESULT = {'status': ('done', 'diverged', 'failed', 'stopped').__contains__, 'seconds': NUMBER, 'last?': str}
ABOUT = {'parameters?': int, 'tokens_per_iter?': int, 'images_per_iter?': int, 'commit?': str, 'changed?': list, 'machine?': str,
         'attention_backend?': str, 'dtype?': str, 'torch?': str}          # of run.json


def read_result(folder):
    """How a run has ended, {} if it has not."""
    return read_json(os.path.join(folder, 'result.json'), RESULT, 'remove it, and its run will be trained again') or {}


def read_state(folder, diverged_loss=0.0):
    """A run so far: its `status`, the `curve` [(iteration, validation loss)], and at its end val_loss and test_loss, else NaN,
    all as precise as in runs.csv. A run that ends above diverged_loss, unless 0, has diverged."""
    result = read_result(folder)
    rows = read_rows(os.path.join(folder, 'log.jsonl'), {'iter': int, 'val_loss?': NUMBER, 'test_loss?': NUMBER})
    rows = [row for row in rows if math.isfinite(row.get('val_loss', math.nan))]
    state = dict(status=result.get('status', 'missing'), seconds=result.get('seconds', 0.0), val_loss=math.nan,
                 test_loss=math.nan, curve=[(row['iter'], float(digits(row['val_loss']))) for row in rows])
    if state['status'] == 'done':
        if not rows:
            raise ValueError(f'{folder} has lost its log.jsonl: remove the folder, and its run will be trained again')
        state.update(val_loss=state['curve'][-1][1], test_loss=number_or_nan(digits(rows[-1].get('test_loss', math.nan))))
    return judged(state, diverged_loss)


def judged(run, diverged_loss):
    high = run['status'] == 'done' and run['val_loss'] > (diverged_loss or math.inf)
    return {**run, 'status': 'diverged'} if high else run


def digits(x):
    return f'{x:.6g}' if math.isfinite(x) else ''


def runs_csv(runs, folder, diverged_loss):
    """runs.csv as text: a row for each of the runs, whose folders are in `folder`."""
    axes = list(dict.fromkeys(axis for run in runs for axis in run['labels'] if axis != 'seed'))
    text = io.StringIO(newline='')
    table = csv.DictWriter(text, [*axes, 'seed', *CELLS], restval='')
    table.writeheader()
    for run in runs:
        at = os.path.join(folder, run['name'])
        state = read_state(at, diverged_loss)
        about = read_json(os.path.join(at, 'run.json'), ABOUT, 'remove it') or {}
        table.writerow(dict(
            run['labels'], status=state['status'], iterations=max(0, last_iter(os.path.join(at, 'log.jsonl'))),
            parameters=about.get('parameters', ''),
            tokens_per_iteration=about.get('tokens_per_iter', about.get('images_per_iter', '')),
            val_losses=' '.join(f'{it}:{loss:.6g}' for it, loss in state['curve']), val_loss=digits(state['val_loss']),
            test_loss=digits(state['test_loss']), commit=about.get('commit', '') + '-dirty' * bool(about.get('changed')),
            machine=about.get('machine', ''), attention_kernel=about.get('attention_backend', ''),
            precision=about.get('dtype', '').removeprefix('torch.'), torch=about.get('torch', ''),
            seconds=digits(state['seconds'])))
    return text.getvalue()


def read_runs(path, diverged_loss=0.0):
    """The runs of a runs.csv, as dicts of `labels`, the `seed` and what read_state says. ValueError for another file."""
    def checked(kind):
        return lambda text: (kind(text), text)[1]

    kinds = {'seed': str, f'{LR}?': checked(number_or_nan), **{name: checked(kind or str) for name, kind in CELLS.items()}}
    rows = read_table(path, kinds, 'it is no runs.csv of a sweep')
    if rows is None:
        raise ValueError(f'there is no {path}')
    return from_rows(rows, diverged_loss, path)


def from_text(text):
    """The same of the text that runs_csv makes"""
    return from_rows(csv.DictReader(io.StringIO(text, newline='')))


def from_rows(rows, diverged_loss=0.0, path=''):
    runs = []
    for row in rows:
        labels = {axis: row[axis] for axis in itertools.takewhile(lambda name: name != 'seed', row)}
        cells = {name: kind(row[name]) for name, kind in CELLS.items() if kind}
        if cells['status'] == 'done' and not (cells['val_losses'] and math.isfinite(cells['val_loss'])):
            raise ValueError(f'{path}: the run {",".join(list(row.values())[:len(labels) + 1])} is done and has no val_loss')
        runs.append(judged(dict(labels={axis: label for axis, label in labels.items() if label}, seed=row['seed'],
                                curve=cells.pop('val_losses'), **cells), diverged_loss))
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
    return (not done, sum(run['status'] in ('diverged', 'failed') for run in runs),
            statistics.fmean(done) if done else math.inf)


class Point:
    """The runs that differ only in their seeds."""

    def __init__(self, runs):
        self.labels, self.runs = runs[0]['labels'], runs
        self.row = {axis: label for axis, label in self.labels.items() if axis != LR}
        self.done = [run for run in runs if run['status'] == 'done']
        self.curve = [(at[0][0], statistics.fmean(loss for _, loss in at)) for at in zip(*(run['curve'] for run in self.done))]
        self.ended = {status: sum(run['status'] == status for run in runs) for status in STATUS}

    def losses(self, split):
        """{seed: final loss} on a split, val or test, of the runs that were done"""
        return {run['seed']: run[f'{split}_loss'] for run in self.done}

    def mean(self, split):
        """The mean over seeds and its standard error"""
        losses = [loss for loss in self.losses(split).values() if loss == loss]
        return (statistics.fmean(losses) if losses else math.inf,
                statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan)

    def text(self, split):
        mean, error = self.mean(split)
        parts = [f'{mean:.3f}' + (f' ± {error:.3f}' if error == error else '')] if self.done else []
        parts += [f'stopped at {run["curve"][-1][0]}: {run["curve"][-1][1]:.3f}' for run in self.runs
                  if run['status'] == 'stopped' and run['curve']]
        parts += [f'{status} {self.ended[status]}/{len(self.runs)}' for status in ('diverged', 'failed', 'missing')
                  if self.ended[status]]
        return ', '.join(parts)

    def reaches(self, loss):
        """The iteration at which the mean validation loss has fallen to this, by linear interpolation between evaluations."""
        for (it0, loss0), (it1, loss1) in zip(self.curve, self.curve[1:]):
            if loss0 > loss >= loss1:
                return it0 + (loss0 - loss) / (loss0 - loss1) * (it1 - it0)
        return math.inf


class Row:
    """The points that differ only in their learning rates, from the lowest to the highest; `best` is the best of them, by the
    validation losses of the seeds that all of them have, `chosen_by`."""

    def __init__(self, points):
        self.labels = points[0].row
        self.points = sorted(points, key=lambda point: float(point.labels.get(LR, 0)))
        self.chosen_by = set.intersection(*({run['seed'] for run in point.runs} for point in points))
        self.ranks = {id(point): rank([run for run in point.runs if run['seed'] in self.chosen_by]) for point in points}
        self.best = min(self.points, key=lambda point: self.ranks[id(point)])

    def __str__(self):
        return ','.join(f'{axis}={label}' for axis, label in self.labels.items())

    def at_edge(self):
        """Whether the best of several rates is the lowest or the highest, so that a better one may lie beyond"""
        tried = [point for point in self.points if any(run['status'] in ('done', 'diverged', 'stopped') for run in point.runs)]
        return len(self.points) > 1 and bool(self.best.done) and self.best in (tried[0], tried[-1])

    def rate(self):
        """The best rate, as text"""
        return self.best.labels.get(LR, '') + ' (edge)' * self.at_edge()

    def sensitivity(self):
        """Learning rate sensitivity, NaN unless several rates have been trained to the end. A rate's loss is the mean over its
        seeds. A diverged run counts with the loss at initialization, the mean of those of the row's runs."""
        starts = [loss for point in self.points for run in point.runs for it, loss in run['curve'][:1] if it == 0]
        ended = all(run['status'] in ('done', 'diverged') for point in self.points for run in point.runs)
        if len(self.points) == 1 or not starts or not ended:
            return math.nan
        start = statistics.fmean(starts)
        return rate_sensitivity([statistics.fmean(min(run['val_loss'], start) if run['status'] == 'done' else start
                                                  for run in point.runs) for point in self.points], start)


def points_of(runs):
    groups = {}
    for run in runs:
        groups.setdefault(tuple(run['labels'].items()), []).append(run)
    return [Point(group) for group in groups.values()]


def rows_of(points):
    groups = {}
    for point in points:
        groups.setdefault(tuple(point.row.items()), []).append(point)
    return [Row(group) for group in groups.values()]


def find_row(rows, wanted, key='against'):
    """The one row with the labels of 'axis=value,…'."""
    found = []
    for row in rows:
        rest = wanted
        for axis, label in row.labels.items():
            rest = rest.replace(f'{axis}={label}', '', 1)
        if wanted and not rest.strip(','):
            found.append(row)
    if len(found) != 1:
        raise ValueError(f'{key}={wanted!r} names {len(found)} rows of the table, wants one of: {"; ".join(map(str, rows))}')
    return found[0]


# ----------------------------------------------------------------------------- comparisons

ESTIMATE = ['difference', 'seeds', 'p', 'corrected p', 'detectable']


def cells_of(estimates):
    """The cells under ESTIMATE, of each difference. None, or one without seeds, has empty ones."""
    ps = iter(corrected([e.p for e in estimates if e and e.n]))
    return [[f'{e.mean:+.3f}' + (f' [{e.low:+.3f}, {e.high:+.3f}]' if e.low == e.low else ''), str(e.n), f'{e.p:.2g}',
             f'{next(ps):.2g}', f'{e.detectable:.3f}'] if e and e.n else [''] * len(ESTIMATE) for e in estimates]


def compare(rows, base, split):
    """Of each row, at its best rate, the cells that say how it differs from the row `base`."""
    compared = [row is not base and row.best.done and base.best.done for row in rows]
    found = cells_of([paired_difference(row.best.losses(split), base.best.losses(split)) if yes else None
                      for row, yes in zip(rows, compared)])
    for cells, row, yes in zip(found, rows, compared):
        reached = row.best.reaches(base.best.mean('val')[0]) if yes else math.inf
        share = f'{reached:.0f} ({reached / base.best.curve[-1][0]:.0%})' if reached < math.inf else 'not reached'
        cells.append(share if yes else '')
    return found


def read_contrasts(text, rows):
    """'ROW - ROW - ROW + ROW; …' → [(its text, the weights, the rows)]"""
    found = []
    for one in filter(None, map(str.strip, text.split(';'))):
        first, *rest = re.split(r'\s+([+-])\s+', one)
        weights = [1, *({'+': 1, '-': -1}[sign] for sign in rest[::2])]
        if sum(weights):
            raise ValueError(f'contrast={one!r}: wants as many rows with + as with -, as in ROW - ROW or ROW - ROW - ROW + ROW')
        found.append((one, weights, [find_row(rows, name, 'contrast') for name in (first, *rest[1::2])]))
    return found


# ----------------------------------------------------------------------------- tables

def make_tables(runs, select='all', against='', contrasts=''):
    """The caption and the tables, each a list of lines, which are lists of strings; the first is the head."""
    rows = rows_of(points_of(runs))
    split = split_of(runs)
    axes = list(dict.fromkeys(axis for row in rows for axis in row.labels))
    rates = sorted({run['labels'][LR] for run in runs if LR in run['labels']}, key=float)
    wide, name = rates and select == 'all', SPLITS[split]
    base = find_row(rows, against) if against else None
    tuned = not wide and any(len(row.points) > 1 for row in rows)
    head = [*axes, *([f'lr {rate}' for rate in rates] if wide else [*([LR] if rates else []), f'{name} loss']),
            *(['rate sensitivity'] if tuned else []), *([*ESTIMATE, 'iterations to its loss'] if base else [])]
    lines = [[row.labels.get(axis, '') for axis in axes] for row in rows]
    for line, row in zip(lines, rows):
        if wide:
            star = row.best if len(row.points) > 1 and row.best.done else None
            at = {point.labels[LR]: point.text(split) + ' *' * (point is star) for point in row.points}
            line += [at.get(rate, '') for rate in rates]
        else:
            line += [*([row.rate()] if rates else []), row.best.text(split)]
        if tuned:
            line += [f'{x:.3f}' if (x := row.sensitivity()) == x else '']
    if base:
        for line, cells in zip(lines, compare(rows, base, split)):
            line += cells
    tables = [[head, *lines]]
    if found := read_contrasts(contrasts, rows):
        estimates = [contrast(weights, [row.best.losses(split) for row in of]) for _, weights, of in found]
        tables.append([['contrast', *ESTIMATE], *([one, *cells] for (one, *_), cells in zip(found, cells_of(estimates)))])
    hours = sum(run['seconds'] for run in runs) / 3600
    caption = [f'{name} loss at the end, mean ± standard error over seeds',
               *(['learning rates were chosen by validation loss'] if split == 'test' and rates else []),
               *(['* best learning rate'] if wide else ['(edge) no rate beyond the best was tried'] if rates else []),
               f'{hours:.2f} hours of runs']
    if base or found:
        caption[-1] += ('\ndifference: paired by seed, with its 95% interval; corrected p: Benjamini-Hochberg over the table; '
                        'detectable: the smallest true difference that is found with 80% power')
    return '; '.join(caption), tables


def as_text(table):
    """A table as plain text and as Markdown"""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in table]
    ruled = [table[0], ['---'] * len(widths), *table[1:]]
    return ('\n'.join('  '.join(line).rstrip() for line in padded),
            '\n'.join('| ' + ' | '.join(cell.replace('|', r'\|') for cell in line) + ' |' for line in ruled))


def table_csv(points):
    """table.csv as text: a row for each point."""
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
        points = points_of(runs)
        write_text(os.path.join(folder, 'table.txt'), '\n\n'.join(texts) + '\n')
        write_text(os.path.join(folder, 'table.md'), '\n\n'.join(markdowns) + '\n')
        write_text(os.path.join(folder, 'table.csv'), table_csv(points))
        if any(point.done for point in points):
            from lab.plot import draw
            draw('sweep', [folder], os.path.join(folder, 'sweep.png'))
