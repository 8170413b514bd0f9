"""
Pictures of runs, from their log.jsonl and from what lab/measure.py found:

    python -m lab.plot out-quick                                    # writes out-quick/loss.png
    python -m lab.plot out-a out-b out-c --out=abc.png              # several runs in one picture
    python -m lab.plot out-a out-b --what=gradients                 # or sharpness, hidden, …: see --help
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

import argparse
import csv
import glob
import json
import math
import os

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

from configurator import ROOT, read_config, report  # noqa: E402

# Okabe and Ito's palette, which colour-blind readers tell apart
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442']
TYPES = dict(zip(('emb', 'head', 'qk', 'vo', 'ffn', 'norm'), COLORS))


# ----------------------------------------------------------------------------- what runs have written

def read_rows(folder, name):
    """The rows of a run's log.jsonl or measure.jsonl; a last line that a kill cut short is left out."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: {folder!r} is not the folder of a run')
    try:
        with open(path, encoding='utf-8') as f:
            return [json.loads(line) for line in f if line.endswith('}\n')]
    except ValueError as error:
        raise ValueError(f'{path} is damaged: {error}') from error


def read_measured(folder, what):
    """What measure.json holds of this measurement."""
    path = os.path.join(folder, 'measure.json')
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: make it with  python -m lab.measure --out_dir={folder}')
    try:
        with open(path, encoding='utf-8') as f:
            measured = json.load(f)
    except ValueError as error:
        raise ValueError(f'{path} is damaged: {error}') from error
    if what not in measured:
        raise ValueError(f'{path} holds no {what}: make it with  python -m lab.measure --out_dir={folder} --what={what}')
    return measured[what]


def number(value):
    """What measure.py wrote, where null is what was not finite."""
    return math.nan if value is None else value


def label(folder):
    """'out-a (pre, residual_scale=0.1, sgdw)': the folder, the nearest fragment of config/arch and how the run differs from
    it, if in no more than two keys, and the optimizer."""
    name = os.path.basename(os.path.normpath(folder))
    try:
        with open(os.path.join(folder, 'config.json'), encoding='utf-8') as f:
            config = json.load(f)
    except OSError:
        return name
    except ValueError as error:
        raise ValueError(f'{f.name} is damaged: {error}') from error
    candidates = []
    for path in sorted(glob.glob(os.path.join(ROOT, 'config', 'arch', '*.py'))):
        fragment = read_config(path, {})
        differs = [f'{key}={config.get(key)}' for key, value in fragment.items() if config.get(key) != value]
        candidates.append([os.path.basename(path).removesuffix('.py'), *differs])
    nearest = min(candidates, key=len)
    return f'{name} ({", ".join([*(nearest if len(nearest) <= 3 else []), config["optimizer"]])})'


# ----------------------------------------------------------------------------- pictures: each takes folders, returns a figure

def panels(rows, columns, width=4.0, height=3.0, **more):
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), layout='constrained',
                                squeeze=False, **more)
    for ax in axes.flat:
        ax.grid(alpha=0.3)
        ax.spines[['top', 'right']].set_visible(False)
    return figure, axes


