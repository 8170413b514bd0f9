"""
scikit-learn's 1797 handwritten digits of 8 × 8 grey pixels: real images that need no download.

    python -m vision.prepare.digits

Every fifth image of each digit is for validation.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.prepare.digits')

from configurator import configure

import numpy as np

from vision.images import write_images


def prepare(images, labels, folder):
    images = np.round(images[:, None] * (255 / 16)).astype(np.uint8)        # their grey runs from 0 to 16
    val = np.zeros(len(images), bool)
    for digit in range(10):
        val[np.flatnonzero(labels == digit)[4::5]] = True
    write_images(folder, {'train': [(images[~val], labels[~val])], 'val': [(images[val], labels[val])]}, classes=10)


if __name__ == '__main__':
    configure(globals())
    from sklearn.datasets import load_digits
    digits = load_digits()
    prepare(digits.images, digits.target, 'data/digits')
