"""
ImageNet-1k, 1.28 million training and 50,000 validation images, resized once to 3 × 256 × 256: 260 GB.

    python data/imagenet/prepare.py --source=/data/imagenet         # a folder with train/ and val/, a folder a class in each
    python data/imagenet/prepare.py                                 # from the Hugging Face Hub, once you have accepted its terms
    python data/imagenet/prepare.py --size=320                      # keeps finer detail, in 410 GB

Any other folder of images will do: --folder=data/flowers. Stopped, the same command goes on.

A training image is stored whole, squeezed to a square, with its width / height beside it. Training chooses random resized crops
in the image's own shape, anywhere in it, and resizes each crop once, which undoes the squeezing. Whole images whose shorter side
is `size` would have more detail along the longer side; but they take a third more space, and a batch cannot hold images of
different shapes. Of a validation image, the middle square is stored: evaluation resizes the shorter side to `size` and takes the
middle. Folders with middle squares for training too, as this script made them before, can still be read.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402
from data.images import FolderImages, HubImages, write_resized  # noqa: E402

source = 'ILSVRC/imagenet-1k'       # a data set on the Hub with columns image and label, or a folder with train/ and val/
size = 256                          # height and width; training cuts image_size from it
folder = ''                         # where the images go; empty: data/imagenet
processes = 0                       # that resize; 0: one a core

if __name__ == '__main__':
    at_least(configure(globals()), size=1, processes=0)
    if os.path.isdir(os.path.join(source, 'train')):
        train = FolderImages(os.path.join(source, 'train'))
        val = FolderImages(os.path.join(source, 'val'), train.names)
    else:
        train, val = HubImages(source, 'train'), HubImages(source, 'validation')
    write_resized(Path(folder) if folder else Path(__file__).parent, {'train': train, 'val': val}, size, processes)
