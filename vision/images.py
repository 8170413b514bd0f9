"""
A data set of images is a folder data/<name> with train.bin and val.bin, uint8 of shape (images, channels, size, size), with
class numbers as uint16 in train_labels.bin and val_labels.bin, and with meta.json. If meta.json says `whole`, each training image
is a whole image squeezed to a square, and train_aspects.bin has the width / height of each as float32. unreadable.txt, if any,
names the images that are left out. This file reads batches of a data set, writes a data set, and resizes images for it. Resizing
runs once, in many processes, and continues after an interruption.
"""
from engine.process import one_line

import glob
import hashlib
import json
import math
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

import numpy as np
import torch

from data.text import follow_parent, in_order, progress_bar
from data.tokens import SPLITS, load_meta, map_file, preparing, replacing, sample_hash, shuffled_starts, spread_starts
from vision.augment import middle

os.environ.setdefault('HF_HUB_VERBOSITY', 'error')              # only errors: the last one is reported in one line

ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.gif', '.webp', '.ppm', '.tif', '.tiff')


# ----------------------------------------------------------------------------- reading

def read_image_meta(name):
    """Read data/<name>/meta.json of images: image_size, channels, classes, class names (if any), mean and std of each channel for
    values from 0 to 1, the number of images in each split, whether the training images are `whole`, the `groups` of the
    validation images ({} for none), and the fingerprint of all of it ('' in older data). Groups are versions of the same images,
    in the same order: groups={'corruption': [C names], 'severity': [S names]} are C · S groups; the first S belong to the first
    corruption."""
    if not os.path.exists(f'data/{name}/meta.json') and os.path.exists(f'vision/prepare/{name}.py'):
        raise ValueError(f'data/{name} is not prepared: run  python -m vision.prepare.{name}')
    return {'whole': False, 'groups': {}, **load_meta(name, 'images')}


class Images:
    """One split of a data set of images, each with its class number, for a model with this ViTConfig. `read` cuts images larger
    than image_size to the middle square. `shuffled`, for training, leaves the cutting to the augmentation, and gives each image
    `repeats` times in a row."""

    def __init__(self, name, split, config, repeats=1):
        meta = read_image_meta(name)
        self.windows, stored = meta['images'][split], meta['image_size']
        if config.channels != meta['channels']:
            raise ValueError(f'channels={config.channels}: the images of dataset={name} have {meta["channels"]}, '
                             f'set --channels={meta["channels"]}')
        if config.image_size > stored:
            raise ValueError(f'image_size={config.image_size} is more than the {stored} of dataset={name}: '
                             f'set --image_size={stored} or less')
        if config.classes < meta['classes']:
            raise ValueError(f'classes={config.classes} is less than the {meta["classes"]} of dataset={name}: '
                             f'set --classes={meta["classes"]} or more')
        self.path, self.mean, self.std = os.path.join('data', name, f'{split}.bin'), meta['mean'], meta['std']
        self.fingerprint, self.groups = meta['fingerprint'], meta['groups'] if split == 'val' else {}
        self.images = map_file(self.path, np.uint8, (self.windows, config.channels, stored, stored), meta)
        self.labels = self.of_each('labels', np.uint16, meta).long()
        self.aspects = self.of_each('aspects', np.float32, meta) if meta['whole'] and split == 'train' else None
        self.image_size, self.repeats = config.image_size, repeats

    def of_each(self, kind, dtype, meta):
        """Return the tensor (images,) in the file of this kind: labels or aspects."""
        return torch.from_numpy(np.array(map_file(self.path.replace('.bin', f'_{kind}.bin'), dtype, (self.windows,), meta)))

    def read(self, numbers):
        """Return images, uint8 (len(numbers), channels, image_size, image_size), and classes, int64 (len(numbers),)."""
        images, labels, *aspects = self.read_stored(numbers)
        if aspects:
            images = middle(images.float(), self.image_size, *aspects).round().clamp(0, 255).byte()
        return middle(images, self.image_size).contiguous(), labels

    def read_padded(self, numbers, size):
        """Read images as `read` does, padded to `size` images: repeated ones have the class −1 and do not count."""
        images, labels = self.read(np.resize(numbers, size))
        labels[len(numbers):] = -1
        return images, labels

    def read_stored(self, numbers):
        """Return stored images, uint8 (len(numbers), channels, S, S), their classes and, for whole images, their aspects, float32
        (len(numbers),)."""
        numbers = np.asarray(numbers)
        images, labels = torch.from_numpy(self.images[numbers]), self.labels[numbers]
        return (images, labels) if self.aspects is None else (images, labels, self.aspects[numbers])

    def shuffled(self, first, count, seed):
        """Return Augment's arguments for images number `first`, first + 1, … of an endless shuffled sequence, with each image
        `repeats` times in a row. An epoch then covers only 1/repeats of the images (repeated augmentation, Hoffer et al.
        2020)."""
        begin, end = first // self.repeats, -(-(first + count) // self.repeats)
        numbers = np.repeat(shuffled_starts(self.windows + 1, 1, begin, end - begin, seed), self.repeats)
        return self.read_stored(numbers[first - begin * self.repeats:][:count])

    def spread(self, batches, batch_size):
        """Spread batches as Tokens.spread does. If they can hold all images, use all, in batches whose sizes differ by at most
        1."""
        if batches * batch_size < self.windows:
            return spread_starts(self.windows, 1, batches, batch_size)
        return np.array_split(np.arange(self.windows), math.ceil(self.windows / batch_size))


