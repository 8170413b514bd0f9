"""
CIFAR-100: 50,000 training and 10,000 validation images of 3 × 32 × 32, in 100 classes.

    python data/cifar100/prepare.py                         # needs the network
    python data/cifar100/prepare.py --source=FOLDER         # a copy of its Hugging Face repository, with the .parquet files
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure  # noqa: E402

import numpy as np  # noqa: E402

from vision.images import from_hub, write_images  # noqa: E402

source = 'uoft-cs/cifar100'         # a data set on the Hugging Face Hub, or a folder with its files


def chunks(rows, size=1000):
    for first in range(0, len(rows), size):
        some = rows[first:first + size]
        yield np.stack([np.asarray(image.convert('RGB')) for image in some['img']]).transpose(0, 3, 1, 2), some['fine_label']


if __name__ == '__main__':
    configure(globals())
    train, val = (from_hub(source, split, 'img', 'fine_label') for split in ('train', 'test'))
    names = train.features['fine_label'].names
    write_images(Path(__file__).parent, {'train': chunks(train), 'val': chunks(val)}, len(names), names)
