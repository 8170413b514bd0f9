"""Shared by evaluations: work on ranks, scores with their errors, and the table that compares models."""
import hashlib
import math
import os
from typing import NamedTuple

import numpy as np
from scipy import stats

from engine.log import open_rows, progress, write_row
from model import at_least_fp32


def over_ranks(machine, f, items, title):
    """Return [f(item) for item in items]; each rank computes a share."""
    mine = items[machine.rank::machine.world_size]
    mine = [f(item) for item in progress(mine, title, shown=machine.master)]
    parts = machine.gather(mine)
    return [parts[i % len(parts)][i // len(parts)] for i in range(len(items))]


def chunks(items, size):
    return [items[i:i + size] for i in range(0, len(items), size)]


def model_logits(machine, model, x):
    with machine.autocast():
        return at_least_fp32(model(x)[0])


class Score(NamedTuple):
    mean: float
    error: float                    # standard error of the mean
    units: np.ndarray | None        # values to pair with another run's; None if there are none, or another score has them
    lower: bool = False             # whether lower is better


def score_of(units, lower=False):
    units = np.asarray(units, dtype=float)
    return Score(units.mean(), units.std(ddof=1) / math.sqrt(len(units)) if len(units) > 1 else math.nan, units, lower)


def names_of(text, known=()):
    """Split at commas, but join pieces until they name a folder or a `known` model, because a sweep's folder names contain
    commas."""
    names = []
    for piece in text.split(','):
        if names and not os.path.isdir(names[-1]) and names[-1] not in known:
            names[-1] += ',' + piece
        else:
            names.append(piece)
    return list(dict.fromkeys(name.rstrip('/') for name in names))


def key_of(model, tokenizer):
    key = hashlib.sha256(repr((model.config, tokenizer)).encode())
    for value in model.state_dict().values():
        key.update(value.numpy().tobytes())
    return key.hexdigest()[:12]


def show(table):
    """Print {name: {label: Score}} as Markdown, and which differences exceed the noise."""
    labels = list(dict.fromkeys(label for scores in table.values() for label in scores))
    best = {label: min((name for name in table if label in table[name]), key=lambda name: rank_of(table[name][label]))
            for label in labels}

    def cell(name, label):
        if label not in table[name]:
            return ''
        mean, error = table[name][label][:2]
        text = f'{mean:.4f}' + ('' if math.isnan(error) else f' ± {error:.4f}')
        return f'**{text}**' if len(table) > 1 and best[label] == name else text

    print('| |', ' | '.join(labels), '|')
    print('| --- |', ' --- |' * len(labels), sep='')
    for name in table:
        print(f'| {name} |', ' | '.join(cell(name, label) for label in labels), '|')
    if len(table) > 1:
        print()
    for label in labels:
        for name in table:
            if name != best[label] and label in table[name] and label not in ('perplexity', 'bits per byte'):    # see loss
                behind = difference(table[name][label], table[best[label]][label])
                if behind:
                    gap, error, p, how = behind
                    shown = f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'
                    print(f'{label}: {name} is {gap:.4f} ± {error:.4f} behind {best[label]}, '
                          f'{"beyond" if p < 0.05 else "within"} the noise ({shown}, {how})')


def rank_of(score):
    """Return a sort key that puts the better score first and NaN last."""
    return math.isnan(score.mean), score.mean if score.lower else -score.mean


def difference(score, best):
    """Return (how far a score is behind, its standard error, p, 'paired' or 'not paired'), by a t-test on paired units if both
    have them, or else by a z-test on the means. Return None if neither is possible."""
    gap = abs(score.mean - best.mean)
    if score.units is not None and best.units is not None and len(score.units) == len(best.units):
        each = score_of(score.units - best.units)
        if each.error > 0:
            return gap, each.error, stats.ttest_rel(score.units, best.units).pvalue, 'paired'
        return None
    error = math.hypot(score.error, best.error)
    return (gap, error, 2 * stats.norm.sf(gap / error), 'not paired') if error > 0 and math.isfinite(gap) else None


def numbers(score):
    return dict(mean=score.mean, error=score.error)


def append(path, row):
    with open_rows(path) as f:                          # on a full disk, closing it raises OSError
        write_row(f, row)