# ----------------------------------------------------------------------------- writing

IMAGE_FILES = [*(f'{split}{kind}.bin' for split in SPLITS for kind in ('', '_labels')), 'meta.json']
MORE_FILES = ('train_aspects.bin', 'unreadable.txt')            # which only write_resized writes


def write_images(folder, splits, classes, names=(), groups=None):
    """Write images, labels and meta.json, as `replacing` does. `splits` maps each split to an iterable of pairs: uint8 images
    (N, channels, S, S), all of one size, and their class numbers (N,). `names` may name the classes. `groups` may say how the
    validation images are grouped, see read_image_meta."""
    labels, shapes = {split: [] for split in SPLITS}, set()
    with preparing(folder), replacing(folder, IMAGE_FILES, MORE_FILES) as path:
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
        finish_images(folder, path, labels, *shapes.pop()[:2], classes, names, groups=groups)


def finish_images(folder, path, labels, channels, size, classes, names, aspects=(), groups=None):
    """After the images, write the labels, {split: class numbers}, the aspects, if any, and meta.json. `path` is from
    `replacing`."""
    content, moments = hashlib.blake2b(json.dumps([size, channels, classes, list(names)]).encode(), digest_size=16), {}
    samples = {}                                        # {file's name: the hash of its sample}
    for split in SPLITS:
        if not 0 <= min(labels[split]) <= max(labels[split]) < classes:
            raise ValueError(f'{folder}: classes from {min(labels[split])} to {max(labels[split])} are not within '
                             f'classes={classes}')
        array = np.asarray(labels[split], np.uint16)
        array.tofile(path[f'{split}_labels.bin'])
        content.update(array)
        images = np.memmap(path[f'{split}.bin'], np.uint8, 'r', shape=(len(array), channels, size, size))
        samples[f'{split}.bin'] = sample_hash(path[f'{split}.bin'], images.nbytes)
        samples[f'{split}_labels.bin'] = sample_hash(path[f'{split}_labels.bin'], array.nbytes)
        some = np.unique(np.linspace(0, len(images) - 1, 10000).astype(int))        # enough for the mean and the fingerprint
        moments[split] = 0                              # the means over pixels of x and of x², for each channel
        for image in (images[i] for i in some):
            content.update(image.tobytes())
            x = image / 255
            moments[split] += np.stack([x, x * x]).mean((2, 3)) / len(some)
    if aspects:
        aspects = np.asarray(aspects, np.float32)
        aspects.tofile(path['train_aspects.bin'])
        samples['train_aspects.bin'] = sample_hash(path['train_aspects.bin'], aspects.nbytes)
        content.update(aspects)
    mean, squares = moments['train']
    meta = dict(image_size=size, channels=channels, classes=classes, names=list(names), mean=mean.tolist(),
                std=np.sqrt(np.maximum(squares - mean ** 2, 1e-12)).tolist(),
                images={split: len(labels[split]) for split in SPLITS}, whole=len(aspects) > 0, groups=groups or {},
                fingerprint=content.hexdigest(), samples=samples)
    with open(path['meta.json'], 'w', encoding='utf-8') as f:
        json.dump(meta, f, indent=1)
    print(f'{folder}: {len(labels["train"]):,} training and {len(labels["val"]):,} validation images of '
          f'{channels} × {size} × {size}')


# ----------------------------------------------------------------------------- sources: len(s), s[i] → (image, class), s.names

def stop(error):
    raise error


