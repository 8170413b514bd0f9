"""
A data set of images is a folder data/<name> with train.bin and val.bin, uint8 of shape (images, channels, size, size), with
class numbers as uint16 in train_labels.bin and val_labels.bin, and with meta.json. If meta.json says `whole`, each training image
is a whole image squeezed to a square, and train_aspects.bin has the width / height of each as float32. This file reads a data set
as batches, writes one, and resizes images of any size for it. Resizing runs once, in many processes, and continues after an
interruption.
"""
import glob
import json
import math
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from data.augment import middle
from data.text import in_order, leave_with_parent
from data.tokens import SPLITS, Split, check_size, load_meta, replacing

os.environ.setdefault('HF_HUB_VERBOSITY', 'error')              # only errors: the last one is reported in one line

ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.gif', '.webp', '.ppm', '.tif', '.tiff')


# ----------------------------------------------------------------------------- reading

def read_image_meta(name):
    """data/<name>/meta.json: image_size, channels, classes, class names (if any), mean and std of each channel for values from 0
    to 1, the number of images of each split, and whether the training images are `whole`."""
    meta = load_meta(name)
    if isinstance(meta, dict) and 'tokens' in meta:
        raise ValueError(f'dataset={name!r} holds tokens, which are for --model=gpt')
    try:
        meta = dict(image_size=int(meta['image_size']), channels=int(meta['channels']), classes=int(meta['classes']),
                    names=[str(name) for name in meta['names']], mean=[float(x) for x in meta['mean']],
                    std=[float(x) for x in meta['std']], images={split: int(meta['images'][split]) for split in SPLITS},
                    whole=bool(meta.get('whole', False)))
        if len(meta['mean']) == len(meta['std']) == meta['channels'] > 0 < min(meta['image_size'], meta['classes'], *meta['std']):
            return meta
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f'{os.path.join("data", name, "meta.json")} is damaged: prepare {os.path.join("data", name)} again')


class Images(Split):
    """One split of a data set of images, each with its class number. `read` cuts images larger than image_size to the middle
    square. `shuffled`, for training, leaves the cutting to the augmentation, and gives each image `repeats` times in a row."""
    block_size = 1

    def __init__(self, name, split, image_size, channels, classes, repeats=1):
        meta = read_image_meta(name)
        count, stored = meta['images'][split], meta['image_size']
        if channels != meta['channels']:
            raise ValueError(f'channels={channels}: the images of dataset={name} have {meta["channels"]}, '
                             f'set --channels={meta["channels"]}')
        if image_size > stored:
            raise ValueError(f'image_size={image_size} is more than the {stored} of dataset={name}: '
                             f'set --image_size={stored} or less')
        if classes < meta['classes']:
            raise ValueError(f'classes={classes} is less than the {meta["classes"]} of dataset={name}: '
                             f'set --classes={meta["classes"]} or more')
        self.path, self.mean, self.std = os.path.join('data', name, f'{split}.bin'), meta['mean'], meta['std']
        labels = self.path.replace('.bin', '_labels.bin')
        check_size(self.path, count * channels * stored ** 2)
        check_size(labels, count * 2)
        self.images = np.memmap(self.path, np.uint8, 'r', shape=(count, channels, stored, stored))
        self.labels = np.fromfile(labels, np.uint16).astype(np.int64)
        if self.labels.max() >= meta['classes']:
            raise ValueError(f'{labels} holds class {self.labels.max()}, and the classes of dataset={name} are 0 to '
                             f'{meta["classes"] - 1}: prepare data/{name} again')
        self.aspects = None
        if meta['whole'] and split == 'train':
            aspects = self.path.replace('.bin', '_aspects.bin')
            check_size(aspects, count * 4)
            self.aspects = torch.from_numpy(np.fromfile(aspects, np.float32))
        self.windows, self.length, self.image_size, self.repeats = count, count + 1, image_size, repeats

    def read(self, numbers):
        """Images of these numbers → uint8 (len(numbers), channels, image_size, image_size) and int64 classes (len(numbers),)."""
        images, labels, *aspects = self.read_stored(numbers)
        if aspects:
            images = middle(images.float(), self.image_size, *aspects).round().clamp(0, 255).byte()
        return middle(images, self.image_size).contiguous(), labels

    def read_stored(self, numbers):
        """Images as they are stored, uint8 (len(numbers), channels, S, S), their classes and, for whole images, their aspects,
        float32 (len(numbers),)."""
        images = np.stack([self.images[i] for i in numbers])
        chosen = (self.labels, self.aspects) if self.aspects is not None else (self.labels,)
        return torch.from_numpy(images), *(torch.as_tensor(values)[np.asarray(numbers)] for values in chosen)

    def shuffled(self, first, count, seed):
        """The arguments of Augment for images number `first`, first + 1, … of a sequence: `order`, with each image `repeats`
        times in a row. So an epoch's number of images covers only 1/repeats of the order (repeated augmentation, Hoffer et al.
        2020)."""
        begin, end = first // self.repeats, -(-(first + count) // self.repeats)
        numbers = np.repeat(self.order(begin, end - begin, seed), self.repeats)
        return self.read_stored(numbers[first - begin * self.repeats:][:count])

    def spread(self, batches, batch_size):
        """As for tokens. But if the batches can hold all images, all are used, and the sizes of batches differ by at most one."""
        if batches * batch_size < self.windows:
            return super().spread(batches, batch_size)
        return np.array_split(np.arange(self.windows), math.ceil(self.windows / batch_size))