def plot_loss(folders):
    """Training loss (thin) and validation loss (dots) of runs, validation accuracy of those on images, and the learning rate."""
    vision = any('val_top1' in row for folder in folders for row in read_rows(folder, 'log.jsonl'))
    figure, axes = panels(2 + vision, 1, 8, 3, sharex=True, height_ratios=(4, 2, 1) if vision else (4, 1))
    top, bottom = axes[0, 0], axes[-1, 0]
    for i, folder in enumerate(folders):
        color, rows = COLORS[i % len(COLORS)], read_rows(folder, 'log.jsonl')
        train = [(row['iter'], row['loss'], row['lr']) for row in rows if 'loss' in row]
        val = [(row['iter'], row['val_loss']) for row in rows if 'val_loss' in row]
        if train:
            iters, losses, lrs = zip(*train)
            top.plot(iters, losses, color=color, linewidth=0.8, alpha=0.5, label=f'{label(folder)}: training')
            bottom.plot(iters, lrs, color=color)
        if val:
            best = min(v for _, v in val)
            top.plot(*zip(*val), color=color, marker='o', markersize=4, label=f'{label(folder)}: validation, {best:.3f} at best')
        right = [(row['iter'], 100 * row['val_top1']) for row in rows if 'val_top1' in row]
        if right:
            axes[1, 0].plot(*zip(*right), color=color, marker='o', markersize=4, label=f'{right[-1][1]:.1f}% at the end')
            axes[1, 0].set_ylabel('validation top-1 (%)')
            axes[1, 0].legend()
    top.set_ylabel(f'loss (nats per {"image" if vision else "token"})')
    top.legend()
    bottom.set_ylabel('learning rate')
    bottom.set_xlabel('iteration')
    return figure


def plot_predictions(folders):
    """Validation images with the classes that best.pt gives them: above the ones that it is most wrong about, in red what is
    wrong; below some that are evenly spread."""
    import torch

    from data.images import Images, read_image_meta
    from engine.checkpoint import load_run
    from vit import ViTConfig
    figure, axes = panels(4 * len(folders), 12, 0.9, 1.1)
    for folder, rows in zip(folders, axes.reshape(len(folders), 48)):
        path = os.path.join(folder, 'best.pt')
        if not os.path.exists(path):
            raise ValueError(f'there is no {path}: {folder!r} is not the folder of a run that has been evaluated')
        model, state = load_run(path)
        c = model.config
        if not isinstance(c, ViTConfig):
            raise ValueError(f'{path} is of a model of text: predictions are of images')
        names = read_image_meta(state['config']['dataset'])['names']
        data = Images(state['config']['dataset'], 'val', c.image_size, c.channels, c.classes)
        some = [data.read(numbers) for numbers in data.spread(16, 64)]
        with torch.no_grad():
            logits = torch.cat([model.eval()(x)[0] for x, _ in some])
        x, y = (torch.cat(parts) for parts in zip(*some))
        loss, guess = torch.nn.functional.cross_entropy(logits, y, reduction='none'), logits.argmax(1)
        order = [*loss.argsort(descending=True)[:24].tolist(), *torch.linspace(0, len(y) - 1, 24).long().tolist()]
        for ax, i in zip(rows, order):
            ax.imshow(x[i].permute(1, 2, 0), cmap='gray')
            name, true = (names[k] if k < len(names) else str(k) for k in (guess[i].item(), y[i].item()))
            ax.set_title(name if name == true else f'{name}, not {true}', fontsize=7, color='k' if name == true else 'r')
            ax.axis('off')
    return figure


def shares(ax, histogram, **style):
    """A histogram of log10 as a line, in shares of what it holds, without the bins at its ends that are next to empty."""
    counts, total = histogram['counts'], sum(histogram['counts'])
    held = [i for i, n in enumerate(counts) if n > 1e-4 * total]
    if held:
        inside = range(held[0], held[-1] + 1)
        middles = [histogram['start'] + (i + 0.5) * histogram['width'] for i in inside]
        ax.plot(middles, [counts[i] / total for i in inside], **style)


