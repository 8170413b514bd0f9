"""
Pictures of runs, from their log.jsonl:

    python plot.py out-quick                        # writes out-quick/loss.png
    python plot.py out-a out-b out-c --out=abc.png  # several runs in one picture
"""
import argparse
import json
import os
import sys

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

# Okabe and Ito's palette, which colour-blind readers tell apart
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442']


def read_log(folder):
    """The rows of a run's log; a last line that a kill cut short is left out."""
    path = os.path.join(folder, 'log.jsonl')
    if not os.path.exists(path):
        sys.exit(f'error: there is no {path}: {folder!r} is not the folder of a run')
    with open(path, encoding='utf-8') as f:
        return [json.loads(line) for line in f if line.endswith('}\n')]


def plot_loss(folders, out):
    """Training loss (thin) and validation loss (dots) of runs, named by their folders, and the learning rate below."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(4, 1), layout='constrained')
    for i, folder in enumerate(folders):
        color, label, rows = COLORS[i % len(COLORS)], os.path.basename(os.path.normpath(folder)), read_log(folder)
        train = [(row['iter'], row['loss'], row['lr']) for row in rows if 'loss' in row]
        val = [(row['iter'], row['val_loss']) for row in rows if 'val_loss' in row]
        if train:
            iters, losses, lrs = zip(*train)
            top.plot(iters, losses, color=color, linewidth=0.8, alpha=0.5, label=f'{label}: training')
            bottom.plot(iters, lrs, color=color)
        if val:
            top.plot(*zip(*val), color=color, marker='o', markersize=4,
                     label=f'{label}: validation, {min(v for _, v in val):.3f} at best')
    top.set_ylabel('loss (nats per token)')
    top.legend()
    bottom.set_ylabel('learning rate')
    bottom.set_xlabel('iteration')
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(out, dpi=120)
    plt.close(figure)
    print(f'wrote {out}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', help='out_dir of each run')
    parser.add_argument('--out', help='the picture; default: loss.png in the first folder')
    args = parser.parse_args()
    plot_loss(args.folders, args.out or os.path.join(args.folders[0], 'loss.png'))
