"""
The coordinate check of muP: how far the activations move in the first steps of training, at several widths:

    python -m lab.coordinates config/train_quick.py config/arch/pre.py --out_dir=out-standard
    python -m lab.coordinates config/train_quick.py config/arch/pre.py --mup_base_width=64 --mup_base_head_dim=64 \\
        --out_dir=out-mup
    python -m lab.plot out-standard out-mup --what=coordinates --out=out-mup/both.png

If an activation moves as far at every width, in its root mean square, then the width's learning rate is the base width's (Yang et
al. 2022, appendix D.1). The head dimension stays as it is, so that wider models have more heads. The result is in the file
coordinates.json of out_dir.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.coordinates')

from configurator import TRAIN, at_least, configure, defaults_of

import math
import os
import re

import torch

from data.tokens import Tokens
from engine.device import pick_device
from engine.files import finite, read_json, write_json
from engine.keys import check_keys, gpt_config, group_settings
from engine.run import progress
from engine.step import training_step
from lab.measure.tools import attention_inputs, attention_logits, outputs, slope, table
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
    """Return the keys of the same model at another width, with the same head dimension and the same ratio of d_ff and
    n_kv_head."""
    sizes = {key: config[key] * width for key in ('n_head', 'n_kv_head', 'd_ff')}
    for key, size in sizes.items():
        if size % config['n_embd']:
            raise ValueError(f'widths={widths}: n_embd={width} has no {key} in proportion to {config[key]} at '
                             f'n_embd={config["n_embd"]}; choose widths that do')
    return {**config, 'n_embd': width, **{key: size // config['n_embd'] for key, size in sizes.items()}}


@torch.no_grad()
def activations(model, x):
    """Return {name: tensor}: the embeddings, each block's attention logits (where they are known) and the outputs of its two
    branches, and the stream and the logits at the end."""
    model.eval()
    attn, ffn = ([getattr(block, name) for block in model.h] for name in ('attn', 'ffn'))
    with outputs(model.dropout, *attn, *ffn, model.h[-1]) as seen, attention_inputs(*model.h) as heads:
        logits = model(x)[0]
    model.train()
    seen = [outs[-1] for outs in seen]
    n = len(model.h)
    scores = [attention_logits(q, k, scale) for q, k, scale, _ in heads]
    known = dict(attention_logits=torch.stack(scores)) if scores else {}
    return dict(embeddings=seen[0], **known, attention=torch.cat(seen[1:1 + n]), ffn=torch.cat(seen[1 + n:1 + 2 * n]),
                stream=seen[-1], logits=logits)


def moves(config, data, device, seed):
    """Return {activation: [the mean square of its change after step 1, 2, …]} of one model, on a batch that it is not trained
    on."""
    torch.manual_seed(seed)
    model = GPT(gpt_config(config)).to(device)
    model.after_step()                                  # as training starts: nGPT normalizes its weights
    optimizer = make_optimizer(param_groups(model, **group_settings(config)),
                               {**config, 'compile': False, 'dtype': torch.float32})
    for group in optimizer.param_groups:
        group['lr'] = config['learning_rate'] * group['lr_scale'] * group['lr_ratio']
    size = config['batch_size']
    x = data.shuffled(steps * size, size, seed)[0].to(device)
    start, squares = activations(model, x), {}
    for step in range(steps):
        batch = [t.to(device) for t in data.shuffled(step * size, size, seed)]
        training_step(model, model, optimizer, [batch], config['grad_clip'])
        for name, after in activations(model, x).items():
            squares.setdefault(name, []).append((after - start[name]).square().mean().item())
    return squares


def exponent(sizes):
    """Fit the power p of size ≈ c · width^p to {width: size}; NaN if a size is not positive."""
    return slope([math.log(width) for width in sizes], [*sizes.values()])[0]


def coordinates(config, data, of_widths, device):
    """Return {activation: {width: [root mean square of its change after step 1, 2, …]}}"""
    found = {}
    for width in progress(of_widths, 'widths'):
        of_seeds = [moves(resized(config, width), data, device, config['seed'] + i) for i in range(seeds)]
        for name in of_seeds[0]:
            squares = torch.tensor([squares_of_seed[name] for squares_of_seed in of_seeds]).mean(0)
            found.setdefault(name, {})[width] = squares.sqrt().tolist()
    return found


def plot_coordinates(runs):
    """How far activations move in the first steps, against the width: the coordinate check of muP.

    Solid: after the last step, dashed: after the first. A flat line means that the base width's learning rate fits. It needs
    python -m lab.coordinates."""
    found = []
    for _, folder in runs:
        found.append(read_json(os.path.join(folder, 'coordinates.json'), 'make it again', math.nan))
        if not found[-1]:
            raise ValueError(f'there is no {folder}/coordinates.json: make it with  python -m lab.coordinates')
    names = [*dict.fromkeys(name for measured in found for name in measured['activations'])]
    figure, axes = panels(len(names), sharey=True)
    for ax, name in zip(axes, names):
        ax.set(xscale='log', yscale='log', xlabel='width', ylabel='change (RMS)', title=name.replace('_', ' '))
        for i, ((run, _), measured) in enumerate(zip(runs, found)):
            sizes, style = measured['activations'].get(name, {}), style_of(i)
            at = [*map(int, sizes)]
            ax.plot(at, [size[-1] for size in sizes.values()], label=run, **style)
            ax.plot(at, [size[0] for size in sizes.values()], color=style['color'], ls='--', lw=0.8)
            ax.set_xticks(at, sizes, rotation=90 * (len(at) > 4))
        ax.xaxis.minorticks_off()
    return finish(figure, f'run, after {found[0]["steps"]} steps; dashed: after the first')


def main():
    config = configure(globals(), TRAIN, GPTConfig)
    check_keys(config)
    at_least(config, steps=1, seeds=1, batch_size=1, seed=0)
    if os.path.exists(os.path.join(out_dir, 'log.jsonl')):
        raise ValueError(f'{out_dir} holds a run, choose another --out_dir')
    of_widths = [*map(int, widths.split(','))] if re.fullmatch(r'\d+(,\d+)+', widths) else []
    if len({*of_widths} - {0}) < 2:
        raise ValueError(f'widths={widths}: wants two or more values of n_embd with commas between them, as in --widths=64,128')
    for width in of_widths:
        gpt_config(resized(config, width))              # raises for a width that the config forbids
    model_config = gpt_config(config)
    data = Tokens(config['dataset'], 'train', model_config.block_size, model_config.vocab_size)
    found = coordinates(config, data, of_widths, pick_device(config['device']))
    rows = {}
    for name, sizes in found.items():
        last = {width: size[-1] for width, size in sizes.items()}
        rows[name] = {**{str(width): size for width, size in last.items()}, 'power': exponent(last)}
    table(f'root mean square of the change after {steps} steps, and its power of the width', rows)
    os.makedirs(out_dir, exist_ok=True)
    write_json(os.path.join(out_dir, 'config.json'), {key: config[key] for key in defaults_of(TRAIN, GPTConfig)})
    write_json(os.path.join(out_dir, 'coordinates.json'), finite(dict(steps=steps, seeds=seeds, activations=found)))
    draw('coordinates', [out_dir], os.path.join(out_dir, 'coordinates.png'))


if __name__ == '__main__':
    main()
