"""
Measure a ViT, trained or untrained, as lab.measure measures a GPT:

    python -m vision.measure --out_dir=out-quick-vision
    python -m vision.measure config/train_quick_vision.py config/arch/peri.py --init_only=True

A sequence is the tokens of an image, and the loss is the mean over images. The results are in measure.json of the run's folder.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.measure')

from configurator import ROOT, TRAIN

import os

from engine.keys import config_from
from lab.measure.__main__ import main
from vision.images import Images
from vision.vit import ViT, ViTConfig


def untrained(config):
    """Return a function that builds a run's ViT, and the run's training data."""
    model_config = config_from(ViTConfig, config)
    images = Images(config['dataset'], 'train', model_config)
    return lambda: ViT(model_config, images.mean, images.std), images


if __name__ == '__main__':
    main(ViT, (os.path.join(ROOT, 'vision', 'train.py'), ViTConfig, TRAIN), untrained, 'images')
