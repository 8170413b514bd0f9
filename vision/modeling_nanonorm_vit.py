"""
vision/vit.py's ViT as a model of transformers. vision/export.py copies this file, and those that it imports, into the folder of
an exported model, where AutoModelForImageClassification finds it (trust_remote_code=True).
"""
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils import can_return_tuple

from lab.convert.modeling_nanonorm import NanoNorm, ours, refuse
from vision.vit import ViT, ViTConfig


class NanoNormViTConfig(PreTrainedConfig):
    """The fields of a ViTConfig, some also by transformers' names."""
    model_type = 'nanonorm_vit'
    attribute_map = dict(hidden_size='n_embd', num_hidden_layers='n_layer', num_attention_heads='n_head', num_channels='channels')


class NanoNormForImageClassification(NanoNorm):
    """A ViT that takes pixels from 0 to 255 and normalizes them itself."""
    config_class = NanoNormViTConfig
    main_input_name = 'pixel_values'

    def __init__(self, config):
        super().__init__(config)
        if config.num_labels != config.classes:
            raise ValueError(f'num_labels={config.num_labels}: this model has {config.classes} classes; for others, vision.train '
                             'of its repository starts from it with a new head, --init_from=FOLDER --classes=…')
        self.begin(ViT(ours(ViTConfig, config)))

    @can_return_tuple
    def forward(self, pixel_values, labels=None, **arguments):
        """Map images (B, channels, S, S) of 0 to 255 and labels (B,) to logits (B, classes) and the mean loss per image."""
        refuse(arguments, 'num_items_in_batch')
        c = self.config
        if pixel_values.shape[1:] != (c.channels, c.image_size, c.image_size):
            raise ValueError(f'pixel_values of shape {tuple(pixel_values.shape)}: wants images of {c.channels} channels and '
                             f'{c.image_size} × {c.image_size} pixels')
        logits = self.net(pixel_values)[0]
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