def plot_gradients(folders):
    """The distribution of |gradient| of each kind of matrix, runs over one another (DNT, figure 1)."""
    figure, axes = panels(2, 3, sharex=True, sharey=True)
    for i, folder in enumerate(folders):
        measured = read_measured(folder, 'gradients')
        for ax, kind in zip(axes.flat, ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')):
            ax.set_title(f'$W_{kind[1]}$')
            if kind in measured:                        # W_k is W_q in tied L2 attention
                tail, kurtosis = number(measured[kind]['tail']), number(measured[kind]['kurtosis'])
                shares(ax, measured[kind]['histogram'], color=COLORS[i % len(COLORS)],
                       label=f'{label(folder)}\np99.9/p50 {tail:.3g}, kurtosis {kurtosis:.3g}')
                ax.legend(fontsize=6)
    for ax in axes[-1]:
        ax.set_xlabel('log₁₀ |gradient|')
    for ax in axes[:, 0]:
        ax.set_ylabel('share of the entries, per bin')
    return figure


def plot_sharpness(folders):
    """The distribution of sharpness in each block type, its mean as a dot; and the mean over training, where it was measured."""
    over_time = [read_rows(folder, 'measure.jsonl') if os.path.exists(os.path.join(folder, 'measure.jsonl')) else []
                 for folder in folders]
    figure, axes = panels(1 + any(over_time), len(folders), 5, 3.5, sharex='row', sharey='row')
    for i, folder in enumerate(folders):
        measured = read_measured(folder, 'sharpness')
        for kind in [kind for kind in TYPES if kind in measured]:
            shares(axes[0, i], measured[kind]['histogram'], color=TYPES[kind],
                   label=f'{kind}: {number(measured[kind]["log10_mean"]):.2f}')
            axes[0, i].plot(number(measured[kind]['log10_mean']), 0, 'o', color=TYPES[kind], clip_on=False)
            rows = [(row['iter'], number(row['sharpness'][kind]['log10_mean'])) for row in over_time[i] if 'sharpness' in row]
            if rows:
                axes[1, i].plot(*zip(*rows), color=TYPES[kind], marker='o', markersize=3, label=kind)
        axes[0, i].set_title(label(folder))
        axes[0, i].set_xlabel('log₁₀ of the sharpness; dot: of its mean')
        axes[0, i].legend(fontsize=7)
        if any(over_time):
            axes[1, i].set_xlabel('iteration')
    axes[0, 0].set_ylabel('share of the parameters, per bin')
    if any(over_time):
        axes[1, 0].set_ylabel('log₁₀ of the mean sharpness')
    return figure


def along_depth(ax, rows, key, **style):
    """A line over the blocks passed, with a point behind each attention, at a half, and behind each FFN."""
    ax.plot([i / 2 for i in range(len(rows))], [row[key] for row in rows], **style)


def plot_hidden(folders):
    """MA and Var of the hidden states along the depth; dashed, their bounds under MidNorm (LN stability, figure 1 and T4)."""
    figure, axes = panels(1, 2, 5, 3.5)
    for i, folder in enumerate(folders):
        rows = read_measured(folder, 'hidden')
        for ax, key in zip(axes[0], ('ma', 'var')):
            along_depth(ax, rows, key, color=COLORS[i % len(COLORS)], marker='o', markersize=3, label=label(folder))
            if f'{key}_bound' in rows[0]:
                along_depth(ax, rows, f'{key}_bound', color=COLORS[i % len(COLORS)], linestyle='--', linewidth=0.8)
    for ax, name in zip(axes[0], ('mean |x|', 'variance')):
        ax.set_yscale('log')
        ax.set_ylabel(f'{name} of the hidden state')
        ax.set_xlabel('blocks passed')
        ax.legend(fontsize=7)
    return figure


def along_layers(folders, what, keys, ylabel):
    """One panel a key, of rows that measure.py gives for each layer."""
    figure, axes = panels(1, len(keys), 4, 3.3)
    for i, folder in enumerate(folders):
        rows = read_measured(folder, what)
        for ax, (key, title) in zip(axes[0], keys.items()):
            ax.plot(range(1, len(rows) + 1), [row[key] for row in rows], color=COLORS[i % len(COLORS)], marker='o', markersize=3,
                    label=label(folder))
            ax.set_title(title)
    for ax in axes[0]:
        ax.set_yscale('log')
        ax.set_xlabel('block')
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(fontsize=7)
    axes[0, 0].set_ylabel(ylabel)
    return figure


def plot_sensitivity(folders):
    """The spectral norms of the Jacobians of blocks and branches (LN stability, P7 and P8)."""
    return along_layers(folders, 'sensitivity', {'block': 'block', 'attn': 'attention branch', 'ffn': 'FFN branch'},
                        'spectral norm of the Jacobian')


def plot_parameters(folders):
    """The spectral norm of each matrix along the depth."""
    figure, axes = panels(2, 3, sharex=True)
    for i, folder in enumerate(folders):
        measured = read_measured(folder, 'parameters')
        for ax, kind in zip(axes.flat, ('wq', 'wk', 'wv', 'wo', 'w1', 'w2')):
            norms = [matrix['spectral'] for matrix in measured.get(kind, [])]
            ax.plot(range(1, len(norms) + 1), norms, color=COLORS[i % len(COLORS)], marker='o', markersize=3,
                    label=label(folder))
            ax.set_title(f'$W_{kind[1]}$')
    axes[0, 0].legend(fontsize=7)
    for ax in axes[-1]:
        ax.set_xlabel('block')
        ax.xaxis.get_major_locator().set_params(integer=True)
    for ax in axes[:, 0]:
        ax.set_ylabel('spectral norm')
    return figure


def plot_attention(folders):
    """The largest logit of each layer's heads, and the mean entropy of their rows; bars reach from the lowest to the highest."""
    figure, axes = panels(1, 2, 5, 3.5)
    for i, folder in enumerate(folders):
        measured = read_measured(folder, 'attention')
        for ax, key in zip(axes[0], ('max_logit', 'entropy')):
            heads = measured[key]
            means = [sum(layer) / len(layer) for layer in heads]
            reach = [[m - min(layer) for m, layer in zip(means, heads)], [max(layer) - m for m, layer in zip(means, heads)]]
            ax.errorbar([n + 1 + 0.06 * i for n in range(len(heads))], means, reach, color=COLORS[i % len(COLORS)], marker='o',
                        markersize=4, capsize=2, label=label(folder))
    for ax, name in zip(axes[0], ('largest attention logit', 'mean entropy of attention (nats)')):
        ax.set_ylabel(name)
        ax.set_xlabel('block')
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(fontsize=7)
    return figure


def plot_drift(folders):
    """How far two inputs drift apart along the depth that differ by a nudge of the embedding."""
    figure, axes = panels(1, 2, 5, 3.5)
    for i, folder in enumerate(folders):
        rows = read_measured(folder, 'drift')
        for ax, key in zip(axes[0], ('distance', 'relative')):
            along_depth(ax, rows, key, color=COLORS[i % len(COLORS)], marker='o', markersize=3, label=label(folder))
    for ax, name in zip(axes[0], ('distance, first = 1', 'distance / length of the state')):
        ax.set_yscale('log')
        ax.set_ylabel(name)
        ax.set_xlabel('blocks passed')
        ax.legend(fontsize=7)
    return figure


def plot_preflight(folders):
    """The invariance matrix: the exponent with which a row answers to a column. White is immune."""
    found = [read_measured(folder, 'preflight')['invariance'] for folder in folders]
    effects = list(dict.fromkeys(effect for invariance in found for row in invariance.values() for effect in row))
    columns = min(4, len(folders))
    rows = math.ceil(len(folders) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns + 1.5, 5 * rows), layout='constrained', squeeze=False,
                                sharey=True)
    for ax in axes.flat[len(folders):]:
        ax.set_visible(False)
    for ax, folder in zip(axes.flat, folders):
        measured = read_measured(folder, 'preflight')
        causes = list(measured['invariance'])
        values = [[number(measured['invariance'][cause].get(effect)) for cause in causes] for effect in effects]
        image = ax.imshow(values, cmap='PuOr', vmin=-2, vmax=2, aspect='auto')
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                text = '' if math.isnan(value) else f'{value:.1f}'.replace('-0.0', '0.0')
                ax.text(x, y, text, ha='center', va='center', fontsize=8, color='white' if abs(value) > 1.4 else 'black')
        ax.set_xticks(range(len(causes)), causes, rotation=40, ha='right')
        ax.set_yticks(range(len(effects)), effects)
        ax.set_title(label(folder), fontsize=10)
        grown = measured['growth']['as is']
        ax.set_xlabel('\n'.join(f'{key.upper()} along the depth: {g["shape"]}, power {number(g["power"]):.2f}'
                                for key, g in grown.items()))
    figure.colorbar(image, ax=axes.ravel().tolist(), label='exponent', shrink=0.5)
    return figure


