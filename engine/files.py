"""Write files so that a kill at any moment leaves a whole one, and read files that a user may have damaged: one line with the
remedy."""
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
        return type(state)(map_leaves(value, change, f'{name}.{i}') for i, value in enumerate(state))
    return change(name, state)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@functools.cache
def say_once(line):
    say(line, to=sys.stderr)


# ----------------------------------------------------------------------------- writing

def write_whole(path, write):
    """Call write(file) on a temporary file, which then replaces `path`. On failure, such as a full disk, raise OSError and keep
    the old file."""
    try:
        with open(path + '.tmp', 'wb') as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + '.tmp', path)
    except (OSError, RuntimeError) as error:            # torch.save turns an OSError into a RuntimeError
        with suppress(FileNotFoundError):
            os.remove(path + '.tmp')
        raise OSError(f'{path} could not be written, what was there is kept: {str(error).splitlines()[0]}') from error


def write_json(path, value):
    write_whole(path, lambda f: f.write(json.dumps(value, indent=1).encode()))


def finite(value):
    """Copy nested values, replacing numbers that are not finite by None."""
    return map_leaves(value, lambda name, leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def open_rows(path, before=math.inf):
    """Open a JSON Lines file to append rows, and drop its rows of iterations from `before` on."""
    lines = [line for line, row in parse_rows(path) if row['iter'] < before]
    write_whole(path, lambda f: f.writelines(lines))
    return open(path, 'a', encoding='utf-8', buffering=2 ** 20)         # rows wait in its buffer while the disk is full


def write_row(f, value):
    """Write a line of JSON, with null for numbers that are not finite. A full disk does not end a run."""
    try:
        f.write(json.dumps(finite(value)) + '\n')
        f.flush()
    except OSError as error:
        say_once(f'{f.name} could not be written ({error.strerror}): its rows wait until there is room')


# ----------------------------------------------------------------------------- reading

def read_json(path, remedy, null=None):
    """Return a file's JSON, with `null` for null, or None if there is no file. Raise ValueError, with the remedy, if the file is
    damaged."""
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding='utf-8') as f:
            return with_null(json.load(f), null)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path} is damaged, {remedy}: {error}') from error


def with_null(value, null):
    return map_leaves(value, lambda name, leaf: null if leaf is None else leaf)


def parse_rows(path):
    """Yield (line, row) for each row of a JSON Lines file, if the file exists. Say how many lines are no rows, such as the part
    of one that a kill has left at the end, and skip them."""
    skipped = 0
    if os.path.exists(path):
        with open(path, 'rb') as f:
            for line in f:
                if row := parse_row(line):
                    yield line.rstrip(b'\n') + b'\n', row
                else:
                    skipped += 1
    if skipped:
        say(f'{path}: passed over {skipped} line{"s" * (skipped > 1)} that {"are no rows" if skipped > 1 else "is no row"}',
            to=sys.stderr)


def parse_row(line):
    """Return a line's JSON object, or None if it is no object or has no iteration."""
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        return row if isinstance(row, dict) and is_number(row.get('iter')) else None


def read_rows(path):
    """Return a log's rows, with NaN for null, which stands for numbers that are not finite."""
    return [with_null(row, math.nan) for _, row in parse_rows(path)]


def last_row(path):
    """Return the last row in the last 64 KiB of a log, or a row with iteration -1 if there is none."""
    lines = []
    if os.path.exists(path):
        with open(path, 'rb') as f:
            f.seek(max(0, os.path.getsize(path) - 2 ** 16))
            lines = f.readlines()
    return next(filter(None, map(parse_row, reversed(lines))), {'iter': -1})
