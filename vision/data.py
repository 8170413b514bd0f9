"""
Images with classes, decoded while a model trains. `dataset` is one of:

    digits                  1797 handwritten digits of 8 × 8 grey pixels, in data/digits/
    FOLDER                  or data/FOLDER, with train/ and val/, each with a folder of images per class
    cifar100, imagenet      or OWNER/NAME: a data set of the Hugging Face Hub with a column of images and one of classes

A source is a function of the split; it returns read(i) → Pillow image, the class numbers, the class names, and bytes that
identify the data.
"""
import atexit
import gzip
import hashlib
import math
import os
import signal
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from data.tokens import eval_starts, shuffled_starts
from vision.augment import augment, middle

os.environ.setdefault('HF_HUB_VERBOSITY', 'error')      # its warnings would precede our one line

ROOT = Path(__file__).resolve().parents[1]
HUB = {'cifar100': 'uoft-cs/cifar100', 'imagenet': 'ILSVRC/imagenet-1k'}
MOMENTS = {             # mean and standard deviation of each channel, for values from 0 to 1
    'digits': ([0.30518309], [0.37599409]),
    'cifar100': ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    'imagenet': ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])}        # all others have these
MODES = {1: 'L', 3: 'RGB'}
ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.gif', '.webp', '.tif', '.tiff')


# ----------------------------------------------------------------------------- sources

