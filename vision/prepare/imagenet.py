"""
ImageNet-1k, 1.28 million training and 50,000 validation images, resized once to 3 × 256 × 256: 260 GB.

    python -m vision.prepare.imagenet --source=/data/imagenet       # a folder with train/ and val/, each with a folder per class
    python -m vision.prepare.imagenet                               # from the Hugging Face Hub, once you have accepted its terms
    python -m vision.prepare.imagenet --size=320                    # keeps finer detail, in 410 GB

Other folders of images work too, with --folder=data/flowers for the result. After an interruption, the same command continues.

A training image is stored whole, squeezed to a square, with its width / height beside it. Training chooses random resized crops
in the image's own shape, anywhere in it, and resizes each crop once, which undoes the squeezing. Whole images whose shorter side
is `size` would have more detail along the longer side; but they take a third more space, and a batch cannot hold images of
different shapes. A validation image is stored as its middle square: its shorter side is resized to `size`, and the middle is
kept. Data from older versions, with middle squares for training too, can still be read.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.prepare.imagenet')

from configurator import at_least, configure

import os

from vision.images import FolderImages, HubImages, write_resized

source = 'ILSVRC/imagenet-1k'       # a data set on the Hub with columns image and label, or a folder with train/ and val/
size = 256                          # height and width of a stored image; image_size of a model is at most this
folder = ''                         # where the images go; empty: data/imagenet
processes = 0                       # processes that resize; 0: one per core

if __name__ == '__main__':
    at_least(configure(globals()), size=1, processes=0)
    if os.path.isdir(os.path.join(source, 'train')):
        train = FolderImages(os.path.join(source, 'train'))
        val = FolderImages(os.path.join(source, 'val'), train.names)
    else:
        train, val = HubImages(source, 'train'), HubImages(source, 'validation')
    write_resized(folder or 'data/imagenet', {'train': train, 'val': val}, size, processes)
