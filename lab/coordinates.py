"""
The coordinate check of muP: how far the activations move in the first steps of training, at several widths:

    python -m lab.coordinates config/train_quick.py config/arch/pre.py --out_dir=out-standard
    python -m lab.plot out-standard out-mup-check --what=coordinates        # docs/width.md makes the second

If each moves as far at every width, then the base width's learning rate fits all (Yang et al. 2022, appendix D.1). Wider models
have more heads, of the same dimension. The result is coordinates.json in out_dir.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.coordinates')

from configurator import TRAIN, at_least, configure

import math
import os

import torch

from data.tokens import Tokens
from engine.device import pick_device
from engine.files import finite, read_json, write_json
from engine.keys import check_keys, gpt_config, group_settings
from engine.run import progress
from engine.stats import capture_attention_inputs
from engine.step import training_step
from lab.measure.attention import attention_logits
from lab.measure.tools import outputs, slope, table
from lab.plot import draw, finish, panels, style_of
from model import GPT, GPTConfig
from optim import make_optimizer, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out-coordinates'         # the folder of coordinates.json and its picture
widths = '64,128,256,512'           # values of n_embd, each a multiple of the head dimension
steps = 10                          # iterations of training, at a constant learning rate and without warm-up
seeds = 3                           # models of each width, over which the squares are averaged
# -----------------------------------------------------------------------------

def resized(config, width):
    """Return the keys of the same model at another width: n_head, n_kv_head and d_ff grow in proportion."""
    sizes = {key: config[key] * width / config['n_embd'] for key in ('n_head', 'n_kv_head', 'd_ff')}
    if not all(map(float.is_integer, sizes.values())):
        raise ValueError(f'widths={widths}: n_embd={width} splits a head or d_ff: must be a multiple of the head dimension')
    return {**config, 'n_embd': width, **{key: int(size) for key, size in sizes.items()}}


@torch.no_grad()
def activations(model, x):
    """Return {name: tensor}: embeddings, attention's logits (if known), outputs of the branches; stream and logits at the end."""
    n, heads = len(model.h), []
    modules = [model.dropout, *(block.attn for block in model.h), *(block.ffn for block in model.h), model.h[-1]]
    model.eval()
    with outputs(*modules) as seen, capture_attention_inputs(model.h, lambda *inputs: heads.append(inputs)):
        logits = model(x)[0]
    model.train()
    embeddings, *branches, stream = [outs[-1] for outs in seen]
    known = {'attention_logits': torch.stack([attention_logits(*head[:3]) for head in heads])} if heads else {}
    branches = dict(attention=torch.cat(branches[:n]), ffn=torch.cat(branches[n:]))
    return dict(embeddings=embeddings, **known, **branches, stream=stream, logits=logits)


def moves(config, data, device, seed):
    """Return {activation: [the mean square of its change after step 1, 2, …]} of a model, on a batch that trains nothing."""
    torch.manual_seed(seed)
    model = GPT(gpt_config(config)).to(device)
    model.after_step()                                  # as training starts: nGPT normalizes its weights
    groups = param_groups(model, **group_settings(config))
    optimizer = make_optimizer(groups, {**config, 'compile': False, 'dtype': torch.float32})
    for group in optimizer.param_groups:
        group['lr'] = config['learning_rate'] * group['lr_scale'] * group['lr_ratio']
    *batches, (x, _) = [[t.to(device) for t in data.shuffled(step * config['batch_size'], config['batch_size'], seed)]
                        for step in range(steps + 1)]
    start, squares = activations(model, x), {}
    for batch in batches:
        training_step(model, model, optimizer, [batch], config['grad_clip'])
        for name, after in activations(model, x).items():
            squares.setdefault(name, []).append((after - start[name]).square().mean().item())
    return squares


def plot_coordinates(runs):
    """How far activations move in the first steps, against the width: the coordinate check of muP, by lab.coordinates."""
    found = {name: read_json(os.path.join(folder, 'coordinates.json'), 'make it again', math.nan) for name, folder in runs}
    if missing := [folder for name, folder in runs if not found[name]]:
        raise ValueError(f'there is no {missing[0]}/coordinates.json: make it with  python -m lab.coordinates')
    names = [*dict.fromkeys(name for measured in found.values() for name in measured['activations'])]
    figure, axes = panels(len(names), sharey=True)
    for ax, name in zip(axes, names):
        ax.set(xscale='log', yscale='log', xlabel='width', ylabel='change (RMS)', title=name.replace('_', ' '))
        for i, (run, measured) in enumerate(found.items()):
            sizes, style = measured['activations'].get(name, {}), style_of(i)
            at = [*map(int, sizes)]
            ax.plot(at, [size[-1] for size in sizes.values()], label=run, **style)
            ax.plot(at, [size[0] for size in sizes.values()], color=style['color'], ls='--', lw=0.8)
            ax.set_xticks(at, sizes, rotation=90 * (len(at) > 4))
        ax.xaxis.minorticks_off()
    return finish(figure, f'run, after {measured["steps"]} steps; dashed: after the first')


def main():
    config = configure(globals(), TRAIN, GPTConfig)
    check_keys(config)
    at_least(config, steps=1, seeds=1, batch_size=1, seed=0)
    configs = {width: resized(config, width) for width in map(int, widths.split(','))}
    if len(configs) < 2:
        raise ValueError(f'widths={widths}: must be two or more widths, for a power of the width')
    model_config = [gpt_config(keys) for keys in configs.values()][0]           # raises for a width that the config forbids
    data = Tokens(config['dataset'], 'train', model_config.block_size, model_config.vocab_size)
    device, found = pick_device(config['device']), {}
    for width, keys in progress(configs.items(), 'widths'):
        of_seeds = [moves(keys, data, device, config['seed'] + i) for i in range(seeds)]
        for name in of_seeds[0]:
            squares = torch.tensor([squares[name] for squares in of_seeds]).mean(0)
            found.setdefault(name, {})[width] = squares.sqrt().tolist()
    rows = {name: {str(width): size[-1] for width, size in sizes.items()} for name, sizes in found.items()}
    for row in rows.values():
        row['power'] = slope([math.log(width) for width in configs], [*row.values()])[0]
    table(f'root mean square of the change after {steps} steps, and its power of the width', rows)
    os.makedirs(out_dir, exist_ok=True)
    write_json(os.path.join(out_dir, 'coordinates.json'), finite(dict(steps=steps, seeds=seeds, activations=found)))
    draw(plot_coordinates, [out_dir], os.path.join(out_dir, 'coordinates.png'))


if __name__ == '__main__':
    main()
