"""Read files that a user may have damaged or changed. A file that cannot be read gives one line, with the remedy."""
from engine.process import say

import functools
import json
import math
import os
import sys
from contextlib import suppress


def map_leaves(state, change, name=''):
    """Copy nested dicts and lists, replacing each leaf by change(name, leaf). A name joins the keys on the path, such as
    'model.wte.weight' or 'optimizer.state.0.exp_avg'."""
    if isinstance(state, dict):
        return {key: map_leaves(value, change, f'{name}.{key}' if name else str(key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        values = [map_leaves(value, change, f'{name}.{i}') for i, value in enumerate(state)]
        return tuple(values) if isinstance(state, tuple) else values
    return change(name, state)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_json(path, remedy, null=None):
    """Return a file's JSON, with `null` for null, or None if there is no file. Raise ValueError, with the remedy, if the file is
    damaged."""
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding='utf-8') as f:
            return with_null(json.load(f), null)
    except ValueError as error:
        raise ValueError(f'{path} is damaged, {remedy}: {error}') from error


def with_null(value, null):
    return map_leaves(value, lambda name, leaf: null if leaf is None else leaf)


def parse_rows(path):
    """Yield (line, row) for each line of a JSON Lines file, if the file exists. The row is None for a line that no run has
    written: no object, or one without an iteration. Skip a partial row at the end, left by a kill."""
    if os.path.exists(path):
        with open(path, 'rb') as f:
            for line in f:
                row = parse_row(line)
                if row is not None or line.endswith(b'\n') or not line.startswith(b'{'):
                    yield line.rstrip(b'\n') + b'\n', row


def parse_row(line):
    """Return a line's JSON object, or None if it is no object or has no iteration."""
    with suppress(ValueError):
        row = json.loads(line)
        return row if isinstance(row, dict) and is_number(row.get('iter')) else None


def read_rows(path):
    """Return a log's rows, with NaN for null, which stands for numbers that are not finite. Skip other lines, and say so on
    stderr."""
    rows = [row for _, row in parse_rows(path)]
    if strange := [number for number, row in enumerate(rows, 1) if row is None]:
        say_once(f'{path}: passes over line {strange[0]}{" and others" * (len(strange) > 1)}, which no run has written')
    return [with_null(row, math.nan) for row in rows if row is not None]


@functools.cache
def say_once(line):
    say(line, to=sys.stderr)


def last_row(path):
    """Return the last row in the last 64 KiB of a log, or a row with iteration -1 if there is none."""
    lines = []
    if os.path.exists(path):
        with open(path, 'rb') as f:
            f.seek(max(0, os.path.getsize(path) - 2 ** 16))
            lines = f.readlines()
    return next(filter(None, map(parse_row, reversed(lines))), {'iter': -1})


def damaged(path, fault=''):
    """Return a ValueError that names a checkpoint, its fault if known, its code's patch, and the run's other checkpoint."""
    best, patch = (os.path.join(os.path.dirname(path), name) for name in ('best.pt', 'code.patch'))
    if fault and os.path.exists(patch) and os.path.getsize(patch):
        fault = f'{fault}; it may be of edited code: git apply {patch}'
    other = f'; there is {best} too' if os.path.basename(path) == 'ckpt.pt' and os.path.exists(best) else ''
    return ValueError(f'{path} is damaged, or not a checkpoint of train.py{": " if fault else ""}{fault}{other}')


def check_weights(wanted, weights, path=''):
    """Raise ValueError if two state_dicts differ in names, shapes or dtypes. The second was read from `path`, if given."""
    for name in {**wanted, **weights}:
        if not (name in wanted and name in weights and weights[name].shape == wanted[name].shape
                and weights[name].dtype == wanted[name].dtype):
            if not path:
                raise ValueError(f'{name} is not as in a model that is built anew from its config')
            raise damaged(path, f'its weights do not fit its config, see {name}')
