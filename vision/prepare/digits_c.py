"""
The validation images of data/digits with five corruptions, each in five severities: a small CIFAR-100-C that needs no download.

    python -m vision.prepare.digits && python -m vision.prepare.digits_c
    python -m vision.evaluate --out_dir=out-quick-vision --checkpoint=ckpt.pt --dataset=digits_c

The training split, with which no model should be trained, holds the original validation images.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.prepare.digits_c')

from configurator import configure

import numpy as np

from vision.images import Images, read_image_meta, write_images
from vision.vit import ViTConfig

SEVERITIES = ['1', '2', '3', '4', '5']


def impulse_noise(x, s, rng):
    noisy = rng.random(x.shape) < 0.05 * s
    return np.where(noisy, rng.choice([0, 255], x.shape), x)


def blur(x, s, rng):
    from scipy.ndimage import gaussian_filter  # here, so that --help needs PyTorch and NumPy alone
    return gaussian_filter(x, (0, 0, 0.35 * s, 0.35 * s))


CORRUPTIONS = {         # of images x (N, 1, 8, 8) from 0 to 255 at severity s from 1 to 5
    'gaussian_noise': lambda x, s, rng: x + rng.normal(0, 20 * s, x.shape),
    'impulse_noise': impulse_noise,
    'blur': blur,
    'brightness': lambda x, s, rng: x + 25 * s,
    'contrast': lambda x, s, rng: x.mean((1, 2, 3), keepdims=True) + (1 - 0.18 * s) * (x - x.mean((1, 2, 3), keepdims=True)),
}


def corrupted(images, labels):
    rng = np.random.default_rng(0)
    for corrupt in CORRUPTIONS.values():
        for severity in map(int, SEVERITIES):
            yield np.round(corrupt(images.astype(float), severity, rng)).clip(0, 255).astype(np.uint8), labels


if __name__ == '__main__':
    configure(globals())
    meta = read_image_meta('digits')
    clean = Images('digits', 'val', ViTConfig(image_size=meta['image_size'], patch_size=1, channels=1, classes=meta['classes']))
    images = np.asarray(clean.images[:])
    write_images('data/digits_c', {'train': [(images, clean.labels)], 'val': corrupted(images, clean.labels)},
                 meta['classes'], meta['names'], dict(corruption=list(CORRUPTIONS), severity=SEVERITIES))