class FolderImages:
    """The images below folder/<class name>/. The classes are `names`, or by default all folders in alphabetical order."""

    def __init__(self, folder, names=None):
        folders = sorted(os.path.basename(path.rstrip(os.sep)) for path in glob.glob(os.path.join(glob.escape(folder), '*', '')))
        self.names, self.images = names or folders, []
        if not folders:
            raise ValueError(f'{folder} has no folders: wants a folder per class, with the name of the class')
        if set(folders) - set(self.names):
            raise ValueError(f'{folder} has a class {min(set(folders) - set(self.names))!r}, which is none of the '
                             f'{len(self.names)} training classes: rename or remove its folder')
        empty = []
        for number, name in enumerate(self.names):
            before = len(self.images)
            for at, _, files in sorted(os.walk(os.path.join(folder, name), onerror=stop)):
                self.images += [(os.path.join(at, file), number) for file in sorted(files) if file.lower().endswith(ENDINGS)]
            if len(self.images) == before:
                empty.append(name)
        if empty and not names or len(empty) == len(self.names):        # validation images may lack some classes
            raise ValueError(f'{os.path.join(folder, empty[0])} holds no image: wants {", ".join(ENDINGS)}; if it is no class, '
                             f'remove the folder')

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        path, number = self.images[i]
        from PIL import Image
        return Image.open(path), number

    def where(self, i):
        return self.images[i][0]


class HubImages:
    """A split of a data set on the Hugging Face Hub, or in a folder with its files, with the columns image and label."""

    def __init__(self, name, split):
        self.rows, self.where = from_hub(name, split, 'image', 'label'), f'{name}, {split}, row {{}}'.format
        self.names = self.rows.features['label'].names

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row['image'], row['label']


def from_hub(name, split, image, label):
    """Load a split of a data set on the Hugging Face Hub, or in a folder with its files, with these columns of images and
    classes. Raise ValueError or OSError if there is none."""
    from datasets import ClassLabel, load_dataset
    from datasets import Image as Images
    print(f'loading {name}, {split}', flush=True)
    try:
        rows = load_dataset(name, split=split)
    except ConnectionError as error:
        raise OSError(f'could not reach {name} on the Hugging Face Hub: this needs the network') from error
    except (OSError, ValueError) as error:
        raise OSError(f'could not load {name}, {split}: {" ".join(str(error).split())}') from error
    if not isinstance(rows.features.get(image), Images) or not isinstance(rows.features.get(label), ClassLabel):
        raise ValueError(f'{name} has columns {", ".join(rows.features)}: wants {image} of images and {label} of classes')
    return rows


# ----------------------------------------------------------------------------- resizing

CHUNK = 256             # images that a process resizes before it reports
NAMED = 10              # unreadable images that the terminal names


def upright(image):
    """Rotate an image as its EXIF orientation says; if its EXIF data is damaged, leave it as stored."""
    from PIL import ImageOps
    image.load()                                        # turns a TIFF, and raises an error for damaged pixels
    with suppress(Exception):                           # of many types
        ImageOps.exif_transpose(image, in_place=True)
    return image


def rgb(image):
    """Convert an image to 8-bit RGB. Raise ValueError if the range of its pixels is unknown."""
    if image.mode.startswith('I;16'):                   # convert('RGB') would make all above 255 white
        from PIL import Image
        return Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8)).convert('RGB')
    if image.mode in ('I', 'F'):
        raise ValueError('its pixels are numbers of 32 bits, and which of them is white is not known')
    return image.convert('RGB')


def resized(image, size, whole):
    """Resize an image's middle square or, if `whole`, all of it to uint8 (3, size, size). Return also the width / height."""
    from PIL import Image
    image = rgb(upright(image))
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (0, 0, width, height) if whole else (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box)).transpose(2, 0, 1), width / height


def start_worker(*of_all):
    global worker
    worker = of_all
    follow_parent()


def resize_chunk(first):
    """Resize the images number first, first + 1, … into their places → {first, labels, aspects, unreadable: [[number, why]]}."""
    source, path, size, whole = worker
    labels, aspects, unreadable = [], [], []
    with open(path, 'r+b') as f:
        for i in range(first, min(first + CHUNK, len(source))):
            label, aspect = 0, 1.0
            try:
                image, label = source[i]
                pixels, aspect = resized(image, size, whole)
            except Exception as error:                  # damaged files fail in many ways
                unreadable.append([i, one_line(error)])
            else:
                f.seek(i * pixels.size)
                f.write(pixels.tobytes())
            labels.append(label)
            aspects.append(aspect)
        f.flush()
        os.fsync(f.fileno())
    return dict(first=first, labels=labels, aspects=aspects, unreadable=unreadable)


def finished(notes, head):
    """Return the rows of chunks that an earlier call has noted as finished, except those with unreadable images."""
    with open(notes, encoding='utf-8') as f:
        rows = [json.loads(line) for line in f if line.endswith('}\n')]         # the last one may be incomplete
    return [row for row in rows[1:] if not row['unreadable']] if rows[:1] == [head] else []


