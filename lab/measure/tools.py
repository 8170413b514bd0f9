"""What the measurements share: hooks, gradients, spectral norms, slopes, histograms and tables."""
import math
import re
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from engine.run import progress
from engine.stats import collected
from model import at_least_fp32

KINDS = ('wq', 'wk', 'wv', 'wo', 'wg', 'w1', 'w2', 'w3')        # the matrices of a block; wg is of attn_gate, w3 of SwiGLU
MATRICES = ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')                 # those of each model, which have panels


def matrix_kind(name):
    """'h.3.attn.wq.weight' → 'wq'; None if it is not a matrix of a block."""
    match = re.fullmatch(r'h\.\d+\.(?:attn|ffn)\.(w\w)\.weight', name)
    return match[1] if match else None


def measurement(show, plot, **keys):
    """Give a measurement its table, show(result), and its picture, plot([(run's name, folder), …], **keys)."""
    def give(measure):
        measure.show, measure.plot = show, partial(plot, what=measure.__name__, **keys) if keys else plot
        measure.plot.__doc__ = measure.__doc__          # lab.plot --help prints its first line
        return measure
    return give


def outputs(*modules):
    """Within this context, collect the outputs of each module, a list per module; of a tuple, its first element."""
    return collected(modules, lambda args, out: out[0] if isinstance(out, tuple) else out)


@contextmanager
def scaled(tensors, factor):
    """Within this context, multiply these parameters by the factor."""
    kept = [p.detach().clone() for p in tensors]
    try:
        for p in tensors:
            p.data.mul_(factor)
        yield
    finally:
        for p, was in zip(tensors, kept):
            p.data.copy_(was)


def slope(xs, sizes):
    """Return the slope of the least-squares line through (x, log size), and the RMS of the residual; NaN if a size is 0."""
    if len(sizes) < 2 or min(sizes) <= 0:
        return math.nan, math.nan
    x, y = (values - values.mean() for values in (np.array(xs), np.log(sizes)))
    b = x @ y / (x @ x)
    return float(b), float(np.std(y - b * x))


def mean_gradient(model, batches, labels=None):
    """Return {name: gradient} of the mean loss over the batches; labels(logits), if given, replaces their targets."""
    names, params = zip(*model.named_parameters())
    total = [torch.zeros_like(p) for p in params]
    for x, y in progress(batches, 'gradient, batches'):
        logits = at_least_fp32(model(x)[0])
        y = y if labels is None else labels(logits.detach())
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=-1)
        for t, g in zip(total, torch.autograd.grad(loss / len(batches), params, materialize_grads=True)):
            t += g
    return dict(zip(names, total))


def top_singular_value(multiply, transpose, v, steps=200, tolerance=1e-4):
    """Return the largest singular value of a linear map, by power iteration from v."""
    sigma = 0.0
    for _ in range(steps):
        u = multiply(v / v.norm())
        was, sigma = sigma, u.norm().item()
        if sigma == 0.0 or abs(sigma - was) <= tolerance * sigma:
            break
        v = transpose(u)
    return sigma


LOG_BINS = dict(bins=400, min=-30.0, max=10.0)          # of log10: the same in all histograms, so that runs can be compared
BIN = (LOG_BINS['max'] - LOG_BINS['min']) / LOG_BINS['bins']


def log_histogram(x):
    """Return the histogram of log10 |x| in LOG_BINS, without empty bins at its ends: the start of the first bin, the width of a
    bin, and the counts. Zeros are left out."""
    counts = torch.histc(x.abs().log10(), **LOG_BINS).long().tolist()
    held = [i for i, n in enumerate(counts) if n] or [0]
    return dict(start=LOG_BINS['min'] + held[0] * BIN, width=BIN, counts=counts[held[0]:held[-1] + 1])


def table(title, rows, first='', keys=()):
    """Print {label: {column: value}}, or a list of rows whose labels are their 'at' or numbers. `first` heads the labels. `keys`
    are the columns, by default all."""
    if isinstance(rows, list):
        rows = {str(row.get('at', i)): row for i, row in enumerate(rows, 1)}
    keys = keys or [key for key in dict.fromkeys(key for row in rows.values() for key in row) if key != 'at']
    lines = [[first, *keys]]
    for label, row in rows.items():
        values = [row.get(key) for key in keys]
        lines.append([label, *(v if isinstance(v, str) else '–' if v is None else f'{v:.4g}' for v in values)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(f'\n{title}')
    for label, *cells in lines:
        print('  ' + '  '.join([label.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:]))]))