# ----------------------------------------------------------------------------- writing

IMAGE_FILES = [*(f'{split}{kind}.bin' for split in SPLITS for kind in ('', '_labels')), 'meta.json']


def write_images(folder, splits, classes, names=()):
    """Writes images, labels and meta.json, as `replacing` does. `splits` maps each split to an iterable of pairs: uint8 images
    (N, channels, S, S), all of one size, and their class numbers (N,). `names` may name the classes."""
    labels, shapes = {split: [] for split in SPLITS}, set()
    with replacing(folder, IMAGE_FILES) as path:
        for split in SPLITS:
            with open(path[f'{split}.bin'], 'wb') as f:
                for images, numbers in splits[split]:
                    images = np.asarray(images)
                    shapes.add(images.shape[1:])
                    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != images.shape[3] or len(shapes) > 1:
                        raise ValueError(f'{folder}: wants square uint8 images of one size and number of channels, these are '
                                         f'{images.dtype} and {" or ".join(map(str, sorted(shapes)))}')
                    images.tofile(f)
                    labels[split] += list(numbers)
                f.flush()
                os.fsync(f.fileno())
            if not labels[split]:
                raise ValueError(f'{folder}: there is nothing to write into {split}.bin')
        finish_images(folder, path, labels, *shapes.pop()[:2], classes, names)


def finish_images(folder, path, labels, channels, size, classes, names, aspects=()):
    """Writes the labels, {split: class numbers}, the aspects, if any, and meta.json, once the images are written. `path` is from
    `replacing`."""
    for split in SPLITS:
        if not 0 <= min(labels[split]) <= max(labels[split]) < classes:
            raise ValueError(f'{folder}: classes from {min(labels[split])} to {max(labels[split])} are not within '
                             f'classes={classes}')
        np.asarray(labels[split], np.uint16).tofile(path[f'{split}_labels.bin'])
    count = len(labels['train'])
    if aspects:
        np.asarray(aspects, np.float32).tofile(path['train_aspects.bin'])
    images = np.memmap(path['train.bin'], np.uint8, 'r', shape=(count, channels, size, size))
    some = np.unique(np.linspace(0, count - 1, 10000).astype(int))          # a sample is enough for the mean
    sums = sum(np.stack([x.sum((1, 2)), (x * x).sum((1, 2))]) for x in (images[i] / 255 for i in some)) / len(some) / size ** 2
    std = np.sqrt(np.maximum(sums[1] - sums[0] ** 2, 1e-12))
    meta = dict(image_size=size, channels=channels, classes=classes, names=list(names), mean=sums[0].tolist(), std=std.tolist(),
                images={split: len(labels[split]) for split in SPLITS}, whole=bool(aspects))
    with open(path['meta.json'], 'w', encoding='utf-8') as f:
        json.dump(meta, f, indent=1)
    print(f'{folder}: {count:,} training and {len(labels["val"]):,} validation images of {channels} × {size} × {size}')


# ----------------------------------------------------------------------------- sources: len(s), s[i] → (image, class), s.names

class FolderImages:
    """The images below folder/<class name>/. The classes are `names`, or by default all folders in alphabetical order."""

    def __init__(self, folder, names=None):
        there = sorted(os.path.basename(path.rstrip(os.sep)) for path in glob.glob(os.path.join(glob.escape(folder), '*', '')))
        self.names = names or there
        if not there:
            raise ValueError(f'{folder} has no folders: wants a folder per class, with the name of the class')
        if set(there) - set(self.names):
            raise ValueError(f'{folder} has a class {min(set(there) - set(self.names))!r}, which is none of the '
                             f'{len(self.names)} training classes: rename or remove its folder')
        self.images = []
        for number, name in enumerate(self.names):
            for at, _, files in sorted(os.walk(os.path.join(folder, name))):
                self.images += [(os.path.join(at, file), number) for file in sorted(files) if file.lower().endswith(ENDINGS)]
        if not self.images:
            raise ValueError(f'{folder} holds no image: wants {", ".join(ENDINGS)} in a folder per class')

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        path, number = self.images[i]
        return Image.open(path), number

    def where(self, i):
        return self.images[i][0]


class HubImages:
    """A split of a data set on the Hugging Face Hub, or in a folder with its files, with the columns image and label."""

    def __init__(self, name, split):
        self.rows, self.where = from_hub(name, split), f'{name}, {split}, row {{}}'.format
        missing = {'image', 'label'} - set(self.rows.features)
        if missing:
            raise ValueError(f'{name} has columns {", ".join(self.rows.features)}: wants image and label')
        self.names = self.rows.features['label'].names

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row['image'], row['label']


