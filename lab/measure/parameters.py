"""The norms of matrices, gains and block types, and how far an optimizer's step moves them."""
import math

import torch

from lab.measure.gradients import MATRICES
from lab.measure.sharpness import FACTORED, smallest_row
from lab.measure.tools import KINDS, matrix_kind, table, top_singular_value
from lab.plot.measured import along_depth
from model import block_type


def parameters(model, batches, rng):
    """Frobenius and spectral norm of each matrix of the blocks, per layer; mean and largest |gain| and Frobenius norm of each
    norm's gain; the token embedding's Frobenius norm and smallest_row; the Frobenius norm of all parameters of each block type;
    and, as a mean over layers, that of weights and of the gains before branches (sharpness disparity, figure 8)."""
    result, squares, types = {**{kind: [] for kind in KINDS}, 'gains': {}}, {}, model.config.block_types
    by_layer = {}
    for name, parameter in model.named_parameters():
        p = parameter.detach()
        kind = block_type(name, types)
        squares[kind] = squares.get(kind, 0.0) + p.square().sum().item()
        if name.endswith('.weight') and (place := name.split('.')[-2]) in FACTORED:
            by_layer.setdefault(place, []).append(p.norm().item())
        if name == 'wte.weight':
            result['embedding'] = dict(frobenius=p.norm().item(), smallest_row=smallest_row(p))
        if matrix_kind(name):
            start = torch.randn(p.size(1), generator=rng, device=p.device, dtype=p.dtype)
            spectral = top_singular_value(lambda v: p @ v, lambda u: p.T @ u, start, tolerance=1e-6)
            result.setdefault(matrix_kind(name), []).append(dict(frobenius=p.norm().item(), spectral=spectral))
        elif name.endswith('norm.weight'):
            result['gains'][name.removesuffix('.weight')] = dict(mean=p.abs().mean().item(), max=p.abs().max().item(),
                                                                   frobenius=p.norm().item())
    result['means'] = {place: sum(sizes) / len(sizes) for place, sizes in by_layer.items()}
    result['types'] = {kind: math.sqrt(square) for kind, square in squares.items()}
    return {key: value for key, value in result.items() if value or key == 'gains'}


def update_sizes(before, model):
    """‖w − before‖ / ‖before‖ per block type; before = {name: tensor} is from before an optimizer's step."""
    moved, size = {}, {}
    for name, p in model.named_parameters():
        kind = block_type(name, model.config.block_types)
        moved[kind] = moved.get(kind, 0.0) + (p.detach() - before[name]).square().sum().item()
        size[kind] = size.get(kind, 0.0) + before[name].square().sum().item()
    return {kind: math.sqrt(moved[kind] / size[kind]) for kind in moved if size[kind]}


def show_parameters(result):
    kinds = [kind for kind, of_layers in result.items() if isinstance(of_layers, list)]
    table('spectral norm (Frobenius norm) of the matrices', ['layer', *kinds],
          [[str(i), *(f'{m["spectral"]:.3g} ({m["frobenius"]:.3g})' for m in layer)]
           for i, layer in enumerate(zip(*(result[kind] for kind in kinds)), 1)])
    table('gains of the norms', ['', 'mean', 'max', 'Frobenius norm'],
          [[name, g['mean'], g['max'], g['frobenius']] for name, g in result['gains'].items()])
    types = result['types']
    table('Frobenius norm of all parameters of a block type', ['', *types], [['', *types.values()]])


def show_updates(result):
    table('one step of the optimizer, relative to the parameters', ['', *result],
          [['', *result.values()]])


def plot_parameters(folders):
    """The spectral norm of each matrix along the depth."""
    panels = {f'$W_{kind[1]}$': f'{kind}.spectral' for kind in MATRICES}
    return along_depth(folders, 'parameters', panels, y='spectral norm', log='')
