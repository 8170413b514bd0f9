"""
Evaluate ViTs on whole splits of images: loss, top-1 and top-5 accuracy; on CIFAR-100-C, for each corruption and severity:

    python -m vision.evaluate --out_dir=out-vit-small
    python -m vision.evaluate --out_dir=out-vit-small,out-stablevit-small --dataset=cifar100c --checkpoint=ckpt.pt

Several runs share one table, with a significance test of their differences. torchrun shares the work among its ranks. Each call
appends a row of scores to evaluate.jsonl in each run's folder.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.evaluate')

from configurator import at_least, configure

import os

import numpy as np
import torch
from torch.nn import functional as F

from data.tokens import SPLITS, is_prepared
from engine.checkpoint import load_run
from engine.device import Machine
from lab.evaluate.scores import append, chunks, key_of, model_logits, names_of, numbers, over_ranks, score_of, show
from vision.images import Images, read_image_meta
from vision.vit import ViT, correct

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder; several with commas
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train
batch_size = 8                      # images at once
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
config = configure(globals())
METRICS = ('loss', 'top1', 'top5')
at_least(config, batch_size=1)
if split not in SPLITS:
    raise ValueError(f'split={split}: choose one of {", ".join(SPLITS)}')
machine = Machine(device, dtype)


def load(folder):
    """Return a run's model, its checkpoint, the images of the chosen split, and their data set. Raise ValueError if the images'
    class names are known to differ from those of the run's data."""
    model, state = load_run(os.path.join(folder, checkpoint), Model=ViT)
    trained_on = state['config']['dataset']
    chosen = dataset or trained_on
    images = Images(chosen, split, model.config)
    names = [read_image_meta(data)['names'] for data in (trained_on, chosen) if is_prepared(data)]
    if len(names) == 2 and all(names) and names[0] != names[1]:
        raise ValueError(f'dataset={chosen} has other classes ({", ".join(names[1][:3])}, …) than {trained_on} '
                         f'({", ".join(names[0][:3])}, …), which {folder} has learned')
    return model.eval(), state, images, chosen


def image_scores(model, images):
    """Return the scores of a split and, if it has groups, {first kind or 'mean': {second kind or 'mean': score of the top-1
    accuracy}}. Groups are versions of the same images, so the standard error of a mean over groups is computed over the images'
    means over the groups."""
    def evaluate(batch):
        x, y = (t.to(machine.device) for t in images.read(batch))
        logits = model_logits(machine, model, x)
        return torch.stack((F.cross_entropy(logits, y, reduction='none'), *correct(logits, y))).cpu().numpy()

    batches = chunks(range(images.windows), batch_size)
    values = np.concatenate(over_ranks(machine, evaluate, batches, 'images'), axis=1).astype(float)
    values = values.reshape(len(METRICS), *(map(len, images.groups.values()) if images.groups else (1, 1)), -1)
    scores = {name: score_of(per_image.mean((0, 1)), lower=name == 'loss') for name, per_image in zip(METRICS, values)}
    if not images.groups:
        return scores, {}
    top1 = values[METRICS.index('top1')]
    rows, columns = ({**{name: slice(i, i + 1) for i, name in enumerate(names)}, 'mean': slice(None)}
                     for names in images.groups.values())
    return scores, {row: {column: score_of(top1[rows[row], columns[column]].mean((0, 1))) for column in columns} for row in rows}


def show_groups(name, kinds, groups):
    """Print the accuracies of groups as Markdown, with each row's mean error."""
    print(f'\n{name}, top-1 accuracy by {" and ".join(kinds)}, and the mean error:\n')
    columns = list(next(iter(groups.values())))
    print(f'| {kinds[0]} |', ' | '.join([*columns, 'error']), '|')
    print('| --- |', ' --- |' * (len(columns) + 1), sep='')
    for row, scores in groups.items():
        cells = [f'{scores[column].mean:.4f}' for column in columns[:-1]]
        mean = scores['mean']
        print(f'| {row} |', ' | '.join([*cells, f'{mean.mean:.4f} ± {mean.error:.4f}', f'{1 - mean.mean:.4f}']), '|')


def main():
    runs = {folder: load(folder) for folder in names_of(out_dir)}
    data = sorted({chosen for *_, chosen in runs.values()})
    if len(data) > 1:
        raise ValueError(f'out_dir={out_dir}: these runs were trained on {", ".join(data)}, choose one by --dataset=…')
    machine.connect('gloo')                             # before this, all ranks fail with the same error
    table, groups_of, unwritten = {}, {}, []
    for folder, (model, state, images, chosen) in runs.items():
        with torch.no_grad():
            table[folder], groups_of[folder] = image_scores(model.to(machine.device), images)
        key = key_of(model.cpu(), ())
        if machine.master:
            row = dict(iter=state['iter'], weights=key, dataset=chosen, dtype=str(machine.dtype)[6:], checkpoint=checkpoint,
                       split=split, scores={label: numbers(score) for label, score in table[folder].items()})
            if groups_of[folder]:
                row['groups'] = {name: {other: numbers(score) for other, score in scores.items()}
                                 for name, scores in groups_of[folder].items()}
            try:
                append(os.path.join(folder, 'evaluate.jsonl'), row)
            except OSError as error:                    # print the table even then
                unwritten.append(str(error))
    if machine.master:
        show(table)
        for folder, groups in groups_of.items():
            if groups:
                show_groups(folder, list(runs[folder][2].groups), groups)
    if unwritten:
        print(f'error: the scores above could not be written: {"; ".join(unwritten)}', file=sys.stderr)
    return 1 if unwritten else 0


machine.leave(main())
