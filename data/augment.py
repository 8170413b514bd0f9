"""
What training does to images, on batches and on their device, as timm does it for ViTs: crop, flip, RandAugment, mixup, cutmix and
label smoothing. All is drawn from torch's generator of the CPU, so that a seed gives the same images on any device.
"""
import torch
from torch.nn import functional as F


class Augment:
    """Takes images (B, channels, S, S) of 0 to 255 and classes (B,) → float images (B, channels, size, size) of 0 to 255 and
    probabilities of the classes (B, classes). `keys` are those of train.py."""

    def __init__(self, keys, size, classes):
        self.classes, self.smoothing = classes, keys['label_smoothing']
        self.steps = [lambda x: middle(x, size)]
        if keys['crop_scale'] < 1:
            from kornia.augmentation import RandomResizedCrop  # here, for it is slow to import
            crop = RandomResizedCrop((size, size), (keys['crop_scale'], 1.0), resample='bicubic', cropping_mode='resample')
            self.steps = [crop, lambda x: x.clamp(0, 1)]
        if keys['flip']:
            self.steps.append(lambda x: torch.where(chosen(x, keys['flip']), x.flip(3), x))
        if keys['randaugment']:
            self.steps.append(lambda x: rand_augment(x, keys['randaugment']))
        self.mixes = [(mix, keys[name]) for name, mix in (('mixup', mixup), ('cutmix', cutmix)) if keys[name]]

    @torch.no_grad()
    def __call__(self, images, labels):
        x = images / 255
        for step in self.steps:
            x = step(x)
        y = F.one_hot(labels, self.classes) * (1 - self.smoothing) + self.smoothing / self.classes
        if self.mixes:                                  # of both, one for each batch
            mix, alpha = self.mixes[int(torch.randint(len(self.mixes), ()))]
            x, share = mix(x, torch.distributions.Beta(alpha, alpha).sample().item())
            y = share * y + (1 - share) * y.flip(0)
        return 255 * x, y


def middle(x, size):
    at = (x.size(2) - size) // 2
    return x[:, :, at:at + size, at:at + size]


def per_image(values, x):
    """(B,) from the CPU → (B, 1, 1, 1) beside x"""
    return values.to(x.device, non_blocking=True).view(-1, 1, 1, 1)


def chosen(x, probability):
    return per_image(torch.rand(len(x)) < probability, x)


# ----------------------------------------------------------------------------- mixtures with the batch in reverse
# each takes images and the share that they keep → the mixed ones, and the share that they have kept

def mixup(x, share):
    """Zhang et al. 2018"""
    return share * x + (1 - share) * x.flip(0), share


def cutmix(x, share):
    """A box of the other image, of its shape and 1 − share of its area, less where it reaches over the edge (Yun et al. 2019)."""
    size = x.size(2)
    side = int(size * (1 - share) ** 0.5)
    top, left = (torch.randint(size, (2,)) - side // 2).tolist()
    rows, columns = (slice(max(0, at), min(size, at + side)) for at in (top, left))
    mixed = x.clone()
    mixed[:, :, rows, columns] = x.flip(0)[:, :, rows, columns]
    return mixed, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / size ** 2


# ----------------------------------------------------------------------------- RandAugment (Cubuk et al. 2020)
# Operations take images of 0 to 1 and v, from 0 to 1, how strong, (B, 1, 1, 1) each; s is v with a random sign.

def rand_augment(x, magnitude, operations=2, probability=0.5, deviation=0.5):
    """timm's rand-m9-mstd0.5-inc1 for magnitude 9: each image takes two operations, each with this probability and with a
    strength of its own around magnitude / 10."""
    x = x.clone()
    for _ in range(operations):
        which = torch.where(torch.rand(len(x)) < probability, torch.randint(len(OPERATIONS), (len(x),)), -1)
        strength = (magnitude + deviation * torch.randn(len(x))).clamp(0, 10) / 10
        signs = 2 * torch.randint(2, (len(x),)) - 1
        for number, operation in enumerate(OPERATIONS.values()):
            of = (which == number).nonzero()[:, 0]      # on the CPU, which then need not wait for the device
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
    step = 2.0 ** (4 + (4 * v).floor())                 # 4 bits stay of 8, and fewer where it is stronger
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
    """kornia's rotate, shear or translate; what comes from outside is grey."""
    import kornia.geometry.transform as transform
    return getattr(transform, name)(x - 0.5, values) + 0.5


def along(axis, s, scale):
    """(B, 2): scale · s on this axis, 0 on the other"""
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
