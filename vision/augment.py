"""
Augment training images as timm does for ViTs: crop, flip, RandAugment, mixup, cutmix and label smoothing, a batch at a time, on
its device. All random numbers come from torch's CPU generator, so that a seed gives the same images on any device.
"""
import torch
from torch.nn import functional as F

CUBIC = {'bicubic': 1.0, 'bilinear': 0.0, 'random': 0.5}        # share of the crops resized bicubically; the others bilinearly


class Augment:
    """Map images (B, channels, S, S) of 0 to 255, classes (B,) and, for whole images squeezed to squares (vision/images.py),
    their aspects (B,) to float images (B, channels, size, size) of 0 to 255 and class probabilities (B, classes). `keys` are
    those of vision.train."""

    def __init__(self, keys, size, classes):
        self.size, self.classes, self.smoothing = size, classes, keys['label_smoothing']
        self.crop_scale, self.interpolation, self.steps = keys['crop_scale'], keys['interpolation'], []
        if keys['flip']:
            self.steps.append(lambda x: torch.where(chosen(x, keys['flip']), x.flip(3), x))
        if keys['randaugment']:
            self.steps.append(lambda x: rand_augment(x, keys['randaugment']))
        self.mixes = [(mix, keys[name]) for name, mix in (('mixup', mixup), ('cutmix', cutmix)) if keys[name]]

    @torch.no_grad()
    def __call__(self, images, labels, aspects=None):
        x = self.cut(images / 255, aspects)
        for step in self.steps:
            x = step(x)
        y = F.one_hot(labels, self.classes) * (1 - self.smoothing) + self.smoothing / self.classes
        if self.mixes:                                  # of two, a batch uses one
            mix, alpha = self.mixes[int(torch.randint(len(self.mixes), ()))]
            x, share = mix(x, torch.distributions.Beta(alpha, alpha).sample().item())
            y = share * y + (1 - share) * y.flip(0)
        return 255 * x, y

    def cut(self, x, aspects):
        if self.crop_scale < 1:
            aspects = x.new_ones(len(x)) if aspects is None else aspects
            cubic = torch.rand(len(x)) < CUBIC[self.interpolation]
            return resample(x, random_boxes(aspects, self.crop_scale), self.size, cubic).clamp(0, 1)
        return middle(x, self.size, aspects).clamp(0, 1)


def per_image(values, x):
    """Reshape values (B,) from the CPU to (B, 1, 1, 1) on x's device."""
    return values.to(x.device, non_blocking=True).view(-1, 1, 1, 1)


def chosen(x, probability):
    return per_image(torch.rand(len(x)) < probability, x)


# ----------------------------------------------------------------------------- crops
# A box is the start and length of its rows, and of its columns, as shares of the image's height and width: (B, 2) each. So an
# image and its squeezed copy have the same box. An image's aspect is its width / height.

def middle(x, size, aspects=None):
    """Cut out the middle square, size × size, of images whose shorter side is S pixels; squeezed images have `aspects`."""
    stored = x.size(2)
    if aspects is None:
        at = (stored - size) // 2
        return x[:, :, at:at + size, at:at + size]
    lengths = [size / stored * share.clamp(max=1) for share in (aspects, 1 / aspects)]              # of rows, of columns
    boxes = [torch.stack(((1 - length) / 2, length), 1) for length in lengths]
    return resample(x, boxes, size, torch.ones(len(x), dtype=torch.bool))


def random_boxes(aspects, scale, tries=10):
    """Draw random boxes with `scale` to 1 of the image's area and a width / height from 3/4 to 4/3. Take the first of `tries`
    that fits into the image, or else the largest such box in the middle, as torchvision and timm do."""
    u, places = (torch.rand(len(aspects), *shape).to(aspects, non_blocking=True) for shape in ((tries, 2), (2,)))
    area, ratio = scale + (1 - scale) * u[..., 0], (4 / 3) ** (2 * u[..., 1] - 1)
    stretch = ratio / aspects[:, None]
    sides = torch.stack(((area / stretch).sqrt(), (area * stretch).sqrt()), -1)                     # (B, tries, 2)
    fits = (sides <= 1).all(-1)
    stretch = aspects.clamp(3 / 4, 4 / 3) / aspects
    largest = torch.stack((1 / stretch, stretch), -1).clamp(max=1)
    first = sides.take_along_dim(fits.int().argmax(1)[:, None, None], 1)[:, 0]
    lengths = torch.where(fits.any(1, keepdim=True), first, largest)
    starts = torch.where(fits.any(1, keepdim=True), places, 0.5) * (1 - lengths)
    return [torch.stack((starts[:, i], lengths[:, i]), 1) for i in range(2)]


def resample(x, boxes, size, cubic):
    """Cut out the boxes and resize them to size × size, as PIL does: bicubic where `cubic` (B,) is true, else bilinear."""
    rows, columns = (weights(*box.to(x).T, x.size(2), size, cubic.to(x.device, non_blocking=True)) for box in boxes)
    return rows[:, None] @ x @ columns[:, None].mT


