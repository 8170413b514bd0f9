"""Heat maps of layers × iterations."""
import math

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lab.plot.lines import FULL
from lab.plot.names import labels
from lab.plot.runs import name_of_key, quantities, read_log

COLUMNS = 400           # of a picture; each shows the largest of the values in it, so that no spike is lost
RUNS = 4                # side by side


def by_layer(rows):
    """Return {key: (iterations, (layers, iterations))} of the numbers that a log's rows have for each layer, NaN for none."""
    found = {}
    for row in rows:
        for key, layers in quantities(row).items():
            if '1' in layers and 'diverged' not in row:
                found.setdefault(key, {})[row['iter']] = layers
    maps = {}
    for key, values in found.items():
        depth = max(int(layer) for layers in values.values() for layer in layers)
        maps[key] = [*values], np.array([[layers.get(str(layer), math.nan) for layers in values.values()]
                                         for layer in range(1, depth + 1)])
    return maps


def narrowed(iterations, values):
    """Return a heat map with at most COLUMNS columns."""
    size = -(-len(iterations) // COLUMNS)
    missing = -len(iterations) % size
    padded = np.pad(values, ((0, 0), (0, missing)), constant_values=math.nan).reshape(len(values), -1, size)
    return iterations[::size], np.fmax.reduce(padded, axis=-1)


def scale(maps):
    """Return the scale of colours for these heat maps: logarithmic if they are positive and their middle 90% span a factor of
    10."""
    values = np.sort(np.concatenate([values[np.isfinite(values)] for _, values in maps]))
    if not len(values):
        return Normalize(0, 1)
    low, high = values[len(values) // 20], values[-1 - len(values) // 20]
    return (LogNorm if values[0] > 0 and high > 10 * low else Normalize)(values[0], values[-1])


def plot_heat(folders):
    """All that a run logs per layer, as heat maps of layers × iterations: norms too with --log_layers=True.

    A column of the picture is one run if there are several, and their colours mean the same. Grey: the layer has no such number.
    Where several iterations share a column of pixels, the largest value is shown."""
    runs = {name: by_layer(read_log(folder)) for name, folder in zip(labels(folders, RUNS), folders)}
    keys = list(dict.fromkeys(key for maps in runs.values() for key in maps))
    if not keys:
        raise ValueError(f'{folders[0]} has logged no number per layer: each evaluation does, but not with --parallel=fsdp')
    columns = len(runs) if len(runs) > 1 else min(3, len(keys))
    height = -(-len(keys) * len(runs) // columns)
    figure = Figure(figsize=(FULL, 1.5 * height + 0.3), layout='constrained')
    axes = figure.subplots(height, columns, sharex=True, squeeze=False)
    panels = [(key, name) for key in keys for name in runs]
    for ax in axes.flat[len(panels):]:
        ax.remove()
    for (key, name), ax in zip(panels, axes.flat):
        ax.set_title(name_of_key(key).replace('\n', ' ') + f'\n{name}' * (len(runs) > 1), fontsize=7)
        ax.set(facecolor='0.85')
        ax.grid(False)
        if key in runs[name]:
            iterations, values = narrowed(*runs[name][key])
            ends = [*iterations, 2 * iterations[-1] - iterations[-2] if len(iterations) > 1 else iterations[-1] + 1]
            colours = ax.pcolormesh(ends, np.arange(len(values) + 1) + 0.5, np.ma.masked_invalid(values), rasterized=True,
                                    norm=scale([maps[key] for maps in runs.values() if key in maps]))
            figure.colorbar(colours, ax=ax, pad=0.02).ax.tick_params(labelsize=6)
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for ax in axes[:, 0]:
        ax.set_ylabel('layer')
    for ax in axes.flat[len(panels) - columns:len(panels)]:         # the lowest ones
        ax.tick_params(labelbottom=True)
    figure.supxlabel('iteration', fontsize=9)
    return figure
