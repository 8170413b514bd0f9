"""
Images of any size to the uint8 arrays that training reads: resized once, by many processes, and from where it was stopped.
"""
import glob
import json
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
from PIL import Image
from tqdm import tqdm

from dataset import IMAGE_FILES, SPLITS, finish_images, replacing
from text import in_order, leave_with_parent

os.environ.setdefault('HF_HUB_VERBOSITY', 'error')              # the last error says it all, in one line

ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.gif', '.webp', '.ppm', '.tif', '.tiff')


# ----------------------------------------------------------------------------- sources: len(s), s[i] → (image, class), s.names

class FolderImages:
    """The images below folder/<name of the class>/, whose classes are `names`, or all that are there in alphabetical order."""

    def __init__(self, folder, names=None):
        there = sorted(os.path.basename(path.rstrip(os.sep)) for path in glob.glob(os.path.join(glob.escape(folder), '*', '')))
        self.names = names or there
        if not there:
            raise ValueError(f'{folder} has no folder for each class, named as the class')
        if set(there) - set(self.names):
            raise ValueError(f'{folder} has a class {min(set(there) - set(self.names))!r} that is none of the {len(self.names)}')
        self.images = []
        for number, name in enumerate(self.names):
            for at, _, files in sorted(os.walk(os.path.join(folder, name))):
                self.images += [(os.path.join(at, file), number) for file in sorted(files) if file.lower().endswith(ENDINGS)]
        if not self.images:
            raise ValueError(f'{folder} holds no image: wants {", ".join(ENDINGS)} in a folder for each class')

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


def resized(image, size):
    """The middle square of a picture, size × size → uint8 (3, size, size)"""
    image = image.convert('RGB')
    side = min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    image = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.asarray(image).transpose(2, 0, 1)


def start_worker(source, path, size):
    global worker
    worker = source, path, size
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=leave_with_parent, daemon=True).start()


def resize_chunk(first):
    """Resizes images number first, first + 1, … into their places → {first, labels, and which could not be read}."""
    source, path, size = worker
    images = np.memmap(path, np.uint8, 'r+', shape=(len(source), 3, size, size))
    labels, unreadable = [], []
    for i in range(first, min(first + CHUNK, len(source))):
        label = 0
        try:
            image, label = source[i]
            images[i] = resized(image, size)
        except Exception:                               # damaged files fail in many ways
            unreadable.append(i)
        labels.append(label)
    images.flush()
    return dict(first=first, labels=labels, unreadable=unreadable)


def resize_all(source, path, size, processes, name):
    """Resizes all images into the array at `path`, beside which it notes what is done → labels, and which could not be read."""
    notes, head = path + '.notes', dict(count=len(source), size=size, source=source.where(0), last=source.where(len(source) - 1))
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
        with ProcessPoolExecutor(processes, initializer=start_worker, initargs=(source, path, size)) as pool:
            try:
                for row in tqdm(in_order(pool, resize_chunk, todo, 4 * processes), f'{name}, {CHUNK} each', total=len(todo)):
                    f.write(json.dumps(row) + '\n')
                    f.flush()
                    done.append(row)
            except BrokenProcessPool as error:
                raise OSError('a process died that was resizing, for lack of memory perhaps: try fewer --processes') from error
            finally:
                pool.shutdown(cancel_futures=True)
    done.sort(key=lambda row: row['first'])
    return [label for row in done for label in row['labels']], [i for row in done for i in row['unreadable']]


def write_resized(folder, sources, size, processes=0):
    """Writes the images of {'train': source, 'val': source}, resized, as write_images does. Stopped before, it goes on."""
    processes = min(processes or os.cpu_count(), 4 * os.cpu_count())
    os.makedirs(folder, exist_ok=True)
    parts = {split: os.path.join(folder, f'{split}.part') for split in SPLITS}
    labels = {}
    for split, source in sources.items():
        labels[split], unreadable = resize_all(source, parts[split], size, processes, split)
        if unreadable:
            print(f'{folder}: {len(unreadable)} of the {len(source)} images for {split} cannot be read and are left out, '
                  f'{source.where(unreadable[0])} the first')
        if len(unreadable) == len(source):
            raise ValueError(f'{folder}: none of the images for {split} can be read')
        count = len(source) - len(unreadable)           # the last ones take the places of those that are left out
        images = np.memmap(parts[split], np.uint8, 'r+', shape=(len(source), 3, size, size))
        holes, last = [i for i in unreadable if i < count], sorted(set(range(count, len(source))) - set(unreadable))
        for hole, i in zip(holes, last):
            images[hole], labels[split][hole] = images[i], labels[split][i]
        images.flush()
        del labels[split][count:]
    with replacing(folder, IMAGE_FILES) as path:
        names = sources['train'].names
        finish_images(folder, {**path, 'train.bin': parts['train']}, labels, 3, size, len(names), names)
        for split in SPLITS:
            os.truncate(parts[split], len(labels[split]) * 3 * size ** 2)
            os.replace(parts[split], path[f'{split}.bin'])
    for part in parts.values():
        os.remove(part + '.notes')
