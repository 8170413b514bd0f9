"""
Evaluate ViTs on validation images: loss, top-1 and top-5 accuracy; on those of CIFAR-100-C, for each corruption and severity:

    python -m vision.evaluate --out_dir=out-vit-small,out-stablevit-small --checkpoint=ckpt.pt
    python -m vision.evaluate --out_dir=out-vit-small --checkpoint=ckpt.pt --corrupted=CIFAR-100-C

best.pt was chosen by its loss on the validation images. CIFAR-100-C.tar is at https://zenodo.org/records/3555552.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.evaluate')

from configurator import at_least, configure

import os

import numpy as np
import torch
from torch.nn import functional as F

from engine.checkpoint import check_data, load_run
from engine.device import Machine
from vision.data import Images, Reader
from vision.vit import ViT, correct

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder; several with commas
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
corrupted = ''                      # the unpacked folder of CIFAR-100-C; empty: the validation images
batch_size = 64                     # images at once
workers = 0                         # processes that read images; 0: this one does
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
CIFAR100_C = ('gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'snow',
              'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression')


@torch.no_grad()
def scores(machine, model, batches):
    """Return loss, top-1 and top-5 of each image, (3, N)."""
    values = []
    for x, y in batches:
        x, y = machine.to_device(x, y)
        with machine.autocast():
            logits = model(x)[0].float()
        values.append(torch.stack((F.cross_entropy(logits, y, reduction='none'), *correct(logits, y))).cpu())
    return torch.cat(values, 1)


def with_error(values):
    """Return the mean over images and its standard error as text."""
    return f'{values.mean():.4f} ± {values.std() / len(values) ** 0.5:.4f}'


def show_corruptions(machine, model):
    """Print the top-1 accuracy of each corruption and severity. A file has the severities one after the other. All show the same
    images: the standard error of a mean is over the images, each with its mean over severities and corruptions."""
    labels, rows = torch.from_numpy(np.load(os.path.join(corrupted, 'labels.npy')).astype(int)), {}
    for name in CIFAR100_C:
        images = torch.from_numpy(np.load(os.path.join(corrupted, f'{name}.npy'))).permute(0, 3, 1, 2)
        if images.shape[-1] != model.config.image_size:
            raise ValueError(f'{corrupted}/{name}.npy has images of {images.shape[-1]} pixels a side: must be '
                             f'{model.config.image_size}, as in the data of the run')
        batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
        rows[name] = scores(machine, model, batches)[1].view(5, -1)             # (severities, images)
    rows['mean'] = torch.stack([*rows.values()]).mean(0)
    for name, row in rows.items():
        print(f'| {name} |', ' | '.join(f'{value:.4f}' for value in row.mean(1)), f'| {with_error(row.mean(0))} |')


def main():
    at_least(configure(globals()), batch_size=1, workers=0)
    machine = Machine(device, dtype)
    columns = ['corruption', *map(str, range(1, 6)), 'top-1'] if corrupted else ['run', 'loss', 'top-1', 'top-5']
    header = f'| {" | ".join(columns)} |\n|{" --- |" * len(columns)}'
    for i, folder in enumerate(out_dir.split(',')):
        model, state = load_run(os.path.join(folder, checkpoint), machine.device, ViT)
        check_data(state, Images(state['config']['dataset'], 'train', model.eval().config).fingerprint)
        if corrupted:
            print(f'\n{folder}\n\n{header}')
            show_corruptions(machine, model)
            continue
        if i == 0:
            print(header)
        images = Images(state['config']['dataset'], 'val', model.config)
        numbers = np.array_split(range(images.count), -(-images.count // batch_size))
        reader = Reader(images, workers)
        print(f'| {folder} |', ' | '.join(map(with_error, scores(machine, model, reader.batches(numbers)))), '|')
        reader.close()


if __name__ == '__main__':
    main()
