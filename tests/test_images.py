"""
vision/images.py and the data/*/prepare.py of images: what is written comes back, each image is seen once an epoch, and what
cannot be read is left out and counted.
"""
import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ROOT, call
from PIL import Image

from data.tokens import Tokens, write_tokens
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
    write_images('data/tiny', {'train': train, 'val': [(images[:2], [2, 2])]}, 3, ['cat', 'dog', 'owl'])
    meta = read_image_meta('tiny')
    assert meta == json.loads(Path('data/tiny/meta.json').read_text())
    assert meta['names'] == ['cat', 'dog', 'owl'] and meta['images'] == {'train': 10, 'val': 2}
    assert meta['mean'] == pytest.approx((images / 255).mean((0, 2, 3)))
    assert meta['std'] == pytest.approx((images / 255).std((0, 2, 3)))
    x, y = read(classes=3).read([9, 0, 7])
    assert x.dtype == torch.uint8 and y.dtype == torch.int64 and y.tolist() == [0, 0, 1]
    assert torch.equal(x, torch.from_numpy(images[[9, 0, 7]]))


def test_the_middle_of_larger_images():
    images = make()
    x, _ = read(image_size=4).read([3])
    assert torch.equal(x, torch.from_numpy(images[[3], :, 1:5, 1:5]))
    assert read(image_size=4).shuffled(0, 2, 1)[0].shape == (2, 3, 6, 6)        # whole, for the augmentation to cut


def test_order_with_repeats():
    """Each image of the same order three times in a row, wherever a batch begins"""
    make(train=20)
    data, plain = Images('tiny', 'train', config(6, 3, 5), 3), read()
    x, y = data.shuffled(0, 120, seed=3)
    wanted, labels = plain.shuffled(0, 40, seed=3)
    assert torch.equal(x, wanted.repeat_interleave(3, 0)) and torch.equal(y, labels.repeat_interleave(3))
    for first, count in (0, 1), (1, 1), (2, 2), (4, 9), (59, 3), (0, 120):
        assert torch.equal(data.shuffled(first, count, seed=3)[0], x[first:first + count])


def test_order():
    """Each image once an epoch, in another order each time, that only the seed and the number decide"""
    make(train=20)
    data = read()
    key = {data.images[i].tobytes(): i for i in range(20)}
    order = [key[x.numpy().tobytes()] for x in data.shuffled(0, 60, seed=3)[0]]
    assert all(sorted(order[i:i + 20]) == list(range(20)) for i in (0, 20, 40)) and order[:20] != order[20:40]
    assert [key[x.numpy().tobytes()] for first in (0, 15, 30, 45) for x in data.shuffled(first, 15, seed=3)[0]] == order
    assert [key[x.numpy().tobytes()] for x in data.shuffled(0, 20, seed=4)[0]] != order[:20]
    _, labels = data.shuffled(7, 9, seed=3)
    assert labels.tolist() == [i % 5 for i in order[7:16]]


@pytest.mark.parametrize('batches, batch_size, sizes', [(2, 4, [4, 4]), (100, 8, [7, 7, 6]), (1, 100, [20]), (5, 4, [4] * 5),
                                                        (100, 3, [3] * 6 + [2])])
def test_evaluation_images_are_fixed_and_reach_all_if_they_can(batches, batch_size, sizes):
    make(train=20)
    spread = read().spread(batches, batch_size)
    assert [len(numbers) for numbers in spread] == sizes
    numbers = np.concatenate(list(spread))
    assert len(set(numbers)) == len(numbers) and (len(numbers) == 20 or sorted(numbers) == list(numbers))


@pytest.mark.parametrize('asked, words', [
    (dict(channels=1), 'channels=1 3 --channels=3'), (dict(image_size=8), 'image_size=8 6 --image_size=6'),
    (dict(classes=4), 'classes=4 5 --classes=5')])
def test_a_model_that_does_not_fit(asked, words):
    make()
    with pytest.raises(ValueError) as error:
        read(**asked)
    assert all(word in str(error.value) for word in words.split()) and 'tiny' in str(error.value)


@pytest.mark.parametrize('images, labels, words', [
    (pictures(4), [0, 1, 5, 2], 'classes from 0 to 5 classes=5'), (pictures(4), [0, -1, 1, 2], 'classes from -1'),
    (pictures(4)[:, :, :5], [0] * 4, 'square (3, 5, 6)'), (pictures(4) / 255, [0] * 4, 'uint8 float64'),
    (pictures(4, channels=1), [0] * 4, '(1, 6, 6) or (3, 6, 6)'), (pictures(4)[:0], [], 'nothing to write into val.bin')])
