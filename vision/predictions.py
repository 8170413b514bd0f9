"""
Draw validation images with the classes that a run's best.pt predicts: those with the highest losses, and an even sample:

    python -m vision.predictions out-quick-vision                   # out-quick-vision/predictions.png and .svg
    python -m vision.predictions out-a out-b --out=both.png
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.predictions')

from engine.process import begin

import argparse
import os
import textwrap

import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from engine.checkpoint import load_run
from lab.plot import write
from lab.plot.lines import COLORS, FULL
from lab.plot.names import labels
from vision.images import Images, read_image_meta
from vision.vit import ViT


def draw_predictions(folders):
    """Return a figure of these runs' predictions."""
    run_names = labels(folders)
    figure = Figure(figsize=(FULL, 6.6 * len(folders)))
    grid = dict(left=0.01, right=0.99, bottom=0.01, top=0.86, hspace=0.45)
    parts = figure.subfigures(2 * len(folders), 1, squeeze=False).flat
    for folder, run_name in zip(folders, run_names):
        model, state = load_run(os.path.join(folder, 'best.pt'), Model=ViT)
        names = read_image_meta(state['config']['dataset'])['names']
        images = Images(state['config']['dataset'], 'val', model.config)
        batches = [images.read(numbers) for numbers in images.spread(16, 64)]
        with torch.no_grad():
            logits = torch.cat([model.eval()(x)[0] for x, _ in batches])
        x, y = (torch.cat(tensors) for tensors in zip(*batches))
        loss, guess = F.cross_entropy(logits, y, reduction='none'), logits.argmax(1)
        for title, order in (('the highest losses', loss.argsort(descending=True)[:24]),
                             ('an even sample', torch.linspace(0, len(y) - 1, 24).long())):
            part = next(parts)
            part.suptitle(f'{run_name}: {title}', fontsize=9)
            for ax, i in zip(part.subplots(3, 8, gridspec_kw=grid).flat, order.tolist()):
                ax.imshow(x[i].permute(1, 2, 0), cmap='gray')
                name, true = (names[k] if k < len(names) else str(k) for k in (guess[i].item(), y[i].item()))
                ax.set_title(name if name == true else textwrap.fill(f'{name}, not {true}', 13), fontsize=8, pad=3,
                             color='black' if name == true else COLORS[1])
                ax.axis('off')
    return figure


if __name__ == '__main__':
    parser = argparse.ArgumentParser(prog='python -m vision.predictions', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('folders', nargs='+', help='out_dir of each run')
    parser.add_argument('--out', help='the picture; default: predictions.png in the first folder')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    begin(args.debug)
    write(draw_predictions(args.folders), args.out or os.path.join(args.folders[0], 'predictions.png'))
