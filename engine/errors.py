"""Reading files that a user may have damaged or changed. What cannot be read is an error in one line, with its remedy."""
import csv
import json
import math
import os
from contextlib import contextmanager, suppress


def map_leaves(state, change, name=''):
    """Copies nested dicts and lists, with each value that is neither replaced by change(its name, the value). A name is made of
    the keys on the way, such as 'model.wte.weight' or 'optimizer.state.0.exp_avg'."""
    if isinstance(state, dict):
        return {key: map_leaves(value, change, f'{name}.{key}' if name else str(key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        values = [map_leaves(value, change, f'{name}.{i}') for i, value in enumerate(state)]
        return tuple(values) if isinstance(state, tuple) else values
    return change(name, state)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def reading(path, remedy):
    """A context with the open text file. ValueError, with the remedy, if it is damaged."""
    try:
        with open(path, encoding='utf-8', newline='') as f:
            yield f
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise ValueError(f'{path} is damaged, {remedy}: {error}') from error


def with_null(value, null):
    return map_leaves(value, lambda name, leaf: null if leaf is None else leaf)


def read_json(path, remedy, null=None):
    """The JSON in a file, with `null` for null. None if there is no file. ValueError, with the remedy, for another file."""
    if not os.path.exists(path):
        return None
    with reading(path, remedy) as f:
        return with_null(json.load(f), null)


def read_rows(path):
    """The rows of a file with one JSON object a line, or none if there is no file, with NaN for numbers that are not finite. What
    follows the last complete line, as a kill leaves it, is skipped. ValueError for a damaged file."""
    if not os.path.exists(path):
        return []
    with reading(path, 'remove it or mend it') as f:
        return [{**with_null(json.loads(line), math.nan)} for line in f if line.endswith('}\n')]


def read_table(path, kinds, remedy):
    """The rows of a CSV file as dicts, at least one. `kinds` has the type of each column that is not text; one with a ? at the
    end of its name may be missing. None if there is no file. ValueError, with the remedy, for another file."""
    if not os.path.exists(path):
        return None
    with reading(path, remedy) as f:
        rows = [{**row, **{key.rstrip('?'): kind(row[key.rstrip('?')]) for key, kind in kinds.items()
                           if key.rstrip('?') in row or not key.endswith('?')}} for row in csv.DictReader(f)]
        if not rows or any(None in row or None in row.values() for row in rows):
            raise ValueError('it has no rows, or rows of another length')
        return rows


def last_row(path):
    """The last row in the last 64 KiB of such a file, or None. It raises no error for a damaged file."""
    if not os.path.exists(path):
        return None
    with open(path, 'rb') as f:
        f.seek(max(0, os.path.getsize(path) - 2 ** 16))
        for line in reversed(f.read().splitlines(keepends=True)):
            with suppress(ValueError):
                if line.endswith(b'}\n'):
                    return json.loads(line)
    return None


def damaged(path, fault=''):
    """A ValueError that names a checkpoint, its fault if known, and the run's other checkpoint."""
    best = os.path.join(os.path.dirname(path), 'best.pt')
    other = f'; there is {best} too' if os.path.basename(path) == 'ckpt.pt' and os.path.exists(best) else ''
    return ValueError(f'{path} is damaged, or not a checkpoint of train.py{": " if fault else ""}{fault}{other}')


def check_weights(wanted, weights, path=''):
    """ValueError if two state_dicts, the second read from `path`, if any, differ in names, shapes or types."""
    for name in {**wanted, **weights}:
        if not (name in wanted and name in weights and weights[name].shape == wanted[name].shape
                and weights[name].dtype == wanted[name].dtype):
            if not path:
                raise ValueError(f'{name} is not as in a model that is built anew from its config')
            raise damaged(path, f'its weights do not fit its config, see {name}')
