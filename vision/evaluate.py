"""
Evaluate ViTs on validation images: loss, top-1 and top-5 accuracy; on corrupted images, for each corruption and severity:

    python -m vision.evaluate --out_dir=out-vit-small,out-stablevit-small --checkpoint=ckpt.pt
    python -m vision.evaluate --out_dir=out-vit-small --checkpoint=ckpt.pt --corrupted=CIFAR-100-C
    python -m vision.evaluate --out_dir=out-quick-vision --corrupted=digits

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
from vision.data import Images, batches_of
from vision.vit import ViT, correct

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder; several with commas
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
corrupted = ''                      # the unpacked folder of CIFAR-100-C | digits: corrupt the run's images; empty: as they are
batch_size = 64                     # images at once
workers = 0                         # processes that read images; 0: this one does
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
SEVERITIES = range(1, 6)
CIFAR100_C = ('gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'snow',
              'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression')


def blur(x, s, rng):
    from scipy.ndimage import gaussian_filter
    return gaussian_filter(x, (0, 0, 0.35 * s, 0.35 * s))


DIGITS_C = {            # of images x (N, channels, S, S) from 0 to 255 at severity s
    'gaussian_noise': lambda x, s, rng: x + rng.normal(0, 20 * s, x.shape),
    'impulse_noise': lambda x, s, rng: np.where(rng.random(x.shape) < 0.05 * s, rng.choice([0, 255], x.shape), x),
    'blur': blur,
    'brightness': lambda x, s, rng: x + 25 * s,
    'contrast': lambda x, s, rng: x.mean((1, 2, 3), keepdims=True) + (1 - 0.18 * s) * (x - x.mean((1, 2, 3), keepdims=True)),
}


def corrupt(images, labels):
    """Yield (corruption, images, labels) of DIGITS_C, once for each severity in order. `images`: uint8 (N, channels, S, S)."""
    rng = np.random.default_rng(0)
    for name, function in DIGITS_C.items():
        for severity in SEVERITIES:
            x = function(images.double().numpy(), severity, rng)
            yield name, torch.from_numpy(np.round(x).clip(0, 255).astype(np.uint8)), labels


def read_cifar100c(folder):
    """Yield the same from the files of CIFAR-100-C, each of which has the severities behind one another."""
    labels = torch.from_numpy(np.load(os.path.join(folder, 'labels.npy')).astype(int)).chunk(len(SEVERITIES))
    for name in CIFAR100_C:
        images = torch.from_numpy(np.load(os.path.join(folder, f'{name}.npy'))).permute(0, 3, 1, 2)
        for part, classes in zip(images.chunk(len(SEVERITIES)), labels, strict=True):
            yield name, part, classes


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


def show_corruptions(machine, model, parts):
    """Print the top-1 accuracy of each corruption and severity. All of them show the same images: the standard error of a mean is
    over the images, each with its mean over severities and corruptions."""
    rows = {}
    for name, x, y in parts:
        rows.setdefault(name, []).append(scores(machine, model, zip(x.split(batch_size), y.split(batch_size)))[1])
    rows = {name: torch.stack(row) for name, row in rows.items()}               # (severities, images)
    rows['mean'] = torch.stack([*rows.values()]).mean(0)
    for name, row in rows.items():
        print(f'| {name} |', ' | '.join(f'{value:.4f}' for value in row.mean(1)), f'| {with_error(row.mean(0))} |')


def main():
    at_least(configure(globals()), batch_size=1, workers=0)
    machine = Machine(device, dtype)
    columns = ['corruption', *map(str, SEVERITIES), 'top-1'] if corrupted else ['run', 'loss', 'top-1', 'top-5']
    header = f'| {" | ".join(columns)} |\n|{" --- |" * len(columns)}'
    for i, folder in enumerate(out_dir.split(',')):
        model, state = load_run(os.path.join(folder, checkpoint), machine.device, ViT)
        check_data(state, Images(state['config']['dataset'], 'train', model.config).fingerprint)
        images = Images(state['config']['dataset'], 'val', model.eval().config)
        if corrupted:
            print(f'\n{folder}\n\n{header}')
            show_corruptions(machine, model, corrupt(*images.read(range(images.windows))) if corrupted == 'digits' else
                             read_cifar100c(corrupted))
            continue
        if i == 0:
            print(header)
        numbers = np.array_split(range(images.windows), -(-images.windows // batch_size))
        print(f'| {folder} |', ' | '.join(map(with_error, scores(machine, model, batches_of(images, numbers, workers)))), '|')


if __name__ == '__main__':
    main()
