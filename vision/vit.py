"""
A ViT: model.py's blocks on the patches of an image, without an attention mask.
Shapes in comments: B batch, S height and width of an image, P height and width of a patch, T tokens, D = n_embd.
"""
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

import model
from model import GPT, PARAMS, GPTConfig, Row


@dataclass
class ViTConfig(GPTConfig):
    block_size: int = field(init=False, default=1)      # tokens per image, from the sizes below
    vocab_size: int = field(init=False, default=1)      # a ViT has none
    emb_scale: bool = field(init=False, default=False)
    emb_gain: bool = field(init=False, default=False)
    tie_weights: bool = field(init=False, default=False)
    image_size: int = 224           # height and width of an image, in pixels
    patch_size: int = 16            # height and width of a patch, in pixels; each patch is a token
    channels: int = 3               # channels of an image: 1 for grey, 3 for RGB
    classes: int = 1000             # outputs of the head
    pool: str = 'cls'               # cls | mean | patches: a class token, or the mean of the patches without it, or with it
    qkv_bias: bool = True           # with bias=True: whether W_q, W_k and W_v have biases too
    drop_path: float = 0.0          # stochastic depth: probability of dropping a branch, rising from 0 to this in the last block

    script: ClassVar[str] = 'vision.train'              # the script that trains such models
    causal: ClassVar[bool] = False
    changeable_on_resume: ClassVar[tuple] = ('drop_path',)
    params: ClassVar[dict] = PARAMS | {'patch': Row('emb', 'input'), 'patch.cls': Row('emb', 'embedding'),
                                       'head': Row('head', 'head')}

    def __post_init__(self):
        for key in 'image_size', 'patch_size', 'channels', 'classes':
            model.require(self, getattr(self, key) >= 1, key, 'must be at least 1')
        model.require(self, self.image_size % self.patch_size == 0, 'image_size patch_size', 'patches must divide the image')
        model.require(self, 0 <= self.drop_path < 1, 'drop_path', 'must be a probability below 1')
        model.require(self, self.pool in POOLS, 'pool', f'choose one of {", ".join(POOLS)}')
        self.block_size = (self.image_size // self.patch_size) ** 2 + (self.pool != 'mean')
        super().__post_init__()


# ----------------------------------------------------------------------------- patches
# pool='cls' puts a learned token before the patches, and the head sees only this token; pool='mean' averages the patches;
# pool='patches' averages them too, but beside such a token, which they attend to (He et al. 2022, fine-tuning of MAE).

class ClassToken(nn.Module):

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.n_embd))

    def forward(self, x):
        return torch.cat((self.weight.to(x.dtype).expand(len(x), 1, -1), x), dim=1)


POOLS = {       # the module that prepends the token, and the pooling (B, T, D) → (B, D)
    'cls': (ClassToken, lambda x: x[:, 0]),
    'mean': (lambda config: nn.Identity(), lambda x: x.mean(1)),
    'patches': (ClassToken, lambda x: x[:, 1:].mean(1)),
}


class PatchEmbedding(nn.Linear):
    """Map images (B, channels, S, S) of 0 to 255 to (B, T, D): normalize the pixels and multiply each patch by W, row by row. The
    mean and standard deviation are the data's, for values from 0 to 1, and are saved with the weights."""

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
    """Stochastic depth (Huang et al. 2016). Replaces a branch's gain: applies the gain, and in training sets a sample's branch to
    0 with probability p, or else scales it by 1/(1 − p)."""

    def __init__(self, p, gain):
        super().__init__()
        # a tensor, so that torch.compile makes one graph for all rates; on the CPU, to keep its value in a model on meta
        self.register_buffer('keep', torch.tensor(1 - p, device='cpu'), persistent=False)
        self.weight = getattr(gain, 'weight', None)

    def forward(self, f):
        f = f if self.weight is None else f * self.weight.to(f.dtype)
        if self.training:
            kept = torch.rand(len(f), 1, 1, device=f.device) < self.keep
            f = f * (kept / self.keep).to(f.dtype)
        return f


def make_vit_blocks(config, seed):
    """Return a GPT's blocks with stochastic depth, without the biases of queries, keys and values if qkv_bias is False."""
    blocks = model.make_blocks(config, seed, model.VariantBlock if config.drop_path else None)
    for i, block in enumerate(blocks):
        p = config.drop_path * i / max(1, config.n_layer - 1)
        if p:
            block.attn_gain, block.ffn_gain = DropPath(p, block.attn_gain), DropPath(p, block.ffn_gain)
        if not config.qkv_bias:
            for name in ('wq', 'wk', 'wv'):
                if hasattr(block.attn, name):
                    getattr(block.attn, name).bias = None
    return blocks


class ViT(nn.Module):
    """model.py's blocks on the patches of an image, without an attention mask (Dosovitskiy et al. 2021)."""
    Config, recompute, after_step = ViTConfig, False, GPT.after_step        # as in GPT

    def __init__(self, config, mean=0.5, std=0.5):
        super().__init__()
        config = replace(config)                # a copy, so that __post_init__ sees edits made to the config
        self.config, self.init_seed = config, torch.randint(2 ** 63 - 1, (), device='cpu').item()
        self.patch = PatchEmbedding(config, mean, std)
        self.wpe = nn.Embedding(config.block_size, config.n_embd) if config.pos == 'learned' else None
        self.input_norm = model.make_norm(config.input_norm, config)
        self.dropout = nn.Dropout(config.dropout)
        self.h = make_vit_blocks(config, self.init_seed)
        self.pool = POOLS[config.pool][1]
        self.final_norm = model.make_norm(config.final_norm, config)
        self.head_scale = model.Scale(1 / config.width_growth) if config.mup_base_width else nn.Identity()
        self.head = nn.Linear(config.n_embd, config.classes, bias=config.bias)
        model.attach_aux_and_logged(self)
        model.init_weights(self)

    def hidden(self, images):
        """Return the residual state after the last block, for images (B, channels, S, S) of 0 to 255."""
        x = self.patch(images)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(x.size(1), device=x.device))
        return model.run_blocks(self.h, self.dropout(self.input_norm(x)), recompute=self.recompute)

    def forward(self, images, targets=None):
        """Return logits (B, classes), and the mean cross-entropy in nats per image, or None without targets, for images (B,
        channels, S, S) of 0 to 255. Targets are classes (B,), −1 for none, or class probabilities (B, classes). In training mode
        with targets the logits are None, as in GPT."""
        return self.output(self.hidden(images), targets)

    def output(self, x, targets=None):
        """Return forward's result, given the residual state after the last block."""
        x = self.h[-1].collapse(self.pool(x), self.final_norm)
        logits = self.head(self.head_scale(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(model.at_least_fp32(logits), targets, ignore_index=-1)
        return None if self.training else logits, loss

    def num_params(self):
        return sum(p.numel() for p in self.parameters())

    def flops_per_image(self):
        """Return the FLOPs of one image's forward and backward pass: 6N + 12 n_layer D T per token; the head sees one token."""
        c, head = self.config, sum(p.numel() for p in self.head.parameters())
        a_token = self.num_params() - head - (self.wpe.weight.numel() if self.wpe is not None else 0)
        return c.block_size * (6 * a_token + 12 * c.n_layer * c.n_embd * c.block_size) + 6 * head


def correct(logits, y):
    """Return whether each image's class is the likeliest, and among the five likeliest: 1.0 or 0.0, (2, N)."""
    hits = logits.topk(min(5, logits.size(1))).indices == y[:, None]
    return torch.stack((hits[:, 0], hits.any(1))).float()