def test_images_that_are_none_are_not_written(images, labels, words):
    make()
    before = content('data/tiny')
    with pytest.raises(ValueError) as error:
        write_images('data/tiny', {'train': [(pictures(4), [0] * 4)], 'val': [(images, labels)]}, 5)
    assert all(word in str(error.value) for word in words.split()) and content('data/tiny') == before


def test_what_is_cut_short_leaves_what_was_there():
    make()
    before = content('data/tiny')

    def breaks():
        yield pictures(3), [0, 1, 2]
        raise KeyboardInterrupt

    for splits in dict(train=breaks(), val=[(pictures(3), [0] * 3)]), dict(train=[(pictures(3), [0] * 3)], val=breaks()):
        with pytest.raises(KeyboardInterrupt):
            write_images('data/tiny', splits, 5)
        assert content('data/tiny') == before


@pytest.mark.parametrize('at', range(5))
def test_half_replaced_never_looks_whole(at, monkeypatch):
    make()
    replace, done = os.replace, []

    def killed(*paths):
        if len(done) == at:
            raise KeyboardInterrupt
        replace(*paths)
        done.append(paths)

    monkeypatch.setattr(os, 'replace', killed)
    with pytest.raises(KeyboardInterrupt):
        make(train=9)
    with pytest.raises(ValueError, match="dataset='tiny'"):
        read()


@pytest.mark.parametrize('spoil, words', [
    (lambda f: (f / 'train.bin').write_bytes(b'12'), 'train.bin has 2 bytes'),
    (lambda f: (f / 'train_labels.bin').unlink(), 'train_labels.bin has 0 bytes'),
    (lambda f: np.full(20, 9, np.uint16).tofile(f / 'train_labels.bin'), 'train_labels.bin holds class 9 0 to 4'),
    (lambda f: (f / 'meta.json').write_text('{"images": {"train": 20}}'), 'meta.json is damaged'),
    (lambda f: (f / 'meta.json').write_text('[1'), 'meta.json is damaged'),
    (lambda f: (f / 'meta.json').write_text((f / 'meta.json').read_text().replace('"std": [', '"std": [0,')), 'damaged')])
def test_damage(spoil, words):
    make()
    spoil(Path('data/tiny'))
    with pytest.raises(ValueError) as error:
        read()
    assert all(word in str(error.value) for word in words.split()) and 'prepare data/tiny again' in str(error.value)


def test_tokens_and_images_are_told_apart():
    make()
    with pytest.raises(ValueError, match="'tiny' holds no tokens"):
        Tokens('tiny', 'train', 4, 50)
    write_tokens('data/tiny', {'train': [[1, 2]], 'val': [[1, 2]]}, 5, 'bytes')
    with pytest.raises(ValueError, match="'tiny' holds no images"):
        read()


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
    """Squares of their middles in colour, the classes by their folders; unreadable ones are left out, counted and named"""
    folder_of_images(Path('raw'))
    Path('raw/train/ant/0.png').write_bytes(b'no picture')
    Path('raw/train/bee/2.png').write_bytes(Path('raw/train/bee/1.png').read_bytes()[:40])
    Path('raw/train/bee/readme.txt').write_text('no picture either')
    out = call('data/imagenet/prepare.py', '--source=raw', '--folder=data/new', '--size=8', '--processes=2')
    assert ('data/new: 2 of the 7 images for train cannot be read and are left out:\n    raw/train/ant/0.png\n    '
            'raw/train/bee/2.png\n') in out and 'data/new/unreadable.txt names all' in out
    assert Path('data/new/unreadable.txt').read_text() == 'raw/train/ant/0.png\nraw/train/bee/2.png\n'
    assert sorted(os.listdir('data/new')) == ['meta.json', 'train.bin', 'train_aspects.bin', 'train_labels.bin',
                                              'unreadable.txt', 'val.bin', 'val_labels.bin']
    train, val = (Images('new', split, config(8, 3, 2)) for split in ('train', 'val'))
    assert read_image_meta('new')['names'] == ['ant', 'bee'] and (train.windows, val.windows) == (5, 7)
    found = sorted((int(label), *image[:, 4, 4].tolist()) for image, label in zip(train.images, train.labels))
    assert found == [(0, 10, 100, 200), (0, 20, 100, 200), (0, 30, 100, 200), (1, 0, 0, 0), (1, 50, 50, 50)]
    assert (train.images[:] == train.images[:][:, :, :1, :1]).all()
    assert train.aspects.tolist() == [2.0 if label == 0 else 0.75 for label in train.labels] and val.aspects is None


