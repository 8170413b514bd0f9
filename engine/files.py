"""Reading files that may have been damaged or changed."""
import json
import os


def fits(value, shape):
    """Whether nested dicts and lists are as `shape` says: a type, where a bool is no number; {name: shape} for at least these
    keys; {type: shape} for any keys of the type; [shape] for a list of any length; or a tuple of shapes, for one of them."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        return all((key in value and fits(value[key], of_key)) if isinstance(key, str) else
                   all(isinstance(one, key) and fits(of_one, of_key) for one, of_one in value.items())
                   for key, of_key in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def map_leaves(state, change, name=''):
    """Copies nested dicts and lists, with each value that is neither replaced by change(its name, the value). A name is made of
    the keys on the way, such as 'model.wte.weight' or 'optimizer.state.0.exp_avg'."""
    if isinstance(state, dict):
        return {key: map_leaves(value, change, f'{name}.{key}' if name else str(key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [map_leaves(value, change, f'{name}.{i}') for i, value in enumerate(state)]
    return change(name, state)


def read_rows(path, shape):
    """The rows of a file with one JSON object of this shape a line, or none if there is no file. What follows the last complete
    line, as a kill leaves it, is skipped. ValueError for a damaged file."""
    if not os.path.exists(path):
        return []
    try:
        with open(path, encoding='utf-8') as f:
            rows = [json.loads(line) for line in f if line.endswith('}\n')]
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path} is damaged, remove it or mend it: {error}') from error
    for number, row in enumerate(rows, 1):
        if not fits(row, shape):
            raise ValueError(f'{path} is damaged, remove it or mend it: row {number} wants {", ".join(shape)}')
    return rows


def told(error):
    """The message of a library's error in one line, without PyTorch's advice to run whatever code is in a file."""
    if 'weights_only' in str(error):
        return 'it holds more than weights, which could run code; use the safetensors file of this model'
    return f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'


def damaged(path, fault=''):
    """A ValueError that names a checkpoint, its fault if known, and the run's other checkpoint."""
    best = os.path.join(os.path.dirname(path), 'best.pt')
    other = f'; there is {best} too' if os.path.basename(path) == 'ckpt.pt' and os.path.exists(best) else ''
    return ValueError(f'{path} is damaged, or not a checkpoint of train.py{": " if fault else ""}{fault}{other}')


def check_weights(wanted, found, path):
    """ValueError if two state_dicts, the second read from `path`, differ in names, shapes or types."""
    for name in {**wanted, **found}:
        if not (name in wanted and name in found and found[name].shape == wanted[name].shape
                and found[name].dtype == wanted[name].dtype):
            raise damaged(path, f'its weights do not fit its config, see {name}')
