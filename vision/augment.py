"""
Augment training images as timm does for ViTs: each one with Pillow when it is read, and a batch by mixtures on its device.
"""
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.nn import functional as F

BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
INTERPOLATIONS = {'bicubic': [BICUBIC], 'bilinear': [BILINEAR], 'random': [BICUBIC, BILINEAR]}


def augment(image, size, keys, rng):
    """Return a Pillow image of size × size: cropped, flipped and distorted, as keys of vision.train and a NumPy generator say."""
    if keys['crop_scale'] < 1:
        image = random_crop(image, size, keys['crop_scale'], INTERPOLATIONS[keys['interpolation']], rng)
    else:
        image = middle(image, size)
    if keys['flip'] and rng.random() < keys['flip']:
        image = ImageOps.mirror(image)
    return rand_augment(image, keys['randaugment'], rng) if keys['randaugment'] else image


# ----------------------------------------------------------------------------- crops

def middle(image, size):
    """Return the middle square, resized to size × size. Of a larger image, leave out an eighth of the shorter side, as timm does
    to evaluate."""
    side = min(image.size) * (7 / 8 if min(image.size) > size else 1)
    left, top = ((length - side) / 2 for length in image.size)
    return image.resize((size, size), BICUBIC, box=(left, top, left + side, top + side))


def random_crop(image, size, scale, filters, rng):
    """Resize a random box with `scale` to 1 of the image's area and a width / height from 3/4 to 4/3. Take the first of ten that
    fits into the image, or else the largest such box in the middle."""
    width, height = image.size
    for _ in range(10):
        area, ratio = width * height * rng.uniform(scale, 1), (4 / 3) ** rng.uniform(-1, 1)
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.integers(width - w + 1), rng.integers(height - h + 1)
            break
    else:
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    return image.resize((size, size), filters[rng.integers(len(filters))], box=(left, top, left + w, top + h))


# ----------------------------------------------------------------------------- RandAugment (Cubuk et al. 2020)

def grey(image):
    return (128,) * len(image.getbands())


def affine(matrix):         # (a, b, c, d, e, f): pixel (x, y) of the result is (ax + by + c, dx + ey + f) of the image
    return lambda x, v, s: x.transform(x.size, Image.Transform.AFFINE, matrix(x, s), BICUBIC, fillcolor=grey(x))


def enhance(kind):
    return lambda x, v, s: kind(x).enhance(1 + 0.9 * s)


OPERATIONS = {          # functions of a Pillow image x, a strength v from 0 to 1, and s, which is v with a random sign
    'autocontrast': lambda x, v, s: ImageOps.autocontrast(x),
    'equalize': lambda x, v, s: ImageOps.equalize(x),
    'invert': lambda x, v, s: ImageOps.invert(x),
    'posterize': lambda x, v, s: x.point(lambda level: level - level % 2 ** (4 + int(4 * v))),
    'solarize': lambda x, v, s: ImageOps.solarize(x, 256 - int(256 * v)),
    'solarize_add': lambda x, v, s: x.point(lambda level: level if level >= 128 else level + int(110 * v)),
    'color': enhance(ImageEnhance.Color),
    'contrast': enhance(ImageEnhance.Contrast),
    'brightness': enhance(ImageEnhance.Brightness),
    'sharpness': enhance(ImageEnhance.Sharpness),
    'rotate': lambda x, v, s: x.rotate(30 * s, BICUBIC, fillcolor=grey(x)),
    'shear_x': affine(lambda x, s: (1, 0.3 * s, 0, 0, 1, 0)),
    'shear_y': affine(lambda x, s: (1, 0, 0, 0.3 * s, 1, 0)),
    'translate_x': affine(lambda x, s: (1, 0, 0.45 * s * x.width, 0, 1, 0)),
    'translate_y': affine(lambda x, s: (1, 0, 0, 0, 1, 0.45 * s * x.height)),
}


def rand_augment(image, magnitude, rng):
    """Apply two random operations, each with probability 1/2 and a random strength around magnitude / 10. Magnitude 9 is timm's
    rand-m9-mstd0.5-inc1."""
    for name in rng.choice(list(OPERATIONS), 2):
        if rng.random() < 0.5:
            v = min(max(rng.normal(magnitude, 0.5), 0), 10) / 10
            image = OPERATIONS[name](image, v, v * rng.choice([-1, 1]))
    return image


# ----------------------------------------------------------------------------- mixtures with the batch in reverse

def mixup(x, share):
    """Return share · x + (1 − share) · the other image, and the share (Zhang et al. 2018)."""
    return share * x + (1 - share) * x.flip(0), share


def cutmix(x, share):
    """Paste a box of the other image, with the image's shape and 1 − share of its area, cut off at the edge. Return also the
    share that was kept (Yun et al. 2019)."""
    size = x.size(2)
    side = int(size * (1 - share) ** 0.5)
    top, left = (torch.randint(size, (2,)) - side // 2).tolist()
    rows, columns = (slice(max(0, at), min(size, at + side)) for at in (top, left))
    mixed = x.clone()
    mixed[:, :, rows, columns] = x.flip(0)[:, :, rows, columns]
    return mixed, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / size ** 2


class Mix:
    """Map images (B, channels, S, S) of 0 to 255 and classes (B,) to float images and class probabilities (B, classes). If mixup
    and cutmix are both on, a batch uses one of them. Random numbers come from torch's CPU generator."""

    def __init__(self, keys, classes):
        self.classes, self.smoothing = classes, keys['label_smoothing']
        self.mixtures = [(mix, keys[name]) for name, mix in (('mixup', mixup), ('cutmix', cutmix)) if keys[name]]

    def __call__(self, x, labels):
        x, y = x.float(), F.one_hot(labels, self.classes) * (1 - self.smoothing) + self.smoothing / self.classes
        if self.mixtures:
            mix, alpha = self.mixtures[int(torch.randint(len(self.mixtures), ()))]
            x, share = mix(x, torch.distributions.Beta(alpha, alpha).sample().item())
            y = share * y + (1 - share) * y.flip(0)
        return x, y
