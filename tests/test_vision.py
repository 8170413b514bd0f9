"""vision/data.py and vision/augment.py against plain lines, and the commands of vision/. tests/test_vit.py has the model."""
import gzip
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ROOT, call, evaluations, flags, interrupted, rows, train
from PIL import Image, ImageOps

from data.write import SPLITS
from engine.checkpoint import load_run
from lab.runs import load
from vision import augment as a
from vision.data import Images, Reader, Shuffled
from vision.evaluate import CIFAR100_C
from vision.vit import ViT

NONE = dict(crop_scale=1.0, interpolation='bicubic', flip=0.0, randaugment=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0,
            aug_repeats=1, seed=1, data_seed=2)
ALL = dict(crop_scale=0.5, interpolation='random', flip=0.5, randaugment=9.0, mixup=0.8, cutmix=1.0, label_smoothing=0.1,
           aug_repeats=3)
TINY = dict(dataset='tiny', image_size=6, patch_size=3, channels=3, classes=4, n_layer=2, n_head=2, n_embd=16, batch_size=16,
            drop_path=0.2, dropout=0.1, max_iters=8, gradient_accumulation_steps=2, eval_interval=4, eval_iters=2,
            warmup_iters=2, learning_rate=1e-2, device='cpu', dtype='float32', compile=False, unit_weights=True, seed=1)