def resize_all(source, path, size, processes, name):
    """Resize all images into the array at `path`, and note finished chunks in a file beside it. Return labels, aspects and the
    numbers of unreadable images. Training images stay whole."""
    notes, whole = path + '.notes', name == 'train'
    head = dict(count=len(source), size=size, whole=whole, upright=True, source=source.where(0),
                last=source.where(len(source) - 1))
    done, total = [], len(source) * 3 * size ** 2
    if os.path.isfile(notes) and os.path.isfile(path) and os.path.getsize(path) == total:
        done = finished(notes, head)
    if not done:
        with open(path, 'wb') as f:
            f.truncate(total)
    with open(notes, 'w', encoding='utf-8') as f:
        f.writelines(json.dumps(row) + '\n' for row in [head, *done])
        f.flush()
        todo = sorted(set(range(0, len(source), CHUNK)) - {row['first'] for row in done})
        with (ProcessPoolExecutor(processes, initializer=start_worker, initargs=(source, path, size, whole)) as pool,
              progress_bar(name, len(source), 'images', sum(len(row['labels']) for row in done)) as progress):
            try:
                for row in in_order(pool, resize_chunk, todo, 4 * processes):
                    f.write(json.dumps(row) + '\n')
                    f.flush()
                    done.append(row)
                    progress.update(len(row['labels']))
            except BrokenProcessPool as error:
                raise OSError('a process that resizes images died, perhaps out of memory: try fewer --processes') from error
            finally:
                pool.shutdown(cancel_futures=True)
    done.sort(key=lambda row: row['first'])
    return [[value for row in done for value in row[key]] for key in ('labels', 'aspects', 'unreadable')]


def check_room(folder, sources, size):
    """Raise ValueError if the disk has no room for the images."""
    paths = [os.path.join(folder, f'{split}.part') for split in sources]
    used = sum(512 * os.stat(path).st_blocks for path in paths if os.path.exists(path))
    count, free = sum(map(len, sources.values())), shutil.disk_usage(folder).free + used
    if count * 3 * size ** 2 > free:
        raise ValueError(f'size={size}: {count:,} images take {count * 3 * size ** 2 / 1e9:,.1f} GB, and the disk of {folder} '
                         f'has {free / 1e9:,.1f} GB free: choose a smaller size, or another folder')


def write_resized(folder, sources, size, processes=0):
    """Write the resized images of {'train': source, 'val': source}: whole images for training, middle squares for validation.
    Continue after an interruption."""
    with preparing(folder):
        check_room(folder, sources, size)
        parts = {split: os.path.join(folder, f'{split}.part') for split in SPLITS}
        labels, aspects, unreadable = {}, {}, []
        for split, source in sources.items():
            labels[split], aspects[split], left_out = resize_split(folder, split, source, parts[split], size, processes)
            unreadable += left_out
        more = ['train_aspects.bin', *(['unreadable.txt'] if unreadable else [])]
        with replacing(folder, [*more, *IMAGE_FILES], MORE_FILES) as path:
            if unreadable:
                with open(path['unreadable.txt'], 'w', encoding='utf-8', errors='surrogateescape') as f:
                    f.writelines(f'{name}\n' for name in unreadable)
            names, stored = sources['train'].names, {f'{split}.bin': part for split, part in parts.items()}
            finish_images(folder, {**path, **stored}, labels, 3, size, len(names), names, aspects['train'])
            for split in SPLITS:
                os.truncate(parts[split], len(labels[split]) * 3 * size ** 2)
                os.replace(parts[split], path[f'{split}.bin'])
        for part in parts.values():
            os.remove(part + '.notes')
        if unreadable:
            print(f'{os.path.join(folder, "unreadable.txt")} names all images that are left out')


def resize_split(folder, split, source, part, size, processes):
    """Call resize_all, and fill the gaps of unreadable images with the last ones. Return labels, aspects, and the skipped
    images."""
    labels, aspects, unreadable = resize_all(source, part, size, processes or os.cpu_count(), split)
    if unreadable:
        some = [f'{source.where(i)} ({why})' for i, why in unreadable[:NAMED]]
        more = [f'and {len(unreadable) - NAMED} more'] if len(unreadable) > NAMED else []
        print(f'{folder}: {len(unreadable)} of the {len(source)} images for {split} cannot be read and are left out:',
              *some, *more, sep='\n    ')
    unreadable = [i for i, _ in unreadable]
    if len(unreadable) == len(source):
        raise ValueError(f'{folder}: none of the images for {split} can be read')
    count = len(source) - len(unreadable)
    holes, last = [i for i in unreadable if i < count], sorted(set(range(count, len(source))) - set(unreadable))
    with open(part, 'r+b') as f:
        for hole, i in zip(holes, last):
            labels[hole], aspects[hole] = labels[i], aspects[i]
            f.seek(i * 3 * size ** 2)
            image = f.read(3 * size ** 2)
            f.seek(hole * 3 * size ** 2)
            f.write(image)
    return labels[:count], aspects[:count], [source.where(i) for i in unreadable]
