"""
vision/images.py and vision/prepare/: what is written comes back, each image is seen once an epoch, and what
cannot be read is left out and counted.
"""
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import call
from PIL import Image

from vision import images as im
from vision.images import Images, read_image_meta, write_images


@pytest.fixture(autouse=True)
def current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'data').mkdir()


def pictures(count, size=6, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), np.uint8)


def make(train=20, classes=5):
    images = pictures(train)
    write_images('data/tiny', {'train': [(images, np.arange(train) % classes)], 'val': [(pictures(7), np.arange(7) % classes)]},
                 classes)
    return images


def config(image_size, channels, classes):
    return SimpleNamespace(image_size=image_size, channels=channels, classes=classes)


def read(split='train', image_size=6, channels=3, classes=5):
    return Images('tiny', split, config(image_size, channels, classes))


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# ----------------------------------------------------------------------------- reading and writing

def test_written_images_come_back():
    """In chunks of any length; with mean and deviation of each channel, on the scale of 0 to 1"""
    images, labels = pictures(10), np.arange(10) % 3
    train = iter([(images[:7], labels[:7]), (images[7:], labels[7:])])
    groups = dict(corruption=['fog'], severity=['1', '2'])
    write_images('data/tiny', {'train': train, 'val': [(images[:2], [2, 2])]}, 3, ['cat', 'dog', 'owl'], groups)
    meta = read_image_meta('tiny')
    assert meta == json.loads(Path('data/tiny/meta.json').read_text())
    assert meta['names'] == ['cat', 'dog', 'owl'] and meta['images'] == {'train': 10, 'val': 2}
    assert meta['mean'] == pytest.approx((images / 255).mean((0, 2, 3)))
    assert meta['std'] == pytest.approx((images / 255).std((0, 2, 3)))
    x, y = read(classes=3).read([9, 0, 7])
    assert x.dtype == torch.uint8 and y.dtype == torch.int64 and y.tolist() == [0, 0, 1]
    assert torch.equal(x, torch.from_numpy(images[[9, 0, 7]]))
    assert read('val', classes=3).groups == groups and read(classes=3).groups == {}         # of the validation images alone
    assert torch.equal(read(image_size=4, classes=3).read([9])[0], x[:1, :, 1:5, 1:5])        # the middle of a larger image


def test_order():
    """Each image once an epoch, in another order each time, that only the seed and the number decide; with repeats, each of the
    same order three times in a row, wherever a batch begins"""
    make(train=20)
    data = read()
    key = {data.images[i].tobytes(): i for i in range(20)}
    order = [key[x.numpy().tobytes()] for x in data.shuffled(0, 60, seed=3)[0]]
    assert all(sorted(order[i:i + 20]) == list(range(20)) for i in (0, 20, 40)) and order[:20] != order[20:40]
    assert [key[x.numpy().tobytes()] for first in (0, 15, 30, 45) for x in data.shuffled(first, 15, seed=3)[0]] == order
    assert [key[x.numpy().tobytes()] for x in data.shuffled(0, 20, seed=4)[0]] != order[:20]
    _, labels = data.shuffled(7, 9, seed=3)
    assert labels.tolist() == [i % 5 for i in order[7:16]]
    repeated, (x, y) = Images('tiny', 'train', config(6, 3, 5), 3), data.shuffled(0, 40, seed=3)
    for first, count in (0, 1), (1, 1), (4, 9), (59, 3), (0, 120):
        found, labels = repeated.shuffled(first, count, seed=3)
        assert torch.equal(found, x.repeat_interleave(3, 0)[first:first + count])
        assert torch.equal(labels, y.repeat_interleave(3)[first:first + count])


@pytest.mark.parametrize('batches, batch_size, sizes', [(2, 4, [4, 4]), (100, 8, [7, 7, 6]), (5, 4, [4] * 5)])
def test_evaluation_images_reach_all_if_they_can(batches, batch_size, sizes):
    make(train=20)
    spread = read().spread(batches, batch_size)
    assert [len(numbers) for numbers in spread] == sizes and len({*np.concatenate(list(spread))}) == sum(sizes)


