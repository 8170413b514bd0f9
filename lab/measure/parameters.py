"""The norms of matrices and gains, and how far an optimizer's step moves the weights."""
import math

import torch

from lab.measure.tools import KINDS, MATRICES, matrix_kind, measurement, table, top_singular_value
from lab.plot import along_depth
from model import block_type

MEANS = ('wq', 'wk', 'wv', 'wo', 'attn_pre_norm', 'w1', 'w2', 'ffn_pre_norm')          # of figure 8


def show_parameters(result):
    matrices = {kind: [f'{m["spectral"]:.3g} ({m["frobenius"]:.3g})' for m in of_layers]
                for kind, of_layers in result.items() if isinstance(of_layers, list)}
    rows = [dict(zip(matrices, layer)) for layer in zip(*matrices.values())]
    table('spectral norm (Frobenius norm) of the matrices', rows, 'layer')
    table('gains of the norms', result['gains'], keys=('mean', 'max', 'frobenius'))
    table('Frobenius norm, a mean over layers', {'': result['means']})


@measurement(show_parameters, along_depth, y='spectral norm', linear=len(MATRICES),
             shown={f'$W_{kind[1]}$': f'{kind}.spectral' for kind in MATRICES})
def parameters(model, batches, rng):
    """The spectral and the Frobenius norm of each matrix along the depth, and the size of gains.

    `gains` has the mean and largest |gain| and the Frobenius norm of each norm's gain. `means` are Frobenius norms of weights and
    of the gains before branches, as means over layers (sharpness disparity, figure 8)."""
    result, by_place = {**{kind: [] for kind in KINDS}, 'gains': {}}, {}
    for name, parameter in model.named_parameters():
        p, frobenius = parameter.detach(), parameter.norm().item()
        if name.endswith('.weight') and (place := name.split('.')[-2]) in MEANS:
            by_place.setdefault(place, []).append(frobenius)
        if name == 'wte.weight':
            result['embedding'] = dict(frobenius=frobenius)
        if kind := matrix_kind(name):
            start = torch.randn(p.size(1), generator=rng, device=p.device, dtype=p.dtype)
            spectral = top_singular_value(lambda v: p @ v, lambda u: p.T @ u, start, tolerance=1e-6)
            result.setdefault(kind, []).append(dict(frobenius=frobenius, spectral=spectral))
        elif name.endswith('norm.weight'):
            result['gains'][name.removesuffix('.weight')] = dict(mean=p.abs().mean().item(), max=p.abs().max().item(),
                                                                 frobenius=frobenius)
    result['means'] = {place: sum(sizes) / len(sizes) for place, sizes in by_place.items()}
    return {key: value for key, value in result.items() if value or key == 'gains'}


def update_sizes(before, model):
    """Return ‖w − before‖ / ‖before‖ per block type; before = {name: tensor} is from before an optimizer's step."""
    moved, size = {}, {}
    for name, p in model.named_parameters():
        kind = block_type(name, model.config.params)
        moved[kind] = moved.get(kind, 0.0) + (p.detach() - before[name]).square().sum().item()
        size[kind] = size.get(kind, 0.0) + before[name].square().sum().item()
    return {kind: math.sqrt(moved[kind] / size[kind]) for kind in moved if size[kind]}