def gradients(width, height):
    """A picture whose red rises from left to right and whose green rises from top to bottom, from 20 to 235."""
    red, green = (20 + 215 * (np.arange(n) + 0.5) / n for n in (width, height))
    levels = np.broadcast_arrays(red, green[:, None], 0)
    return Image.fromarray(np.stack(levels, -1).round().astype(np.uint8))


@pytest.mark.parametrize('width, height', [(90, 60), (60, 90), (70, 70), (200, 40)])
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


def test_all_unreadable_images_are_named(capsys):
    """Ten of each split on the terminal, all in a file, in their order and whatever their names are made of. The next preparation
    writes it anew, or removes it."""
    folder_of_images(Path('raw'), per_class=(14, 3))
    bad = [*sorted(Path('raw/train/ant').iterdir())[:12], Path(os.fsdecode(b'raw/train/bee/\xff.png')), Path('raw/val/bee/1.png')]
    for path in bad:
        path.write_bytes(b'no picture')
    folders()
    out = capsys.readouterr().out
    assert [str(path) in out for path in bad] == [True] * 10 + [False] * 3 + [True] and '\n    and 3 more\n' in out
    named = Path('data/new/unreadable.txt')
    assert named.read_bytes().splitlines() == [*map(os.fsencode, bad)]
    for path in bad:
        path.unlink()
    folders()
    assert not named.exists() and 'unreadable' not in capsys.readouterr().out
    named.write_text('of another preparation\n')
    write_images('data/new', {split: [(pictures(4), [0] * 4)] for split in ('train', 'val')}, 1)
    assert not named.exists() and read_image_meta('new')['classes'] == 1


@pytest.mark.parametrize('ending', ['.png', '.tif', '.jpg'])
@pytest.mark.parametrize('orientation', range(10))
def test_the_orientation_of_a_photograph(orientation, ending):
    """A camera that is held upright stores its picture lying on its side, and says so (EXIF 2.3, 4.6.4 A)"""
    stored = gradients(48, 32)
    seen = np.asarray(stored)                           # which side of what is seen the first row and the first column are
    if orientation in (5, 6, 7, 8):
        seen = seen.transpose(1, 0, 2)                  # the first row is a side
    if orientation in (2, 3, 6, 7):
        seen = seen[:, ::-1]                            # the first column is on the right, or the first row is
    if orientation in (3, 4, 7, 8):
        seen = seen[::-1]                               # the first row is at the bottom, or the first column is
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = Path(f'photo{ending}')
    stored.save(path, exif=exif, **dict(quality=100, subsampling=0) if ending == '.jpg' else {})
    wanted, shape = im.resized(Image.fromarray(seen), 16, True)
    found, aspect = im.resized(Image.open(path), 16, True)
    assert aspect == shape == (2 / 3 if orientation in (5, 6, 7, 8) else 1.5)
    assert np.abs(found.astype(int) - wanted).max() <= (4 if ending == '.jpg' else 0)


@pytest.mark.filterwarnings('ignore:Corrupt EXIF data')
def test_damaged_exif_data():
    """The picture is not left out for it; but for damaged pixels it is"""
    gradients(9, 6).save('photo.png')
    wanted = im.resized(Image.open('photo.png'), 4, True)[0]
    for data in b'no EXIF data', b'Exif\0\0MM\0*\0\0\xff\xff', b'Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff':
        gradients(9, 6).save('photo.png', exif=data)
        assert (im.resized(Image.open('photo.png'), 4, True)[0] == wanted).all()
    Path('photo.png').write_bytes(Path('photo.png').read_bytes()[:-40])
    with pytest.raises(OSError):
        im.resized(Image.open('photo.png'), 4, True)


def test_a_folder_of_before_there_were_whole_images():
    images = make()
    meta = json.loads(Path('data/tiny/meta.json').read_text())
    assert meta.pop('whole') is False
    Path('data/tiny/meta.json').write_text(json.dumps(meta))
    assert not read_image_meta('tiny')['whole'] and torch.equal(read().read([3])[0], torch.from_numpy(images[[3]]))
    Path('data/tiny/meta.json').write_text(json.dumps({**meta, 'whole': True}))
    with pytest.raises(ValueError, match='train_aspects.bin has 0 bytes, but meta.json wants 80: prepare data/tiny again'):
        read()