def from_hub(name, split):
    """A split of a data set on the Hugging Face Hub, or in a folder with its files."""
    from datasets import load_dataset
    print(f'loading {name}, {split}', flush=True)
    try:
        return load_dataset(name, split=split)
    except ConnectionError as error:
        raise OSError(f'could not reach {name} on the Hugging Face Hub: this needs the network') from error
    except (OSError, ValueError) as error:
        raise OSError(f'could not load {name}, {split}: {" ".join(str(error).split())}') from error


# ----------------------------------------------------------------------------- resizing

CHUNK = 256             # images that a process resizes before it reports


def resized(image, size, whole):
    """A picture's middle square or, if `whole`, all of it, resized to size × size → uint8 (3, size, size), width / height"""
    image = image.convert('RGB')
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (0, 0, width, height) if whole else (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box)).transpose(2, 0, 1), width / height


def start_worker(source, path, size, whole):
    global worker
    worker = source, path, size, whole
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=leave_with_parent, daemon=True).start()


def resize_chunk(first):
    """Resizes the images number first, first + 1, … into their places → {first, labels, aspects, unreadable: their numbers}."""
    source, path, size, whole = worker
    images = np.memmap(path, np.uint8, 'r+', shape=(len(source), 3, size, size))
    labels, aspects, unreadable = [], [], []
    for i in range(first, min(first + CHUNK, len(source))):
        label, aspect = 0, 1.0
        try:
            image, label = source[i]
            images[i], aspect = resized(image, size, whole)
        except Exception:                               # damaged files fail in many ways
            unreadable.append(i)
        labels.append(label)
        aspects.append(aspect)
    images.flush()
    return dict(first=first, labels=labels, aspects=aspects, unreadable=unreadable)


def resize_all(source, path, size, processes, name):
    """Resizes all images into the array at `path`, and notes finished chunks in a file beside it → labels, aspects and the
    numbers of unreadable images. Training images stay whole."""
    notes, whole = path + '.notes', name == 'train'
    head = dict(count=len(source), size=size, whole=whole, source=source.where(0), last=source.where(len(source) - 1))
    done, total = [], len(source) * 3 * size ** 2
    if os.path.exists(notes) and os.path.exists(path) and os.path.getsize(path) == total:
        with open(notes, encoding='utf-8') as f:
            rows = [json.loads(line) for line in f if line.endswith('}\n')]
        done = rows[1:] if rows[:1] == [head] else []
    if not done:
        with open(path, 'wb') as f:
            f.truncate(total)
    with open(notes, 'w', encoding='utf-8') as f:
        f.writelines(json.dumps(row) + '\n' for row in [head, *done])
        f.flush()
        todo = sorted(set(range(0, len(source), CHUNK)) - {row['first'] for row in done})
        with ProcessPoolExecutor(processes, initializer=start_worker, initargs=(source, path, size, whole)) as pool:
            try:
                for row in tqdm(in_order(pool, resize_chunk, todo, 4 * processes), f'{name}, {CHUNK} each', total=len(todo)):
                    f.write(json.dumps(row) + '\n')
                    f.flush()
                    done.append(row)
            except BrokenProcessPool as error:
                raise OSError('a process that resizes images died, perhaps out of memory: try fewer --processes') from error
            finally:
                pool.shutdown(cancel_futures=True)
    done.sort(key=lambda row: row['first'])
    return [[value for row in done for value in row[key]] for key in ('labels', 'aspects', 'unreadable')]


def write_resized(folder, sources, size, processes=0):
    """Writes the resized images of {'train': source, 'val': source}: whole images for training, middle squares for validation.
    After an interruption, it continues."""
    processes = min(processes or os.cpu_count(), 4 * os.cpu_count())
    os.makedirs(folder, exist_ok=True)
    parts = {split: os.path.join(folder, f'{split}.part') for split in SPLITS}
    labels, aspects = {}, {}
    for split, source in sources.items():
        labels[split], aspects[split], unreadable = resize_all(source, parts[split], size, processes, split)
        if unreadable:
            print(f'{folder}: {len(unreadable)} of the {len(source)} images for {split} cannot be read and are left out, '
                  f'the first is {source.where(unreadable[0])}')
        if len(unreadable) == len(source):
            raise ValueError(f'{folder}: none of the images for {split} can be read')
        count = len(source) - len(unreadable)           # the last ones replace those that are left out
        images = np.memmap(parts[split], np.uint8, 'r+', shape=(len(source), 3, size, size))
        holes, last = [i for i in unreadable if i < count], sorted(set(range(count, len(source))) - set(unreadable))
        for of_each in (images, labels[split], aspects[split]):
            for hole, i in zip(holes, last):
                of_each[hole] = of_each[i]
        images.flush()
        del labels[split][count:], aspects[split][count:]
    with replacing(folder, ['train_aspects.bin', *IMAGE_FILES]) as path:
        names = sources['train'].names
        finish_images(folder, {**path, 'train.bin': parts['train']}, labels, 3, size, len(names), names, aspects['train'])
        for split in SPLITS:
            os.truncate(parts[split], len(labels[split]) * 3 * size ** 2)
            os.replace(parts[split], path[f'{split}.bin'])
    for part in parts.values():
        os.remove(part + '.notes')
