"""
CIFAR-100-C: CIFAR-100's test images, corrupted (Hendrycks and Dietterich 2019), to evaluate models trained on data/cifar100.
Download CIFAR-100-C.tar from https://zenodo.org/records/3555552, unpack it, and

    python -m vision.prepare.cifar100c --files=CIFAR-100-C
    python -m vision.evaluate --out_dir=out-vit-small --checkpoint=ckpt.pt --dataset=cifar100c                  # CIFAR-100-C
    python -m vision.evaluate --out_dir=out-vit-small --checkpoint=ckpt.pt --dataset=cifar100c --split=train    # the originals

best.pt was chosen by its loss on the original images.

The validation split holds all corruptions in all five severities. The training split, with which no model should be trained,
holds the original test images.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.prepare.cifar100c')

from configurator import configure

import os

import numpy as np

from vision.images import Images, read_image_meta, write_images
from vision.vit import ViTConfig

files = ''                          # the unpacked folder: labels.npy, and a .npy of 50,000 images for each corruption
corruptions = ('gaussian_noise,shot_noise,impulse_noise,defocus_blur,glass_blur,motion_blur,zoom_blur,snow,frost,fog,'
               'brightness,contrast,elastic_transform,pixelate,jpeg_compression')       # separated by commas
SEVERITIES = ['1', '2', '3', '4', '5']


def load(name):
    path = os.path.join(files, f'{name}.npy')
    try:
        return np.load(path, mmap_mode='r', allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f'{path} is no array of CIFAR-100-C: {error}') from error


def corrupted():
    labels = load('labels')
    if len(labels) % len(SEVERITIES) or (labels.reshape(len(SEVERITIES), -1) != labels[:len(labels) // len(SEVERITIES)]).any():
        raise ValueError(f'labels.npy: wants the labels of the same images {len(SEVERITIES)} times, once for each severity')
    for name in corruptions.split(','):
        images = load(name)
        if len(images) != len(labels) or images.shape[1:] != (32, 32, 3):
            raise ValueError(f'{name}.npy has images of shape {images.shape}: wants ({len(labels)}, 32, 32, 3)')
        for first in range(0, len(images), 10000):
            yield images[first:first + 10000].transpose(0, 3, 1, 2), labels[first:first + 10000]


if __name__ == '__main__':
    configure(globals())
    if not files:
        raise ValueError('files is empty: name the unpacked folder, as in --files=CIFAR-100-C')
    if len({*corruptions.split(',')}) < len(corruptions.split(',')):
        raise ValueError(f'corruptions={corruptions}: name each once')
    meta = read_image_meta('cifar100')
    config = ViTConfig(image_size=meta['image_size'], patch_size=1, channels=meta['channels'], classes=meta['classes'])
    clean = Images('cifar100', 'val', config)
    write_images('data/cifar100c', {'train': [(clean.images[:], clean.labels)], 'val': corrupted()}, meta['classes'],
                 meta['names'], dict(corruption=corruptions.split(','), severity=SEVERITIES))
