"""
CIFAR-100: 50,000 training and 10,000 validation images of 3 × 32 × 32, in 100 classes.

    python -m vision.prepare.cifar100                         # needs the network
    python -m vision.prepare.cifar100 --source=FOLDER         # a copy of its Hugging Face repository, with the .parquet files
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.prepare.cifar100')

from configurator import configure

import numpy as np

from vision.images import from_hub, write_images

source = 'uoft-cs/cifar100'         # a data set on the Hugging Face Hub, or a folder with its files


def chunks(rows, size=1000):
    for first in range(0, len(rows), size):
        some = rows[first:first + size]
        yield np.stack([np.asarray(image.convert('RGB')) for image in some['img']]).transpose(0, 3, 1, 2), some['fine_label']


if __name__ == '__main__':
    configure(globals())
    train, val = (from_hub(source, split, 'img', 'fine_label') for split in ('train', 'test'))
    names = train.features['fine_label'].names
    write_images('data/cifar100', {'train': chunks(train), 'val': chunks(val)}, len(names), names)