def picture(width=16, height=12):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def config(size=6, channels=3, classes=4):
    return SimpleNamespace(image_size=size, channels=channels, classes=classes)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder with data/tiny, images of all shapes in whose four classes another colour is bright, or none; and a run on it"""
    folder, rng = tmp_path_factory.mktemp('vision'), np.random.default_rng(0)
    for split, count, label in [('train', 25, label) for label in range(4)] + [('val', 7, label) for label in range(4)]:
        at = folder / 'data' / 'tiny' / split / f'class-{label}'
        at.mkdir(parents=True)
        for i in range(count):
            image = rng.integers(0, 150, (*rng.integers(6, 20, 2), 3), np.uint8)
            image[..., label:label + 1] += 100
            Image.fromarray(image).save(at / f'{i}.png')
    train(folder, *flags(**TINY | ALL, out_dir='whole'), script='vision.train')
    return folder


def test_digits_are_those_of_the_file():
    """Every fifth image of each digit validates, and all others train; the model starts with the moments of the latter"""
    table = np.loadtxt(gzip.open(ROOT / 'data' / 'digits' / 'digits.csv.gz'), delimiter=',')
    train, val = (Images('digits', split, config(8, 1, 10)) for split in SPLITS)
    for digit in range(10):
        pixels = table[table[:, -1] == digit][:, :-1] * (255 / 16)
        for images, wanted in ((val, pixels[4::5]), (train, np.delete(pixels, np.s_[4::5], axis=0))):
            np.testing.assert_allclose(images.read(np.flatnonzero(images.labels == digit))[0].flatten(1), wanted, atol=0.5)
    x = train.read(range(train.count))[0] / 255
    assert [*train.mean, *train.std] == pytest.approx([x.mean().item(), x.std().item()], abs=1e-4)


def test_a_folder(tmp_path):
    """Photographs are upright as their EXIF says; a damaged file is named"""
    exif = Image.Exif()
    exif[0x112] = 6                                     # stored on its side
    for split in SPLITS:
        (tmp_path / split / 'a').mkdir(parents=True)
        picture().save(tmp_path / split / 'a' / 'x.jpg', exif=exif)
    images = Images(str(tmp_path), 'val', config(classes=1))
    assert images.image(0).size == (12, 16) and images.labels.tolist() == [0]
    (tmp_path / 'val' / 'a' / 'x.jpg').write_bytes(b'no image')
    for reader in Reader(images, 0), Reader(images, 1):
        with pytest.raises(ValueError, match='x.jpg cannot be read, remove it: ') as error:
            next(reader.batches([[0]]))
        assert '\n' not in str(error.value)
        reader.close()


def test_a_data_set_of_the_hub(monkeypatch):
    """CIFAR-100 has two columns of classes, and no split named validation"""
    datasets = pytest.importorskip('datasets')
    label, pictures = datasets.ClassLabel(names=['a', 'b', 'c']), [picture(6, 6)] * 3
    features = datasets.Features(img=datasets.Image(), coarse_label=label, fine_label=label)
    table = datasets.Dataset.from_dict(dict(img=pictures, coarse_label=[0, 0, 1], fine_label=[2, 0, 1]), features=features)
    monkeypatch.setattr(datasets, 'load_dataset', dict({'uoft-cs/cifar100': dict(train=table, test=table)}).get)
    x, y = Images('cifar100', 'val', config()).read(range(3))
    assert y.tolist() == [2, 0, 1] and (x == torch.from_numpy(np.array(picture(6, 6))).permute(2, 0, 1)).all()


@pytest.mark.parametrize('wrong, says', [
    ('dataset=tinny', "='tinny': choose digits"), ('classes=3', 'set --classes=4 or more'), ('parallel=fsdp', 'choose one of')])
def test_wrong_keys(wrong, says, place):
    err = call('vision.train', *flags(**TINY, out_dir='wrong'), f'--{wrong}', cwd=place, code=1)
    assert err.startswith('error: ') and says in err and err.count('\n') == 1 and not (place / 'wrong').exists()


def test_flips_the_middle_square_and_the_share_of_operations():
    same = sum(a.rand_augment(picture(), 9.0, np.random.default_rng(seed)) == picture() for seed in range(400))
    assert 65 <= same <= 150                            # two with probability 1/2; some leave noise nearly as it is
    assert a.augment(picture(6, 6), 6, NONE | dict(flip=1.0), np.random.default_rng(0)) == ImageOps.mirror(picture(6, 6))
    np.testing.assert_array_equal(a.augment(picture(20, 12), 12, NONE, None), np.asarray(picture(20, 12))[:, 4:16])
    middle = np.asarray(picture(80, 64))[4:60, 12:68]   # of a larger image, seven eighths of its shorter side
    np.testing.assert_array_equal(a.augment(picture(80, 64), 56, NONE, None), middle)


def test_crops():
    """Areas are drawn evenly from scale to 1, shapes from 3/4 to 4/3, until one fits, and all edges are reached"""
    rng, boxes = np.random.default_rng(0), []
    image = SimpleNamespace(size=(400, 400), resize=lambda size, filter, box: boxes.append(box))
    for _ in range(1000):
        a.random_crop(image, 8, 0.25, [0], rng)
    left, top, right, bottom = np.array(boxes).T / 400
    area, ratio = (right - left) * (bottom - top), (right - left) / (bottom - top)
    assert left.min() == top.min() == 0 and right.max() == bottom.max() == 1
    assert 0.24 < area.min() < 0.26 and area.mean() == pytest.approx(0.58, abs=0.03) and 0.74 < ratio.min() < ratio.max() < 1.35


@pytest.mark.parametrize('name, levels', [              # of x at strength 0.9
    ('posterize', lambda x: x // 128 * 128), ('solarize', lambda x: np.where(x < 26, x, 255 - x)),
    ('solarize_add', lambda x: np.where(x < 128, x + 99, x)), ('brightness', lambda x: (1.81 * x).clip(0, 255))])
def test_a_colour_operation(name, levels):
    np.testing.assert_allclose(a.OPERATIONS[name](picture(), 0.9, 0.9), levels(np.asarray(picture(), float)), atol=1.5)
    assert all(operation(picture().convert('L'), 0.9, -0.9).mode == 'L' for operation in a.OPERATIONS.values())


@pytest.mark.parametrize('name, where', [
    ('rotate', lambda x, y: (0.891 * x + 0.454 * y, 0.891 * y - 0.454 * x)),            # by 27°
    ('shear_x', lambda x, y: (x - 0.27 * (y + 16.5), y)), ('shear_y', lambda x, y: (x, y - 0.27 * (x + 16.5))),
    ('translate_x', lambda x, y: (x - 0.405 * 33, y)), ('translate_y', lambda x, y: (x, y - 0.405 * 33))])
def test_where_a_spot_goes(name, where):
    """From 6 columns to the right of the middle and 2 rows below it, at strength 0.9; what comes in is grey"""
    values = np.full((33, 33), 64, np.uint8)
    values[17:20, 21:24] = 255
    found = np.asarray(a.OPERATIONS[name](Image.fromarray(values), 0.9, 0.9), float)
    spot, grid = (found - 140).clip(0), np.arange(33) - 16
    assert (spot.sum(0) @ grid / spot.sum(), spot.sum(1) @ grid / spot.sum()) == pytest.approx(where(6, 2), abs=0.3)
    assert (found == 128).any()


@pytest.mark.parametrize('name', ['mixup', 'cutmix'])
def test_mixtures(name):
    """Each image and its class probabilities have the same share of the other; label smoothing is that of cross_entropy"""
    x, mix, shares = torch.arange(2).view(2, 1, 1, 1).expand(2, 1, 20, 20), a.Mix(NONE | {name: 1.0}, 2), []
    for seed in range(30):
        torch.manual_seed(seed)
        mixed, y = mix(x, torch.tensor([0, 1]))
        torch.testing.assert_close(mixed.mean((1, 2, 3)), y[:, 1])
        shares.append(y[0, 1].item())
    assert 0 <= min(shares) < 0.2 and 0.8 < max(shares) <= 1
    logits, y, loss = torch.randn(8, 5), torch.arange(8) % 5, torch.nn.functional.cross_entropy
    smooth = a.Mix(NONE | dict(label_smoothing=0.2), 5)(torch.zeros(8, 1, 2, 2), y)[1]
    torch.testing.assert_close(loss(logits, smooth), loss(logits, y, label_smoothing=0.2))


def test_the_order_of_training(place, monkeypatch):
    """An epoch has each image once, aug_repeats times in a row, each time another view of it"""
    monkeypatch.chdir(place)
    images = Images('tiny', 'train', config())
    images.labels = torch.arange(100)
    views, numbers = zip(*map(Shuffled(images, NONE | ALL | dict(randaugment=0.0)).__getitem__, range(600)))
    for epoch in numbers[:300], numbers[300:]:
        assert epoch[::3] == epoch[1::3] == epoch[2::3] and sorted(epoch[::3]) == [*range(100)]
    assert numbers[:300] != numbers[300:] and sum(torch.equal(x, y) for x, y in zip(views[::3], views[1::3])) < 20


def forks_while_alone():
    """Fork only while this process has one thread: a lock that another held would stay locked in the new process"""
    fork = os.fork

    def alone():
        assert len(os.listdir('/proc/self/task')) == 1, 'forked beside other threads'
        return fork()

    os.fork = alone


def test_training_is_exact(place):
    """With all augmentation, dropout and stochastic depth: stopped and resumed, with other workers, on two ranks"""
    train(place, *flags(**TINY | ALL, out_dir='resumed', workers=2), code=143, through=(interrupted, 5), script='vision.train')
    train(place, 'resumed/config.json', '--init_from=resume', script='vision.train')
    assert rows(place / 'resumed') == rows(place / 'whole')
    train(place, *flags(**TINY | ALL, out_dir='ranks', workers=1), ranks=2, through=(forks_while_alone,),
          script='vision.train')
    assert rows(place / 'ranks') == rows(place / 'whole')


def test_scores_are_those_of_plain_lines(place, monkeypatch):
    """Of the validation images, and of CIFAR-100-C, whose files have five severities behind one another; a mean over corruptions
    has its error over images. The loop calls after_step, by which the rows of W_q have length 1, also before it evaluates"""
    monkeypatch.chdir(place)
    rng, model = np.random.default_rng(0), load_run('whole/ckpt.pt', Model=ViT)[0].eval()
    torch.testing.assert_close(model.h[0].attn.wq.weight.norm(dim=1), torch.ones(16))
    images = Images('tiny', 'val', model.config)
    x, y = images.read(range(28))
    torch.manual_seed(1)
    fresh = ViT(model.config, images.mean, images.std).eval()
    fresh.after_step()
    labels, images = rng.integers(0, 4, 10), rng.integers(0, 256, (15, 50, 6, 6, 3), np.uint8)
    with torch.no_grad():
        logits, first = model(x)[0], torch.nn.functional.cross_entropy(fresh(x)[0], y)
        classes = model(torch.from_numpy(images).flatten(0, 1).permute(0, 3, 1, 2))[0].argmax(1).view(15, 5, 10).numpy()
    values = [-logits.log_softmax(1)[range(28), y], (logits.argmax(1) == y).float(), torch.ones(28)]
    start, *_, last = evaluations('whole')
    found = [start['val_loss'], *(last[key] for key in ('val_loss', 'val_top1', 'val_top5'))]
    assert found == pytest.approx([first.item(), *(v.mean().item() for v in values)])
    evaluate = 'vision.evaluate --out_dir=whole --checkpoint=ckpt.pt --device=cpu --dtype=float32'.split()
    cells = [f'{v.mean():.4f} ± {v.std() / 28 ** 0.5:.4f}' for v in values]
    assert call(*evaluate, '--batch_size=5', '--workers=1').endswith(f'| whole | {" | ".join(cells)} |\n')
    (place / 'C').mkdir()
    for name, content in zip(['labels', *CIFAR100_C], [np.tile(labels, 5), *images]):
        np.save(f'C/{name}.npy', content)
    right = (classes == labels).astype(float)
    table = call(*evaluate, '--batch_size=7', '--corrupted=C').splitlines()
    assert table[-7].startswith(f'| fog | {" | ".join(f"{value:.4f}" for value in right[9].mean(1))} | ')
    assert table[-1].endswith(f'| {right.mean():.4f} ± {right.mean((0, 1)).std(ddof=1) / 10 ** 0.5:.4f} |')
    np.save(f'C/{CIFAR100_C[0]}.npy', images[0][:, :4, :4])
    assert 'images of 4 pixels a side: must be 6' in call(*evaluate, '--corrupted=C', code=1)


def test_lab_measure_takes_a_vit(place, monkeypatch):
    """A run, whose checkpoint says that it holds a ViT, and an untrained model, with the keys of vision.train"""
    monkeypatch.chdir(place)
    assert '(Frobenius norm) of the matrices' in call('lab.measure', '--out_dir=whole', '--what=parameters', '--batches=2')
    found = json.loads((place / 'whole' / 'measure.json').read_text())
    assert found['iter'] == 8 and found['images'] == 2 * 16 and found['parameters']
    keys = flags(**TINY, script='vision.train', init_only=True, what='hidden', out_dir='new')
    assert 'new-init/measure.json' in call('lab.measure', *keys)
    assert 'is of a run of vision.train: choose a run of train.py' in call(
        'lab.measure', '--out_dir=whole', '--script=train.py', code=1)
    assert 'choose one of train.py, vision.train' in call('lab.measure', '--script=lab.train', code=1)
    assert type(load('whole')[1]) is ViT