WRONG_GROUPS = [dict(a=['x']), dict(a=['x'], b=[]), dict(a=['x', 'x'], b=['y']), dict(a=['x'], b=[1]), dict(a='x', b='y'),
                dict(a=['x', 'y'], b=['z'])]        # of seven images
@pytest.mark.parametrize('key', ['image_size', 'channels', 'classes', 'names', 'mean', 'std', 'images', 'whole', 'groups'])
def test_a_key_that_is_missing_in_meta(key):
    make()
    meta = json.loads(Path('data/tiny/meta.json').read_text())
    del meta[key]
    Path('data/tiny/meta.json').write_text(json.dumps(meta))
    if key in ('whole', 'groups'):                      # older versions did not write them
        assert not read_image_meta('tiny')[key]
    else:
        with pytest.raises(ValueError, match='is damaged|holds no images'):
            read_image_meta('tiny')



def test_groups():
    """Say how the validation images are grouped, and not the training images; what does not fit them is not written"""
    images, groups = pictures(6), dict(corruption=['fog', 'snow'], severity=['1', '2', '3'])
    splits = {split: [(images, np.arange(6) % 5)] for split in ('train', 'val')}
    write_images('data/tiny', splits, 5, groups=groups)
    assert read('val').groups == groups and read().groups == {} and read_image_meta('tiny')['groups'] == groups
    before = content('data/tiny')
    for wrong in *WRONG_GROUPS[:4], dict(a=['x', 'y'], b=['1', '2']):
        with pytest.raises(ValueError, match='6 validation images are not .*: wants two lists of names'):
            write_images('data/tiny', splits, 5, groups=wrong)
        assert content('data/tiny') == before
    make()
    assert read('val').groups == {}


def test_the_fingerprint_is_that_of_the_content():
    """Prepared again, the same images have the same one; other pixels or classes have another"""
    def fingerprint(change=lambda images, labels: None):
        images, labels = pictures(20), np.arange(20) % 5
        change(images, labels)
        write_images('data/tiny', {'train': [(images, labels)], 'val': [(images[:7], labels[:7])]}, 5)
        return read().fingerprint

    def pixel(images, labels):
        images[19, 0, 0, 0] ^= 1

    def label(images, labels):
        labels[19] = 0

    first = fingerprint()
    assert first and fingerprint() == first and len({first, fingerprint(pixel), fingerprint(label)}) == 3


@pytest.mark.parametrize('spoil, words', [
    (lambda: os.rename('raw/val/bee', 'raw/val/fly'), "'fly' none of the 2"),
    (lambda: [os.remove(path) for path in Path('raw/val').glob('*/*')], 'raw/val holds no image .png'),
    (lambda: [path.write_bytes(b'') for path in Path('raw/val').glob('*/*')], 'none of the images for val can be read'),
    (lambda: os.rename('raw/val', 'raw/other'), 'raw/val no folders folder per class')])
def test_folders_that_are_none(spoil, words):
    folder_of_images(Path('raw'))
    spoil()
    with pytest.raises(ValueError) as error:
        train = im.FolderImages('raw/train')
        im.write_resized('data/new', dict(train=train, val=im.FolderImages('raw/val', train.names)), 8, 1)
    assert all(word in str(error.value) for word in words.split()) and not Path('data/new/meta.json').exists()


def folders(**more):
    train = im.FolderImages('raw/train')
    sources = dict(train=train, val=im.FolderImages('raw/val', train.names))
    im.write_resized('data/new', sources, **{**dict(size=8, processes=1), **more})


def test_a_class_without_images():
    """In training it is an error; there may be none to validate it with"""
    folder_of_images(Path('raw'))
    for split in ('val', 'train'):
        for path in Path('raw', split, 'bee').iterdir():
            path.unlink()
        if split == 'val':
            folders()
            assert read_image_meta('new')['classes'] == 2
    with pytest.raises(ValueError, match='raw/train/bee holds no image.*remove the folder'):
        folders()


def test_a_folder_that_may_not_be_read(monkeypatch):
    """Its images must not be left out in silence"""
    folder_of_images(Path('raw'))
    scandir = os.scandir

    def denied(path):
        if str(path).endswith('bee'):
            raise PermissionError(13, 'Permission denied', str(path))
        return scandir(path)

    monkeypatch.setattr(os, 'scandir', denied)
    with pytest.raises(PermissionError, match='raw/train/bee'):
        im.FolderImages('raw/train', ['ant', 'bee'])