def weights(start, length, stored, size, cubic):
    """Return the weight of each stored pixel in each new one, (B, size, stored). The kernel is as wide as the larger of the two
    pixels, so that shrinking skips no pixel."""
    step = length * stored / size
    at = start[:, None] * stored + (torch.arange(size, device=start.device) + 0.5) * step[:, None]
    distance = torch.arange(stored, device=start.device) + 0.5 - at[..., None]
    d = (distance / step.clamp(min=1).view(-1, 1, 1)).abs()
    bicubic = torch.where(d < 1, (1.5 * d - 2.5) * d * d + 1, ((2.5 - 0.5 * d) * d - 4) * d + 2) * (d < 2)      # Keys 1981
    w = torch.where(cubic.view(-1, 1, 1), bicubic, (1 - d).clamp(min=0))
    return w / w.sum(-1, keepdim=True)


# ----------------------------------------------------------------------------- mixtures with the batch in reverse
# Each takes images and the share of them to keep, and returns the mixed images and the share that was kept.

def mixup(x, share):
    """Zhang et al. 2018"""
    return share * x + (1 - share) * x.flip(0), share


def cutmix(x, share):
    """Paste a box of the other image, with the image's shape and 1 − share of its area, cut off at the edge (Yun et al. 2019)."""
    size = x.size(2)
    side = int(size * (1 - share) ** 0.5)
    top, left = (torch.randint(size, (2,)) - side // 2).tolist()
    rows, columns = (slice(max(0, at), min(size, at + side)) for at in (top, left))
    mixed = x.clone()
    mixed[:, :, rows, columns] = x.flip(0)[:, :, rows, columns]
    return mixed, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / size ** 2


# ----------------------------------------------------------------------------- RandAugment (Cubuk et al. 2020)
# Operations take images of 0 to 1, a strength v of 0 to 1, and s, which is v with a random sign; v and s are (B, 1, 1, 1).

def rand_augment(x, magnitude, operations=2, probability=0.5, deviation=0.5):
    """Apply two random operations to each image, each with this probability and a random strength around magnitude / 10.
    Magnitude 9 is timm's rand-m9-mstd0.5-inc1."""
    x = x.clone()
    for _ in range(operations):
        which = torch.where(torch.rand(len(x)) < probability, torch.randint(len(OPERATIONS), (len(x),)), -1)
        strength = (magnitude + deviation * torch.randn(len(x))).clamp(0, 10) / 10
        signs = 2 * torch.randint(2, (len(x),)) - 1
        for number, operation in enumerate(OPERATIONS.values()):
            of = (which == number).nonzero()[:, 0]      # on the CPU, to avoid waiting for the device
            if len(of):
                v, s = (per_image(values[of], x) for values in (strength, strength * signs))
                of = of.to(x.device, non_blocking=True)
                x[of] = operation(x[of], v, s).clamp(0, 1)
    return x


def autocontrast(x, v, s):
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def equalize(x, v, s):
    from kornia.enhance import equalize
    return equalize(x)


def sharpness(x, v, s):
    from kornia.enhance import sharpness
    return sharpness(x, factor(s)[:, 0, 0, 0])


def posterize(x, v, s):
    step = 2.0 ** (4 + (4 * v).floor())                 # keeps 4 of 8 bits, and fewer if v is larger
    return (255 * x / step + 1e-3).floor() * step / 255


def solarize(x, v, s):
    return torch.where(255 * x < 256 - (256 * v).floor(), x, 1 - x)


def solarize_add(x, v, s):
    return torch.where(255 * x < 128, x + (110 * v).floor() / 255, x)


def factor(s):
    return (1 + 0.9 * s).clamp(min=0.1)


def grey(x):
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device) if x.size(1) == 3 else torch.full((x.size(1),), 1 / x.size(1))
    return (x * weights.to(x.device).view(-1, 1, 1)).sum(1, keepdim=True)


def blend(x, other, s):
    return other + factor(s) * (x - other)


def warp(name, x, values):
    """Apply kornia's rotate, shear or translate; pixels from outside the image are grey."""
    import kornia.geometry.transform as transform
    return getattr(transform, name)(x - 0.5, values) + 0.5


def along(axis, s, scale):
    """Return (B, 2): scale · s on this axis, 0 on the other."""
    s = scale * s[:, 0, 0]
    return torch.cat((s, 0 * s) if axis == 0 else (0 * s, s), dim=1)


OPERATIONS = {
    'autocontrast': autocontrast, 'equalize': equalize, 'invert': lambda x, v, s: 1 - x,
    'posterize': posterize, 'solarize': solarize, 'solarize_add': solarize_add, 'sharpness': sharpness,
    'color': lambda x, v, s: blend(x, grey(x), s),
    'contrast': lambda x, v, s: blend(x, grey(x).mean((2, 3), keepdim=True), s),
    'brightness': lambda x, v, s: blend(x, 0, s),
    'rotate': lambda x, v, s: warp('rotate', x, 30 * s[:, 0, 0, 0]),
    'shear_x': lambda x, v, s: warp('shear', x, along(0, s, 0.3)), 'shear_y': lambda x, v, s: warp('shear', x, along(1, s, 0.3)),
    'translate_x': lambda x, v, s: warp('translate', x, along(0, s, 0.45 * x.size(3))),
    'translate_y': lambda x, v, s: warp('translate', x, along(1, s, 0.45 * x.size(2))),
}
