"""
The task of a run, text or images: its model's config, its data, its model, and how a batch is prepared and scored. A script
calls task_of(keys) once, and then treats both tasks alike.
"""
import torch

from data.augment import Augment
from data.images import Images
from data.tokens import SPLITS, Tokens, is_prepared, read_meta
from engine.keys import check_keys
from model import GPT, GPTConfig
from vit import ViT, ViTConfig


class TextTask:
    """A GPT that predicts the next token. `keys` are those of train.py, or a checkpoint's."""
    Config, Model, unit, windows, metrics = GPTConfig, GPT, 'tokens', 'windows', ('loss',)

    def __init__(self, keys):
        self.keys, self.config = keys, config_from(GPTConfig, keys)

    def split(self, name):
        """The windows of a split, one of split_names()."""
        return Tokens(self.keys['dataset'], name, self.config.block_size, self.config.vocab_size)

    def split_names(self):
        """'train', 'val', and of some text 'test'"""
        return (*read_meta(self.keys['dataset'])['tokens'],)

    def splits(self):
        """{'train': …, 'val': …}, of some text 'test' too; ValueError if the data was made by another tokenizer."""
        data = {name: self.split(name) for name in self.split_names()}
        for windows in data.values():
            windows.read(windows.spread(1, self.keys.get('batch_size', 1))[0])
        return data

    def new_model(self, data=None):
        """An untrained model. A model of images stores the mean and standard deviation of `data`."""
        return GPT(self.config)

    def augmentation(self):
        """A function of a training batch from `shuffled`, on its device → inputs, targets."""
        return lambda x, y: (x, y)

    def per_window(self):
        """Tokens in a window"""
        return self.config.block_size

    def flops(self, model):
        """FLOPs of one token's forward and backward pass"""
        return model.flops_per_token()

    @staticmethod
    def score(model, x, y):
        """The metrics of a batch, (1,), and the batch's weight in their mean, which is the same for all batches."""
        return model(x, y)[1][None], 1

    def random_batch(self, count, device):
        """Random inputs and targets of `count` windows, to time a model."""
        tokens = torch.randint(self.config.vocab_size, (count, self.config.block_size + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class ImageTask(TextTask):
    """A ViT that classifies images."""
    Config, Model, unit, windows, metrics = ViTConfig, ViT, 'images', 'images', ('loss', 'top1', 'top5')

    def __init__(self, keys):
        self.keys, self.config = keys, config_from(ViTConfig, keys)

    def split(self, name):
        c = self.config
        return Images(self.keys['dataset'], name, c.image_size, c.channels, c.classes, self.keys.get('aug_repeats', 1))

    def split_names(self):
        return SPLITS

    def new_model(self, data=None):
        return ViT(self.config, data.mean, data.std) if data else ViT(self.config)

    def augmentation(self):
        return Augment(self.keys, self.config.image_size, self.config.classes)

    def per_window(self):
        return 1

    def flops(self, model):
        """FLOPs of one image's forward and backward pass"""
        return model.flops_per_image()

    @staticmethod
    def score(model, x, y):
        """Loss, top-1 and top-5 accuracy of a batch, (3,), and its weight in the mean, the number of its images. Images whose
        class is −1 do not count."""
        logits, loss = model(x, y)
        count = (y >= 0).sum()
        return torch.stack((loss, *ImageTask.right(logits, y).sum(1) / count)), count

    @staticmethod
    def right(logits, y):
        """Whether the class of each image is the likeliest, and one of the five likeliest: 1.0 or 0.0, (2, N)"""
        found = logits.topk(min(5, logits.size(1))).indices == y[:, None]
        return torch.stack((found[:, 0], found.any(1))).float()

    def random_batch(self, count, device):
        c = self.config
        return (255 * torch.rand(count, c.channels, c.image_size, c.image_size, device=device),
                torch.randint(c.classes, (count,), device=device))


TASKS = {'gpt': TextTask, 'vit': ImageTask}


def config_from(Config, keys):
    return Config(**{name: keys[name] for name in Config.__dataclass_fields__ if name in keys})


def task_of(keys):
    """The task of the key `model`. Checkpoints without this key are of 'gpt'. ValueError for an unknown name. A vocab_size of 0
    becomes that of the data, in `keys` too, or that of GPTConfig where none is asked for: before the data is prepared, for a
    pretrained model, which brings its own, and for images."""
    name = keys.get('model', 'gpt')
    if name not in TASKS:
        raise ValueError(f'model={name!r}: choose one of {", ".join(TASKS)}')
    if keys.get('vocab_size') == 0:
        trains_anew = keys.get('init_from') in ('scratch', 'resume', 'auto')
        of_data = name == 'gpt' and trains_anew and is_prepared(keys['dataset'])
        keys['vocab_size'] = read_meta(keys['dataset'])['vocab_size'] if of_data else GPTConfig.vocab_size
        if of_data:
            check_keys(keys)
    return TASKS[name](keys)


def config_of(keys):
    """The GPTConfig or ViTConfig of a run's keys"""
    return task_of(keys).config