def test_a_fifo_among_the_images(capsys):
    """It is left out, where a reader would wait without end"""
    folder_of_images(Path('raw'))
    os.mkfifo('raw/train/ant/0a.png')
    folders()
    out = capsys.readouterr().out
    assert '1 of the 8 images for train cannot be read and are left out:\n    raw/train/ant/0a.png\n' in out
    assert read_image_meta('new')['images'] == {'train': 7, 'val': 7}


@pytest.mark.parametrize('size, free, words', [
    (100000, None, 'size=100000: wants at most 4096'), (4096, 700e6, 'size=4096: 14 images take 0.7 GB, data/new 0.7 GB free')])
def test_too_large_a_size(size, free, words, monkeypatch):
    """Is known before the disk or the memory is full"""
    folder_of_images(Path('raw'))
    if free:
        monkeypatch.setattr(im.shutil, 'disk_usage', lambda folder: SimpleNamespace(free=free))
    with pytest.raises(ValueError) as error:
        folders(size=size)
    assert all(word in str(error.value) for word in words.split()) and not Path('data/new').exists()


def test_unreadable_images_are_tried_again():
    """They may have been on a disk that was away"""
    folder_of_images(Path('raw'))
    kept = {path: path.read_bytes() for path in Path('raw/val').glob('*/*')}
    for path in kept:
        path.write_bytes(b'')
    with pytest.raises(ValueError, match='none of the images for val can be read'):
        folders()
    for path, data in kept.items():
        path.write_bytes(data)
    folders()
    assert read_image_meta('new')['images'] == {'train': 7, 'val': 7}


@pytest.mark.parametrize('row', ['', '{', '[]', 'null', '\xff', '[' * 10 ** 5, '{"first": 2}',
                                 '{"first": 2, "labels": 3, "aspects": [], "unreadable": []}',
                                 '{"first": 2, "labels": [0], "aspects": [1.0], "unreadable": []}',
                                 '{"first": 2, "labels": [0, null], "aspects": [1.0, 1.0], "unreadable": []}',
                                 '{"first": NaN, "labels": [0, 0], "aspects": [1.0, 1.0], "unreadable": []}'])
def test_damaged_notes(row, monkeypatch):
    """What an interrupted call has noted counts only where it is whole, and for the same images"""
    monkeypatch.setattr(im, 'CHUNK', 2)
    head = dict(count=5)
    first, last = (dict(first=i, labels=[0] * n, aspects=[1.0] * n, unreadable=[]) for i, n in ((0, 2), (4, 1)))
    for rows, wanted in ([head, first, row], [first]), ([row, first], []), ([head, first, first, last], [first, last]):
        lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
        Path('notes').write_text('\n'.join(lines), encoding='latin-1')
        assert im.finished('notes', head, 5) == wanted


def test_a_full_disk_is_no_unreadable_image(monkeypatch):
    folder_of_images(Path('raw'))
    monkeypatch.setattr(im, 'worker', (im.FolderImages('raw/train'), '/dev/full', 8, True), raising=False)
    with pytest.raises(OSError, match='No space left'):
        im.resize_chunk(0)


