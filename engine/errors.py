"""Reading files that may have been damaged or changed. What cannot be read, or does not fit, is an error in one line."""
import csv
import json
import math
import os
from contextlib import contextmanager, suppress

NUMBER = (int, float)


def fits(value, shape):
    """Whether nested dicts and lists are as `shape` says: a type, where a bool is no number; {name: shape} for at least these
    keys, of which those with a ? at the end of their name may be missing; {type: shape} for any keys of the type; [shape] for a
    list of any length, [shape, 1] for at least one; a tuple of shapes, for one of them; or a function that says it of a value."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        return all((fits(value[key.rstrip('?')], of_key) if key.rstrip('?') in value else key.endswith('?'))
                   if isinstance(key, str) else
                   all(isinstance(item, key) and fits(inner, of_key) for item, inner in value.items())
                   for key, of_key in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and len(value) >= sum(shape[1:]) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return any(fits(value, item) for item in shape)
    if not isinstance(shape, type):
        return shape(value)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def map_leaves(state, change, name=''):
    """Copies nested dicts and lists, with each value that is neither replaced by change(its name, the value). A name is made of
    the keys on the way, such as 'model.wte.weight' or 'optimizer.state.0.exp_avg'."""
    if isinstance(state, dict):
        return {key: map_leaves(value, change, f'{name}.{key}' if name else str(key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [map_leaves(value, change, f'{name}.{i}') for i, value in enumerate(state)]
    return change(name, state)


def check_regular(path):
    """OSError if there is something at the path that is no regular file, such as a pipe, for which one would wait forever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f'{path} is no file but a folder, a pipe or a device: move it away')


def check_files(path):
    """The same for all that is in a folder, except for its folders."""
    for entry in os.scandir(path):
        if not entry.is_dir():
            check_regular(entry.path)


def parsed(text, null):
    """The value of JSON, with `null` for what is null, and for numbers that are not finite or integers of more than 64 bits."""
    value = json.loads(text, parse_constant=lambda name: null,
                       parse_float=lambda digits: x if math.isfinite(x := float(digits)) else null,
                       parse_int=lambda digits: n if abs(n := int(digits)) < 2 ** 63 else null)
    return value if null is None else map_leaves(value, lambda name, leaf: null if leaf is None else leaf)


@contextmanager
def reading(path, remedy):
    """A context with the open text file. ValueError, with the remedy, if it is damaged."""
    check_regular(path)
    try:
        with open(path, encoding='utf-8', newline='') as f:
            yield f
    except (ValueError, TypeError, KeyError, RecursionError, csv.Error) as error:
        raise ValueError(f'{path} is damaged, {remedy}: {error}') from error


def read_json(path, shape, remedy, null=None):
    """The JSON in a file, with `null` for numbers that are not finite. None if there is no file. ValueError, with the remedy, if
    it is not of this shape."""
    if not os.path.exists(path):
        return None
    with reading(path, remedy) as f:
        value = parsed(f.read(), null)
        if not fits(value, shape):
            raise ValueError('something in it is missing, or of another type')
        return value


def read_rows(path, shape):
    """The rows of a file with one JSON object of this shape a line, or none if there is no file, with NaN for numbers that are
    not finite. What follows the last complete line, as a kill leaves it, is skipped. ValueError for a damaged file."""
    rows = []
    if os.path.exists(path):
        with reading(path, 'remove it or mend it') as f:
            for number, line in enumerate(f, 1):
                if line.endswith('}\n'):
                    rows.append(parsed(line, math.nan))
                    if not fits(rows[-1], shape):
                        raise ValueError(f'line {number} wants {", ".join(key for key in shape if not key.endswith("?"))}')
    return rows


def read_table(path, kinds, remedy):
    """The rows of a CSV file as dicts, at least one. `kinds` has the type of each column that is not text; one with a ? at the
    end of its name may be missing. None if there is no file. ValueError, with the remedy, for another file."""
    if not os.path.exists(path):
        return None
    with reading(path, remedy) as f:
        rows = [{**row, **{key.rstrip('?'): kind(row[key.rstrip('?')]) for key, kind in kinds.items()
                           if key.rstrip('?') in row or not key.endswith('?')}} for row in csv.DictReader(f)]
        if not fits(rows, [{str: (str, *NUMBER)}, 1]) or any(None in row for row in rows):
            raise ValueError('it has no rows, or rows of another length')
        return rows


def last_row(path, shape):
    """The last row of this shape in the last 64 KiB of such a file, or None. It raises no error for a damaged file."""
    if not os.path.exists(path):
        return None
    check_regular(path)
    with open(path, 'rb') as f:
        f.seek(max(0, os.path.getsize(path) - 2 ** 16))
        for line in reversed(f.read().splitlines(keepends=True)):
            with suppress(ValueError, RecursionError):
                if line.endswith(b'}\n') and fits(row := parsed(line, math.nan), shape):
                    return row
    return None


def damaged(path, fault=''):
    """A ValueError that names a checkpoint, its fault if known, and the run's other checkpoint."""
    best = os.path.join(os.path.dirname(path), 'best.pt')
    other = f'; there is {best} too' if os.path.basename(path) == 'ckpt.pt' and os.path.exists(best) else ''
    return ValueError(f'{path} is damaged, or not a checkpoint of train.py{": " if fault else ""}{fault}{other}')


def check_weights(wanted, weights, path):
    """ValueError if two state_dicts, the second read from `path`, differ in names, shapes or types."""
    for name in {**wanted, **weights}:
        if not (name in wanted and name in weights and weights[name].shape == wanted[name].shape
                and weights[name].dtype == wanted[name].dtype):
            raise damaged(path, f'its weights do not fit its config, see {name}')