def test_images_that_are_none_are_not_written():
    make()
    before = content('data/tiny')
    for images, labels in (pictures(4), [0, 1, 5, 2]), (pictures(4) / 255, [0] * 4), (pictures(4, channels=1), [0] * 4):
        with pytest.raises(ValueError):
            write_images('data/tiny', {'train': [(pictures(4), [0] * 4)], 'val': [(images, labels)]}, 5)
    assert content('data/tiny') == before
    for wrong in dict(channels=1), dict(image_size=8), dict(classes=4):     # a model that does not fit these images
        with pytest.raises(ValueError, match=f'--{[*wrong][0]}='):
            read(**wrong)


# ----------------------------------------------------------------------------- folders of images

def folder_of_images(root, per_class=(4, 3), sizes=((20, 10), (9, 12))):
    """Two classes of single-colour pictures in `train` and `val`, of which the second is grey."""
    for split in ('train', 'val'):
        for number, (name, count) in enumerate(zip(('ant', 'bee'), per_class)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                color = (10 * i, 100, 200) if name == 'ant' else 50 * i
                Image.new('RGB' if name == 'ant' else 'L', sizes[number], color).save(folder / f'{i}.png')


def test_a_folder_of_images():
    """Squares of their middles in colour, the classes by their folders. What cannot be read, or has pixels of an unknown range,
    is left out, counted and named, on the terminal and in a file, until the next preparation"""
    folder_of_images(Path('raw'))
    Path('raw/train/ant/0.png').write_bytes(b'no picture')
    Image.fromarray(np.arange(64, dtype=np.float32).reshape(8, 8)).save('raw/train/ant/0a.tif')
    Path('raw/train/bee/2.png').write_bytes(Path('raw/train/bee/1.png').read_bytes()[:40])
    Path('raw/train/bee/readme.txt').write_text('no picture either')
    out = call('vision.prepare.imagenet', '--source=raw', '--folder=data/new', '--size=8', '--processes=2')
    assert '3 of the 8 images for train cannot be read' in out and 'raw/train/ant/0.png (Unid' in out
    named = Path('data/new/unreadable.txt')
    assert named.read_text() == 'raw/train/ant/0.png\nraw/train/ant/0a.tif\nraw/train/bee/2.png\n'
    train, val = (Images('new', split, config(8, 3, 2)) for split in ('train', 'val'))
    assert read_image_meta('new')['names'] == ['ant', 'bee'] and (train.windows, val.windows) == (5, 7)
    found = sorted((int(label), *image[:, 4, 4].tolist()) for image, label in zip(train.images, train.labels))
    assert found == [(0, 10, 100, 200), (0, 20, 100, 200), (0, 30, 100, 200), (1, 0, 0, 0), (1, 50, 50, 50)]
    assert (train.images[:] == train.images[:][:, :, :1, :1]).all()
    assert train.aspects.tolist() == [2.0 if label == 0 else 0.75 for label in train.labels] and val.aspects is None
    write_images('data/new', {split: [(pictures(4), [0] * 4)] for split in ('train', 'val')}, 1)
    assert not named.exists() and not read_image_meta('new')['whole']


def gradients(width, height):
    """A picture whose red rises from left to right and whose green rises from top to bottom, from 20 to 235."""
    red, green = (20 + 215 * (np.arange(n) + 0.5) / n for n in (width, height))
    levels = np.broadcast_arrays(red, green[:, None], 0)
    return Image.fromarray(np.stack(levels, -1).round().astype(np.uint8))


@pytest.mark.parametrize('width, height', [(90, 60), (40, 200)])
def test_training_images_are_whole_and_validation_ones_middle_squares(width, height):
    """What is read, to measure and to evaluate, is the middle of the shorter side's square of both, with the image's own shape"""
    for split in 'train', 'val':
        Path('raw', split, 'one').mkdir(parents=True)
        gradients(width, height).save(Path('raw', split, 'one', '0.png'))
    im.write_resized('data/new', {split: im.FolderImages(f'raw/{split}') for split in ('train', 'val')}, 32, 1)
    assert read_image_meta('new')['whole']
    train, val = (Images('new', split, config(24, 3, 1)) for split in ('train', 'val'))
    whole, _, aspects = train.shuffled(0, 2, seed=0)
    wanted = np.asarray(gradients(width, height).resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert whole.shape == (2, 3, 32, 32) and (whole[0].numpy() == wanted).all()
    assert aspects.dtype == torch.float32 and aspects.tolist() == pytest.approx([width / height] * 2)
    assert len(val.shuffled(0, 1, seed=0)) == 2
    (x, _), (y, _), side = train.read([0]), val.read([0]), min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = gradients(width, height).crop((left, top, left + side, top + side))
    middle = square.resize((32, 32), Image.Resampling.BICUBIC).crop((4, 4, 28, 28))
    assert x.dtype == y.dtype == torch.uint8 and (y[0].numpy() == np.asarray(middle).transpose(2, 0, 1)).all()
    assert (x.int() - y.int()).abs().max() <= 3


@pytest.mark.parametrize('file', ['train.bin', 'val_labels.bin'])
def test_a_file_that_was_replaced_by_one_of_the_same_size(file):
    """Prepared again, the same images have the same fingerprint"""
    make()
    fingerprint = read().fingerprint
    make()
    assert fingerprint and read().fingerprint == fingerprint
    path = Path('data/tiny', file)
    *most, low, high = path.read_bytes()
    path.write_bytes(bytes([*most, low ^ 1, high]))
    with pytest.raises(ValueError, match=f'data/tiny/{file} is not the file'):
        read(file.partition('_')[0].removesuffix('.bin'))


@pytest.mark.parametrize('ending', ['.png', '.tif'])
def test_photographs_and_16_bit_images(ending):
    """A camera that is held upright stores its picture lying on its side, and says so (EXIF 2.3, 4.6.4 A, orientation 6);
    Pillow's convert('RGB') makes all of a 16-bit picture white that is above 255 of 65535"""
    exif = Image.Exif()
    exif[0x0112] = 6
    gradients(48, 32).save(f'photo{ending}', exif=exif)
    found, aspect = im.resized(Image.open(f'photo{ending}'), 16, True)
    assert aspect == 2 / 3 and (found == im.resized(gradients(48, 32).rotate(-90, expand=True), 16, True)[0]).all()
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(grey.astype(np.uint16) * 257).save(f'grey{ending}')
    assert (im.resized(Image.open(f'grey{ending}'), 8, True)[0] == grey).all()


def test_classes_are_those_of_training():
    """A validation class that training lacks is an error; one that validation lacks leaves the numbers of the others"""
    folder_of_images(Path('raw'))
    names = im.FolderImages('raw/train').names
    os.rename('raw/val/bee', 'raw/val/fly')
    with pytest.raises(ValueError, match="'fly', which is none of the 2"):
        im.FolderImages('raw/val', names)
    os.rename('raw/val/fly', 'raw/val/bee')
    for path in Path('raw/val/ant').iterdir():
        path.unlink()
    assert {number for _, number in im.FolderImages('raw/val', names).images} == {1}


def test_what_is_resized_is_not_resized_again(monkeypatch):
    """Stopped in the middle, the same command ends with the same files, and resizes what was left and what was unreadable"""
    folder_of_images(Path('raw'), per_class=(5, 4))
    Path('raw/train/ant/1.png').write_bytes(b'no picture')
    monkeypatch.setattr(im, 'CHUNK', 2)
    sources = {split: im.FolderImages(f'raw/{split}') for split in ('train', 'val')}
    im.write_resized('data/whole', sources, 8, 1)
    calls, in_order = [], im.in_order

    def stops(pool, f, items, ahead):
        for number, row in enumerate(in_order(pool, f, items, ahead)):
            if number == 2:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(im, 'in_order', stops)
    for _ in range(2):                                  # five chunks, two at a time
        with pytest.raises(KeyboardInterrupt):
            im.write_resized('data/new', sources, 8, 1)
    assert not Path('data/new/meta.json').exists()
    monkeypatch.setattr(im, 'in_order', lambda pool, f, items, ahead: (calls.append(i) or row for i, row in
                                                                      zip(items, in_order(pool, f, items, ahead))))
    im.write_resized('data/new', sources, 8, 1)
    assert calls == [0, 6, 8, 0, 2, 4, 6, 8] and content('data/new') == content('data/whole')
    assert Path('data/new/unreadable.txt').read_text() == 'raw/train/ant/1.png\n'


# ----------------------------------------------------------------------------- the data sets

def test_digits_and_their_corruptions():
    """A fifth of each class validates; its corruptions, one severity behind the other, are each farther from it than the one
    before"""
    pytest.importorskip('sklearn')
    from sklearn.datasets import load_digits
    for name in ('digits', 'digits_c'):
        call(f'vision.prepare.{name}')
    train, val, clean, corrupted = (Images(name, split, config(8, 1, 10)) for name in ('digits', 'digits_c')
                                    for split in ('train', 'val'))
    digits = load_digits()
    assert train.windows + val.windows == 1797 and (np.bincount(val.labels) == np.bincount(digits.target) // 5).all()
    first = np.flatnonzero(digits.target == val.labels[0])[4]
    assert np.abs(val.images[0][0] - digits.images[first] * 255 / 16).max() <= 0.5 and train.images[:].max() == 255
    assert (clean.images[:] == val.images[:]).all() and corrupted.groups['severity'] == ['1', '2', '3', '4', '5']
    assert corrupted.labels.tolist() == [*val.labels] * 5 * len(corrupted.groups['corruption'])
    groups = corrupted.images[:].reshape(-1, 5, *val.images[:].shape).astype(float)
    distances = np.abs(groups - val.images[:]).mean((2, 3, 4, 5))
    assert (np.diff(distances) > 0).all() and (distances > 1).all()


@pytest.mark.long
def test_cifar100_from_a_folder_and_its_corruptions():
    """Both scripts, on a few made-up images in the form in which they are published"""
    datasets = pytest.importorskip('datasets')
    names = [f'c{i}' for i in range(100)]
    features = datasets.Features({'img': datasets.Image(), 'fine_label': datasets.ClassLabel(names=names)})
    images, labels = pictures(6, size=32).transpose(0, 2, 3, 1), [99, 98, 97, 96, 95, 94]
    for folder in 'hub', 'CIFAR-100-C', 'data/cifar100', 'data/cifar100c':
        Path(folder).mkdir()
    for split, count in (('train', 6), ('test', 4)):
        rows = dict(img=[Image.fromarray(image) for image in images[:count]], fine_label=labels[:count])
        datasets.Dataset.from_dict(rows, features=features).to_parquet(f'hub/{split}-00000.parquet')
    for name, image in (('fog', images[0]), ('snow', images[1])):
        np.save(f'CIFAR-100-C/{name}.npy', np.stack([image] * 20))
    np.save('CIFAR-100-C/labels.npy', np.array(labels[:4] * 5))
    for name, arguments in (('cifar100', ['--source=hub']), ('cifar100c', ['--files=CIFAR-100-C', '--corruptions=fog,snow'])):
        call(f'vision.prepare.{name}', *arguments)
    train, val, clean, corrupted = (Images(name, split, config(32, 3, 100)) for name in ('cifar100', 'cifar100c')
                                    for split in ('train', 'val'))
    assert train.labels.tolist() == labels and val.windows == 4 and read_image_meta('cifar100')['names'][7] == 'c7'
    assert (train.images[:] == images.transpose(0, 3, 1, 2)).all() and (clean.images[:] == val.images[:]).all()
    assert corrupted.labels.tolist() == labels[:4] * 10
    assert (corrupted.images[20:] == images[1].transpose(2, 0, 1)).all()
    assert corrupted.groups == dict(corruption=['fog', 'snow'], severity=['1', '2', '3', '4', '5']) and clean.groups == {}