def test_what_is_resized_is_not_resized_again(monkeypatch, capsys):
    """Stopped in the middle, and even between the last image and its place, the same command ends with the same files"""
    folder_of_images(Path('raw'), per_class=(5, 4))
    Path('raw/train/ant/1.png').write_bytes(b'no picture')
    monkeypatch.setattr(im, 'CHUNK', 2)
    sources = {split: im.FolderImages(f'raw/{split}') for split in ('train', 'val')}
    im.write_resized('data/whole', sources, 8, 1)
    calls, finish, in_order = [], im.finish_images, im.in_order

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
    monkeypatch.setattr(im, 'finish_images', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        im.write_resized('data/new', sources, 8, 1)
    assert calls == [0, 6, 8, 0, 2, 4, 6, 8]            # the unreadable and what was left of training, and all of validation
    monkeypatch.setattr(im, 'finish_images', finish)
    im.write_resized('data/new', sources, 8, 1)
    assert calls[8:] == [0] and content('data/new') == content('data/whole')
    assert Path('data/new/unreadable.txt').read_text() == 'raw/train/ant/1.png\n'


# ----------------------------------------------------------------------------- the data sets

def test_digits():
    pytest.importorskip('sklearn')
    from sklearn.datasets import load_digits
    script = runpy.run_path(ROOT / 'data' / 'digits' / 'prepare.py')
    digits = load_digits()
    script['prepare'](digits.images, digits.target, 'data/tiny')
    train, val = read('train', 8, 1, 10), read('val', 8, 1, 10)
    assert train.windows + val.windows == 1797 and (np.bincount(val.labels) == np.bincount(digits.target) // 5).all()
    first = np.flatnonzero(digits.target == val.labels[0])[4]
    assert np.abs(val.images[0][0] - digits.images[first] * 255 / 16).max() <= 0.5 and train.images[:].max() == 255


def test_corrupted_digits():
    """The validation images, one severity behind the other, each farther from the original than the one before"""
    pytest.importorskip('sklearn')
    for name in ('digits', 'digits_c'):
        Path(f'data/{name}').mkdir()
        script = Path(f'data/{name}/prepare.py')
        script.write_text((ROOT / script).read_text(encoding='utf-8'), encoding='utf-8')
        call(script)
    val, clean, corrupted = (Images(name, split, config(8, 1, 10))
                             for name, split in (('digits', 'val'), ('digits_c', 'train'), ('digits_c', 'val')))
    assert (clean.images[:] == val.images[:]).all() and corrupted.groups['severity'] == ['1', '2', '3', '4', '5']
    assert corrupted.labels.tolist() == [*val.labels] * 5 * len(corrupted.groups['corruption'])
    groups = corrupted.images[:].reshape(-1, 5, *val.images[:].shape).astype(float)
    distances = np.abs(groups - val.images[:]).mean((2, 3, 4, 5))
    assert (np.diff(distances) > 0).all() and (distances > 1).all()


@pytest.mark.long
def test_cifar100_from_a_folder_and_its_corruptions(monkeypatch):
    """Both prepare.py, on a few made-up images in the form in which they are published"""
    datasets = pytest.importorskip('datasets')
    names = [f'c{i}' for i in range(100)]
    features = datasets.Features({'img': datasets.Image(), 'fine_label': datasets.ClassLabel(names=names)})
    images = pictures(6, size=32).transpose(0, 2, 3, 1)
    for split, count in (('train', 6), ('test', 4)):
        rows = dict(img=[Image.fromarray(image) for image in images[:count]], fine_label=[99 - i for i in range(count)])
        Path('hub').mkdir(exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(f'hub/{split}-00000.parquet')
    Path('CIFAR-100-C').mkdir()
    labels = np.array([99, 98, 97, 96] * 5)
    for name, image in (('fog', images[0]), ('snow', images[1])):
        np.save(f'CIFAR-100-C/{name}.npy', np.stack([image] * 20))
    np.save('CIFAR-100-C/labels.npy', labels)
    for name, arguments in (('cifar100', ['--source=hub']), ('cifar100c', ['--files=CIFAR-100-C', '--corruptions=fog,snow'])):
        Path(f'data/{name}').mkdir()
        script = Path(f'data/{name}/prepare.py')
        script.write_text((ROOT / script).read_text(encoding='utf-8'), encoding='utf-8')
        call(script, *arguments)
    train, val = (Images('cifar100', split, config(32, 3, 100)) for split in ('train', 'val'))
    assert train.labels.tolist() == [99, 98, 97, 96, 95, 94] and val.windows == 4
    assert (train.images[:] == images.transpose(0, 3, 1, 2)).all() and read_image_meta('cifar100')['names'][7] == 'c7'
    clean, corrupted = (Images('cifar100c', split, config(32, 3, 100)) for split in ('train', 'val'))
    assert (clean.images[:] == val.images[:]).all() and corrupted.windows == 40
    assert corrupted.labels.tolist() == [*labels, *labels]
    assert (corrupted.images[20:] == images[1].transpose(2, 0, 1)).all()
    assert corrupted.groups == dict(corruption=['fog', 'snow'], severity=['1', '2', '3', '4', '5']) and clean.groups == {}
    np.save('CIFAR-100-C/labels.npy', np.sort(labels))
    says = call('data/cifar100c/prepare.py', '--files=CIFAR-100-C', '--corruptions=fog', code=1)
    assert 'labels.npy: wants the labels of the same images 5 times' in says
    says = call('data/cifar100c/prepare.py', '--files=C', '--corruptions=fog,fog', code=1)
    assert 'corruptions=fog,fog: name each once' in says
