"""Reading files that may have been damaged or changed."""


def fits(value, shape):
    """Whether nested dicts and lists are as `shape` says: a type, or several; {name: shape} for at least these keys; {type:
    shape} for any keys of the type; [shape] for a list of any length. A bool is no number."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        return all((key in value and fits(value[key], of_key)) if isinstance(key, str) else
                   all(isinstance(one, key) and fits(of_one, of_key) for one, of_one in value.items())
                   for key, of_key in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    shape = shape if isinstance(shape, tuple) else (shape,)
    return isinstance(value, shape) and (bool in shape or not isinstance(value, bool))


def map_leaves(state, change, name=''):
    """Copies nested dicts and lists, with each value that is neither replaced by change(its name, the value). A name is made of
    the keys on the way, such as 'model.wte.weight' or 'optimizer.state.0.exp_avg'."""
    if isinstance(state, dict):
        return {key: map_leaves(value, change, f'{name}.{key}' if name else str(key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [map_leaves(value, change, f'{name}.{i}') for i, value in enumerate(state)]
    return change(name, state)
