"""
augment.py against plain lines for one pixel or one image, and against what its operations mean.
"""
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from vision import augment as a

pytest.importorskip('kornia')

NONE = dict(crop_scale=1.0, interpolation='bicubic', flip=0.0, randaugment=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
ALL = dict(crop_scale=0.3, interpolation='random', flip=0.5, randaugment=9.0, mixup=0.8, cutmix=1.0, label_smoothing=0.1)


def images(count=8, size=12, channels=3):
    return torch.randint(256, (count, channels, size, size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def labels(count=8):
    return torch.arange(count) % 5


def augmented(x, seed=0, size=12, **keys):
    torch.manual_seed(seed)
    return a.Augment(NONE | keys, size, 5)(x, labels(len(x)))


def test_none_leaves_images_and_labels():
    """And the label's smoothing is that of cross_entropy"""
    x, y = augmented(images(size=14))
    torch.testing.assert_close(x, images(size=14)[:, :, 1:13, 1:13].float())
    assert torch.equal(y, torch.eye(5)[labels()])
    logits, cross_entropy = torch.randn(8, 5), torch.nn.functional.cross_entropy
    torch.testing.assert_close(cross_entropy(logits, augmented(images(), label_smoothing=0.2)[1]),
                               cross_entropy(logits, labels(), label_smoothing=0.2))


def test_the_seed_decides():
    """… all of it, and every call draws anew"""
    (x, y), (again, targets), (other, _) = (augmented(images(), seed, **ALL) for seed in (1, 1, 2))
    assert torch.equal(x, again) and torch.equal(y, targets) and not torch.equal(x, other)
    assert x.shape == (8, 3, 12, 12) and 0 <= x.min() and x.max() <= 255 and x.isfinite().all()
    torch.testing.assert_close(y.sum(1), torch.ones(8))


def test_flip():
    x, whole = augmented(images(200), flip=0.25)[0], images(200).float()
    same, mirrored = ((x - other).abs().amax((1, 2, 3)) < 1e-3 for other in (whole, whole.flip(3)))
    assert (same ^ mirrored).all() and 22 <= mirrored.sum() <= 78           # four standard errors


def smooth_picture(width, height):
    """Waves of some tens of pixels, in grey from 0 to 1, float32."""
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    return (0.5 + 0.25 * np.sin(x / 11 + 1) * np.cos(y / 9) + 0.2 * np.sin((x + 2 * y) / 23)).astype('f')


def pil_crop(picture, box, size, kernel):
    return np.asarray(Image.fromarray(picture).resize((size, size), kernel, box=box))


@pytest.mark.parametrize('stored, size', [(24, 40), (100, 16)])
def test_crops_are_resized_as_pil_does(stored, size):
    """From anywhere, larger and smaller, by both kernels, in float64"""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(6, 2, stored, stored, generator=rng, dtype=torch.float64)
    lengths = [0.2 + 0.8 * torch.rand(6, generator=rng, dtype=torch.float64) for _ in range(2)]
    boxes = [torch.stack((torch.rand(6, generator=rng) * (1 - length), length), 1) for length in lengths]
    cubic = torch.tensor([True, False] * 3)
    y = a.resample(x, boxes, size, cubic)
    for i in range(6):
        (top, height), (left, width) = (stored * box[i] for box in boxes)
        box = [min(stored, value.item()) for value in (left, top, left + width, top + height)]
        kernel = Image.Resampling.BICUBIC if cubic[i] else Image.Resampling.BILINEAR
        for channel, found in zip(x[i], y[i]):
            np.testing.assert_allclose(found, pil_crop(channel.numpy().astype('f'), box, size, kernel), atol=1e-5)


@pytest.mark.parametrize('width, height', [(300, 200), (150, 500)])
def test_a_crop_of_a_squeezed_image_is_one_of_the_image(width, height):
    """… cut and resized once from its own pixels, as torchvision does; so is the middle square"""
    picture = smooth_picture(width, height)
    squeezed = np.array(Image.fromarray(picture).resize((128, 128), Image.Resampling.BICUBIC))
    x = torch.from_numpy(squeezed).double().expand(8, 1, 128, 128)
    aspects = torch.full((8,), width / height, dtype=torch.float64)
    torch.manual_seed(1)
    boxes = a.random_boxes(aspects, 0.3)
    cubic = torch.tensor([True, False] * 4)
    side = min(width, height) * 96 / 128
    square = [torch.tensor([[0.5 - side / n / 2, side / n]] * 8) for n in (height, width)]
    for boxes, found in (boxes, a.resample(x, boxes, 96, cubic)), (square, a.middle(x, 96, aspects)):
        for i in range(8):
            (top, rows), (left, columns) = ((n * box[i]).tolist() for n, box in zip((height, width), boxes))
            assert 3 / 4 - 1e-5 <= columns / rows <= 4 / 3 + 1e-5 and rows * columns >= 0.1 * width * height
            kernel = Image.Resampling.BICUBIC if cubic[i] or boxes is square else Image.Resampling.BILINEAR
            box = (left, top, min(width, left + columns), min(height, top + rows))
            assert np.abs(found[i, 0].numpy() - pil_crop(picture, box, 96, kernel))[2:-2, 2:-2].max() < 0.01


def torchvisions_box(width, height, scale, rng):
    """RandomResizedCrop.get_params in plain lines → top, height, left, width as shares"""
    for _ in range(10):
        area, ratio = width * height * rng.uniform(scale, 1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            return rng.integers(0, height - h + 1) / height, h / height, rng.integers(0, width - w + 1) / width, w / width
    ratio = min(max(width / height, 3 / 4), 4 / 3)
    w, h = min(width, height * ratio), min(height, width / ratio)
    return (1 - h / height) / 2, h / height, (1 - w / width) / 2, w / width


@pytest.mark.parametrize('width, height', [(2000, 1500), (1000, 8000)])
def test_boxes_are_drawn_as_torchvision_does(width, height):
    """Their starts, lengths, areas and ratios have the same means, for images of any shape"""
    rng, count = np.random.default_rng(0), 5000
    wanted = np.array([torchvisions_box(width, height, 0.08, rng) for _ in range(count)])
    torch.manual_seed(0)
    found = torch.cat(a.random_boxes(torch.full((count,), width / height), 0.08), 1).numpy()
    assert (found >= 0).all() and (found[:, [0, 2]] + found[:, [1, 3]] <= 1 + 1e-6).all()
    for of in (lambda x: x, lambda x: x[:, 1:2] * x[:, 3:], lambda x: x[:, 3:] / x[:, 1:2]):
        spread = of(wanted).std(0) / math.sqrt(count)
        assert (np.abs(of(wanted).mean(0) - of(found).mean(0)) < 6 * spread + 1e-3).all()


def test_random_interpolation_is_one_of_the_two():
    """… for each image, each about as often"""
    x = images(200, 16)
    kinds = {kind: augmented(x, 5, crop_scale=0.3, interpolation=kind)[0] for kind in ('bicubic', 'bilinear', 'random')}
    same = {kind: (kinds['random'] - kinds[kind]).abs().amax((1, 2, 3)) < 1e-4 for kind in ('bicubic', 'bilinear')}
    assert (same['bicubic'] ^ same['bilinear']).all() and 70 <= same['bicubic'].sum() <= 130


def test_mixup_and_cutmix():
    x, whole = images(), images().float()
    for seed in range(6):
        mixed, y = augmented(x, seed, mixup=0.8)
        share = y[0, 0].item()
        torch.testing.assert_close(mixed, share * whole + (1 - share) * whole.flip(0), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(y, share * torch.eye(5)[labels()] + (1 - share) * torch.eye(5)[labels()].flip(0))
        mixed, y = augmented(x, seed, cutmix=1.0)
        of_other = ((mixed - whole.flip(0)).abs() < 1e-3).all(1) & ((mixed - whole).abs() > 1e-3).any(1)
        share = y[0, 0].item()
        torch.testing.assert_close((~of_other).float().mean((1, 2)), torch.full((8,), share), atol=0.02, rtol=0)
        rows, columns = of_other.any(2), of_other.any(1)
        assert torch.equal(of_other, (rows[:, :, None] & columns[:, None]) & of_other)
        kept = ((mixed - whole).abs() < 1e-3).all(1)
        assert (kept | of_other).all()                                      # every pixel is of one or of the other
    either = [augmented(x, seed, mixup=0.8, cutmix=1.0)[0] for seed in range(40)]
    boxes = [torch.minimum((mixed - whole).abs(), (mixed - whole.flip(0)).abs()).max().item() < 1e-3 for mixed in either]
    assert 8 <= sum(boxes) <= 32


# ----------------------------------------------------------------------------- RandAugment

def pil(operation, x):
    pictures = [operation(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in x]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2).float()


PIL = {     # what timm does at magnitude 9, and the sign +; grey levels that they may differ by, through PIL's roundings
    'autocontrast': (ImageOps.autocontrast, 1.01), 'equalize': (ImageOps.equalize, 6), 'invert': (ImageOps.invert, 0.01),
    'posterize': (lambda image: ImageOps.posterize(image, 1), 0.01),
    'solarize': (lambda image: ImageOps.solarize(image, 26), 0.01),
    'solarize_add': (lambda image: image.point([min(255, i + 99) if i < 128 else i for i in range(256)] * 3), 0.01),
    'color': (lambda image: ImageEnhance.Color(image).enhance(1.81), 1.5),
    'contrast': (lambda image: ImageEnhance.Contrast(image).enhance(1.81), 1.5),
    'brightness': (lambda image: ImageEnhance.Brightness(image).enhance(1.81), 1.01),
    'sharpness': (lambda image: ImageEnhance.Sharpness(image).enhance(1.81), 1.5)}


@pytest.mark.parametrize('name', PIL)
def test_colours_are_those_of_pil(name):
    x, v = images(size=32), torch.full((8, 1, 1, 1), 0.9)
    x[:, :, 0, 0], x[:, :, 0, 1] = 0, 255
    operation, tolerance = PIL[name]
    found = 255 * a.OPERATIONS[name](x / 255, v, v).clamp(0, 1)
    assert (found - pil(operation, x))[:, :, 1:-1, 1:-1].abs().max() <= tolerance


@pytest.mark.parametrize('name, where', [
    ('rotate', lambda r, c: (math.cos(math.radians(27)) * r - math.sin(math.radians(27)) * c,
                             math.sin(math.radians(27)) * r + math.cos(math.radians(27)) * c)),
    ('shear_x', lambda r, c: (r, c + 0.27 * (r + 16))), ('shear_y', lambda r, c: (r + 0.27 * (c + 16), c)),
    ('translate_x', lambda r, c: (r, c + 0.405 * 33)), ('translate_y', lambda r, c: (r + 0.405 * 33, c))])
def test_where_a_spot_goes(name, where):
    """A bright spot beside the middle lands where the matrix says, for one of the signs, shears being from the corner as PIL's;
    what comes in is grey"""
    x = torch.full((2, 1, 33, 33), 0.25)
    x[:, :, 13:16, 17:20] = 1.0                         # around 2 rows above the middle and 2 columns to its right
    s = torch.tensor([0.9, -0.9]).view(2, 1, 1, 1)
    y = a.OPERATIONS[name](x, s.abs(), s)
    found = []
    for image in y[:, 0]:
        spot = (image - 0.5).clamp(min=0)
        grid = torch.arange(33.0) - 16
        found.append(((spot.sum(1) @ grid / spot.sum()).item(), (spot.sum(0) @ grid / spot.sum()).item()))
    near = [min(math.dist(where(-2, 2), spot) for spot in found), max(math.dist(where(-2, 2), spot) for spot in found)]
    assert near[0] < 0.25 < near[1] and (y - 0.5).abs().min() < 1e-5


def test_each_image_draws_its_own():
    """Two operations of 15, each with probability ½: about a quarter of the images stay as they were"""
    x = images(400, 6) / 255
    x[:, :, 0, 0], x[:, :, 0, 1] = 0.1, 0.9             # for autocontrast to change
    kept = x.clone()
    torch.manual_seed(0)
    same = ((kept - a.rand_augment(x, 9.0)).abs() < 1e-6).flatten(1).all(1)
    assert 60 <= same.sum() <= 140 and torch.equal(x, kept)