def plot_sweep(folders):
    """The loss against the learning rate, a line for each row of the sweep's table; where learning rates do not vary, a dot.
    Bars are standard errors over seeds, a cross at the top is a point at which every run diverged."""
    figure, axes = panels(1, len(folders), 6.5, 4.2)
    for ax, folder in zip(axes[0], folders):
        path = os.path.join(folder, 'table.csv')
        if not os.path.exists(path):
            raise ValueError(f'there is no {path}: make it with  python sweep.py --report={folder}')
        with open(path, encoding='utf-8', newline='') as f:
            points = list(csv.DictReader(f))
        if not points:
            raise ValueError(f'{path} is empty: make it with  python sweep.py --report={folder}')
        labels = [axis for axis in points[0] if axis not in ('learning_rate', 'val_loss', 'standard_error', 'done', 'diverged',
                                                             'failed', 'missing')]
        rows = {}
        for point in points:
            rows.setdefault(', '.join(point[axis] for axis in labels if point[axis]), []).append(point)
        for i, (name, row) in enumerate(rows.items()):
            row.sort(key=lambda point: float(point.get('learning_rate', 0)))
            trained = [point for point in row if int(point['done'])]
            xs = [float(point['learning_rate']) if 'learning_rate' in point else i for point in trained]
            style = dict(color=COLORS[i % len(COLORS)], linestyle=('-', '--', ':')[i // len(COLORS) % 3], label=name)
            ys, bars = ([float(point[key]) for point in trained] for key in ('val_loss', 'standard_error'))
            ax.errorbar(xs, ys, bars, marker='o', markersize=4, capsize=2, **style)
            lost = [float(point['learning_rate']) if 'learning_rate' in point else i for point in row
                    if int(point['diverged']) and not int(point['done'])]
            ax.plot(lost, [0.98] * len(lost), 'x', color=style['color'], transform=ax.get_xaxis_transform())
        if 'learning_rate' in points[0]:
            ax.set_xscale('log')
            rates = sorted({float(point['learning_rate']) for point in points})
            ax.set_xticks(rates, [f'{rate:g}' for rate in rates], rotation=30)
            ax.minorticks_off()
            ax.set_xlabel('learning rate')
            if labels:
                beside = dict(loc='upper left', bbox_to_anchor=(1.01, 1)) if len(rows) > 6 else {}
                ax.legend(fontsize=7, **beside)
        else:
            ax.set_xticks(range(len(rows)), rows, rotation=30, ha='right')
        ax.set_title(os.path.basename(os.path.normpath(folder)), fontsize=10)
    axes[0, 0].set_ylabel('validation loss (nats)')
    return figure


PICTURES = {name.removeprefix('plot_'): f for name, f in globals().copy().items() if name.startswith('plot_')}


def draw(what, folders, out):
    """Writes the picture of PICTURES of these runs' folders to `out`."""
    try:
        PICTURES[what](folders).savefig(out, dpi=120)
    finally:
        plt.close('all')
    print(f'wrote {out}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('folders', nargs='+', help='out_dir of each run, or sweep')
    parser.add_argument('--what', default='loss', choices=PICTURES,
                        help='what to draw; all but loss, predictions and sweep need measure.py')
    parser.add_argument('--out', help='the picture; default: WHAT.png in the first folder')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    sys.excepthook = lambda kind, error, trace: report(kind, error, trace, args.debug)
    draw(args.what, args.folders, args.out or os.path.join(args.folders[0], f'{args.what}.png'))