def digits(split):
    """Every fifth image of each digit is for validation."""
    with gzip.open(ROOT / 'data' / 'digits' / 'digits.csv.gz') as f:
        table = np.loadtxt(f, delimiter=',')            # 64 grey levels from 0 to 16, and the digit
    labels, is_val = table[:, -1].astype(int), np.zeros(len(table), bool)
    for digit in range(10):
        is_val[np.flatnonzero(labels == digit)[4::5]] = True
    chosen = is_val if split == 'val' else ~is_val
    images = np.round(table[chosen, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return lambda i: Image.fromarray(images[i]), labels[chosen], list('0123456789'), images.tobytes()


def folder(root, split):
    names = sorted(path.name for path in (root / 'train').iterdir() if path.is_dir())
    files = [(path, number) for number, name in enumerate(names)
             for path in sorted((root / split / name).rglob('*')) if path.suffix.lower() in ENDINGS]
    if not files:
        raise ValueError(f'{root / split} holds no image: must have a folder per class, with {", ".join(ENDINGS)}')

    def read(i):
        try:
            return ImageOps.exif_transpose(Image.open(files[i][0]))
        except Exception as error:                      # damaged files fail in many ways
            raise ValueError(f'{files[i][0]} cannot be read, remove it: {error}') from error

    content = '\n'.join(path.relative_to(root).as_posix() for path, _ in files)
    return read, [number for _, number in files], names, content.encode()


def hub(name, split):
    from datasets import ClassLabel, load_dataset
    from datasets import Image as Images
    try:
        splits = load_dataset(name)
    except (OSError, ValueError) as error:
        raise ValueError(f'dataset={name}: neither a folder with train/ nor on the Hugging Face Hub: {error}') from error
    rows = splits['train' if split == 'train' else 'validation' if 'validation' in splits else 'test']
    images = [key for key, kind in rows.features.items() if isinstance(kind, Images)]
    labels = [key for key, kind in rows.features.items() if isinstance(kind, ClassLabel) and key != 'coarse_label']
    if not images or not labels:
        raise ValueError(f'dataset={name} has columns {", ".join(rows.features)}: must have one of images and one of classes')
    numbers = np.array(rows[labels[0]][:])
    return lambda i: rows[i][images[0]], numbers, rows.features[labels[0]].names, numbers.tobytes()


def source(name, split):
    if name == 'digits':
        return digits(split)
    for root in Path(name), Path('data', name):
        if (root / 'train').is_dir():
            return folder(root, split)
    if name not in HUB and name.count('/') != 1:
        raise ValueError(f'dataset={name!r}: choose digits, {", ".join(HUB)}, OWNER/NAME of the Hugging Face Hub, or a folder '
                         'with train/ and val/')
    return hub(HUB.get(name, name), split)


# ----------------------------------------------------------------------------- batches

def as_tensor(image):
    """Return a Pillow image as uint8 (channels, S, S)."""
    x = torch.from_numpy(np.array(image))
    return x[None] if x.dim() == 2 else x.permute(2, 0, 1).contiguous()


class Images:
    """One split of a data set, for a model with this ViTConfig. Item i is the middle square of image i, uint8 (channels, S, S),
    and its class. Item −1 is padding: some image, with the class −1."""

    def __init__(self, name, split, config):
        self.read_image, labels, names, content = source(name, split)
        if config.channels not in MODES:
            raise ValueError(f'channels={config.channels}: choose 1 for grey, 3 for RGB')
        if config.classes < len(names):
            raise ValueError(f'classes={config.classes} is less than the {len(names)} of dataset={name}: '
                             f'set --classes={len(names)} or more')
        self.labels, self.count = torch.as_tensor(labels).long(), len(labels)
        self.image_size, self.mode = config.image_size, MODES[config.channels]
        self.mean, self.std = (values if len(values) == config.channels else sum(values) / len(values)
                               for values in MOMENTS.get(name, MOMENTS['imagenet']))
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()

    def image(self, i):
        return self.read_image(int(i)).convert(self.mode)

    def __getitem__(self, i):
        label = self.labels[i] if i >= 0 else torch.tensor(-1)
        return as_tensor(middle(self.image(max(i, 0)), self.image_size)), label

    def read(self, numbers):
        """Return images, uint8 (len(numbers), channels, S, S), and classes, int64 (len(numbers),)."""
        return tuple(map(torch.stack, zip(*(self[i] for i in numbers))))

    def eval_batches(self, batches, batch_size):
        """Spread batches as Tokens.eval_batches does. If they can hold all images, use all, in batches of nearly equal sizes."""
        if batches * batch_size < self.count:
            return eval_starts(self.count, 1, batches, batch_size)
        return np.array_split(np.arange(self.count), math.ceil(self.count / batch_size))


class Shuffled:
    """The endless sequence of images that a run trains on: each image aug_repeats times in a row, augmented anew (Hoffer et al.
    2020). Entry n depends on the seeds and on n alone, so resuming, workers and ranks do not change it."""

    def __init__(self, images, keys):
        self.images, self.keys = images, keys

    def __getitem__(self, n):
        keys, rng = self.keys, np.random.default_rng([self.keys['seed'], n])
        i, = shuffled_starts(self.images.count + 1, 1, n // keys['aug_repeats'], 1, keys['data_seed'])
        return as_tensor(augment(self.images.image(i), self.images.image_size, keys, rng)), self.images.labels[i]


def ignore_signals(worker):
    """Ignore what schedulers and Ctrl-C send to all processes of a run: the training process alone answers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class Reader:
    """Reads batches of images and their classes in `workers` processes, or in this one. The processes start here, once. Make a
    Reader before the ranks connect, while this process has one thread: a lock that another thread holds at a fork stays locked
    in the new process, which may wait for it forever. A batch that takes half an hour raises RuntimeError."""

    def __init__(self, images, workers):
        self.numbers, self.iterator = (), None
        self.loader = DataLoader(images, batch_sampler=self, num_workers=workers, persistent_workers=workers > 0,
                                 multiprocessing_context='fork' if workers else None, worker_init_fn=ignore_signals,
                                 timeout=1800 if workers else 0)
        if workers:
            self.iterator = iter(self.loader)           # forks
            atexit.register(self.close)                 # at exit, multiprocessing waits for processes that ignore its SIGTERM

    def __iter__(self):                                 # the loader's sampler
        return iter(self.numbers)

    def batches(self, numbers):
        """Yield batches, whose numbers come from an iterable of batches. A new call ends the last one."""
        self.numbers = numbers
        try:
            yield from self.loader
        except ValueError as error:                     # a worker's has its traceback as text, and the message at the end
            raise ValueError(str(error).rpartition('\nValueError: ')[2].strip()) from error

    def close(self):
        """End the processes."""
        atexit.unregister(self.close)
        if self.iterator is not None:
            self.iterator._shutdown_workers()
            for process in self.iterator._workers:      # one that is stuck would keep this process from ending
                process.kill()
