"""
A ViT: model.py's blocks on the patches of an image, without an attention mask.
Shapes in comments: B batch, S height and width of an image, P height and width of a patch, T tokens, D = n_embd.
"""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from model import (
    POSITIONS,
    Block,
    Config,
    at_least_fp32,
    check,
    init_weights,
    layer_configs,
    make_embedding_skips,
    make_norm,
    make_scale,
    share_rotary,
    through,
)


@dataclass
class ViTConfig(Config):
    image_size: int = 224           # height and width of an image, in pixels
    patch_size: int = 16            # height and width of a patch, in pixels; each patch is a token
    channels: int = 3               # channels of an image: 1 for grey, 3 for RGB
    classes: int = 1000             # outputs of the head
    pool: str = 'cls'               # cls | mean | patches: a class token, or the mean of the patches without it, or with it
    qkv_bias: bool = True           # with bias=True: whether W_q, W_k and W_v have biases too
    drop_path: float = 0.0          # stochastic depth: probability that a branch of the last block is dropped; it rises from 0

    causal = False

    def __post_init__(self):
        super().__post_init__()
        check(vars(self), dict(pool=POOLS), ('image_size >= 1', 'patch_size >= 1', 'channels >= 1', 'classes >= 1',
                                             'image_size % patch_size == 0', '0 <= drop_path < 1'))

    @property
    def block_size(self):
        """Tokens per image"""
        return (self.image_size // self.patch_size) ** 2 + (self.pool != 'mean')



# ----------------------------------------------------------------------------- patches
# pool='cls' puts a learned token before the patches, and the head sees only this token; pool='mean' averages the patches;
# pool='patches' averages them too, but beside such a token, which they attend to (He et al. 2022, fine-tuning of MAE).

class ClassToken(nn.Module):

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.n_embd))

    def forward(self, x):
        return torch.cat((self.weight.to(x.dtype).expand(len(x), 1, -1), x), dim=1)


POOLS = {       # the module that prepends the token, and (B, T, D) → (B, D)
    'cls': (ClassToken, lambda x: x[:, 0]),
    'mean': (lambda config: nn.Identity(), lambda x: x.mean(1)),
    'patches': (ClassToken, lambda x: x[:, 1:].mean(1)),
}


class PatchEmbedding(nn.Linear):
    """Images (B, channels, S, S) of 0 to 255 → (B, T, D): normalizes the pixels and multiplies each patch by W, row by row of
    patches. The mean and standard deviation are the data's, for values from 0 to 1, and are saved with the weights."""

    def __init__(self, config, mean, std):
        super().__init__(config.channels * config.patch_size ** 2, config.n_embd, bias=config.bias)
        self.size = config.patch_size
        self.cls = POOLS[config.pool][0](config)
        for name, value in (('mean', mean), ('std', std)):
            value = torch.as_tensor(value, dtype=torch.float32, device='cpu')          # in a model of device meta too
            self.register_buffer(name, value.expand(config.channels).view(-1, 1, 1).clone())

    def forward(self, images):
        x = ((images / 255 - self.mean) / self.std).to(self.weight.dtype)
        x = x.unflatten(3, (-1, self.size)).unflatten(2, (-1, self.size))       # (B, channels, rows, P, columns, P)
        return self.cls(super().forward(x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)))


# ----------------------------------------------------------------------------- the model

class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, a sample's branch is 0 with probability p, else scaled by 1/(1 − p)."""

    def __init__(self, p):
        super().__init__()
        # a tensor, so that torch.compile makes one graph for the blocks of all rates; there in a model of device meta too
        self.register_buffer('keep', torch.tensor(1 - p, device='cpu'), persistent=False)

    def forward(self, x):
        if not self.training:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) < self.keep
        return x * (kept / self.keep).to(x.dtype)


class ViT(nn.Module):
    """model.py's blocks on the patches of an image, without an attention mask (Dosovitskiy et al. 2021)."""
    recompute = False       # as in GPT

    def __init__(self, config, mean=0.5, std=0.5):
        super().__init__()
        self.config = config
        self.patch = PatchEmbedding(config, mean, std)
        self.wpe = POSITIONS[config.pos][0](config)
        self.input_norm = make_norm(config.input_norm, config)
        self.dropout = nn.Dropout(config.dropout)
        rates = [config.drop_path * i / max(1, config.n_layer - 1) for i in range(config.n_layer)]
        self.embedding_skips = make_embedding_skips(config)
        self.h = share_rotary(nn.ModuleList(Block(of_layer, DropPath(p) if p else None)
                                            for of_layer, p in zip(layer_configs(config), rates)))
        self.pool = POOLS[config.pool][1]
        self.final_norm = make_norm(config.final_norm, config)
        self.head_scale = make_scale(1 / config.width_growth)
        self.head = nn.Linear(config.n_embd, config.classes, bias=config.bias)
        init_weights(self)

    def hidden(self, images):
        """Images (B, channels, S, S) of 0 to 255 → (B, T, D) after the last block."""
        x = self.patch(images)
        x = x0 = self.dropout(self.input_norm(x + self.wpe(torch.arange(x.size(1), device=x.device))))
        for skip, block in zip(self.embedding_skips, self.h):
            x = through(block, self.recompute, skip(x, x0))
        return x

    def forward(self, images, targets=None):
        """Images (B, channels, S, S) of 0 to 255, targets classes (B,) with −1 where there is none, or their probabilities
        (B, classes) → logits (B, classes), and the mean cross-entropy in nats per image, or None without targets. In training
        mode with targets the logits are None, as a GPT's."""
        return self.output(self.hidden(images), targets)

    def output(self, x, targets=None):
        """What forward returns, of (B, T, D) after the last block."""
        logits = self.head(self.head_scale(self.final_norm(self.pool(x))))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(at_least_fp32(logits), targets, ignore_index=-1)
        return None if self.training else logits, loss

    def num_params(self):
        return sum(p.numel() for p in self.parameters())

    def flops_per_image(self):
        """FLOPs of one image's forward and backward pass: 6N + 12 n_layer D T per token, but the head sees only one token."""
        c, head = self.config, sum(p.numel() for p in self.head.parameters())
        a_token = self.num_params() - head - sum(p.numel() for p in self.wpe.parameters())
        return c.block_size * (6 * a_token + 12 * c.n_layer * c.n_embd * c.block_size) + 6 * head
