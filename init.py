"""
How weights start. The modules of model.py and vit.py leave what they do not fill themselves to init_weights.

Shapes in comments: a matrix is (n_out, n_in).
"""
import math
import re

import torch
from torch import nn

# ----------------------------------------------------------------------------- what is filled
# Other parameters, of nn.Linear too, keep the value that their module's constructor gives them.

class Linear(nn.Linear):
    """nn.Linear, of which init_weights fills what the module that it is built in leaves unfilled."""

    def reset_parameters(self):
        super().reset_parameters()
        unfill(self)


class Embedding(nn.Embedding):
    """nn.Embedding, of which init_weights fills what the module that it is built in leaves unfilled."""

    def reset_parameters(self):
        super().reset_parameters()
        unfill(self)


def unfill(module):
    """Makes the module's own parameters NaN, which marks them for init_weights."""
    for name, p in module.named_parameters(recurse=False):
        setattr(module, name, nn.Parameter(torch.full_like(p, math.nan, device=unfill.device)))


unfill.device = None        # that of the parameter; engine/fsdp.py sets 'meta', where tensors have no memory


# ----------------------------------------------------------------------------- by what

INITS = {       # the std of an (n_out, n_in) matrix
    'gpt2': lambda n_out, n_in: 0.02,
    'normal': lambda n_out, n_in: 0.02,
    'xavier': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'xavier_trunc': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'stable': lambda n_out, n_in: 1 / (math.sqrt(n_in) + math.sqrt(n_out)),
}
SHRINKS = {     # of n blocks: a factor on the std of W_v, W_o and the FFN (Wang et al. 2022)
    'deepnorm': lambda n: (8 * n) ** -0.25,
}


@torch.no_grad()
def init_weights(model, weights=None):
    """Fills the parameters of the model, or of `weights`, pairs of their names and of tensors like them, that are NaN: those of
    Linear, Embedding and a class token. All others keep the value that their module has given them, as do those on device meta.
    ValueError for a parameter without a rule here.

    biases                0
    Embedding (wte, also as a tied head, and wpe), class token   N(0, emb_std²). If emb_std=0, a tied wte starts as the weight of
                          a Linear, the rest with 0.02
    weights of Linear     N(0, (init_gain · s)²), s from INITS by its shape; also an untied head and the patch embedding
    fused_qkv_init        s of W_q, W_k and W_v is that of one matrix with the rows of all three
    init='gpt2'           s of wo and w2, which write to the residual stream, is divided by √(2 n_layer) (Radford et al. 2019)
    skip_scale='deepnorm' s of W_v, W_o and the FFN is multiplied by (8 n_layer)^(−1/4)
    mup_base_width        s is that of the matrix in the base model, whose sides along the width are shorter. In the blocks it is
                          divided by √(n_embd / mup_base_width), the root of the growth of n_in (Yang et al. 2022, table 8)
    mup_base_depth        replaces n_layer in init='gpt2'
    init='xavier_trunc'   a normal distribution cut at two standard deviations, then scaled to the std init_gain · s
    """
    config = model.config
    residual = (2 * config.n_layer / config.depth_growth) ** -0.5 if config.init == 'gpt2' else 1.0
    branch = SHRINKS.get(config.skip_scale, lambda n: 1.0)(config.n_layer)
    as_head = config.emb_std == 0 and getattr(config, 'tie_weights', False)
    fused_rows = sum(len(p) for name, p in model.named_parameters() if re.match(r'h\.0\.attn\.w[qkv]\.weight', name))
    for name, p in weights or model.named_parameters():
        if p.is_meta or type(p) not in (nn.Parameter, torch.Tensor) or not p.isnan().any():        # a fake tensor has no data
            continue
        module = model.get_submodule(name.rpartition('.')[0])
        if not p.isnan().all():
            raise ValueError(f'{name} is NaN in part: its module must fill all of it, or nothing')
        if name.endswith('bias'):
            nn.init.zeros_(p)
        elif (isinstance(module, Embedding) or name == 'patch.cls.weight') and not (name == 'wte.weight' and as_head):
            nn.init.normal_(p, std=config.emb_std or 0.02)
        elif p.dim() != 2:
            raise ValueError(f'{name} is NaN: init_weights in init.py has no rule for it, add one or fill it in its module')
        else:
            n_out = fused_rows if config.fused_qkv_init and re.search(r'attn\.w[qkv]\.', name) else p.size(0)
            grown_out, grown_in = (config.width_growth if grows else 1.0 for grows in growing_sides(name))
            std = config.init_gain * INITS[config.init](n_out / grown_out, p.size(1) / grown_in)
            std = std * grown_in ** -0.5 if name.startswith('h.') else std
            std = std * residual if re.search(r'(wo|w2)\.weight', name) else std
            std = std * branch if re.search(r'(wv|wo|w[123])\.weight', name) else std
            truncated_normal_(p, std) if config.init == 'xavier_trunc' else nn.init.normal_(p, std=std)


def growing_sides(name):
    """Whether n_out and n_in of a matrix with this name grow with the width of the model"""
    return name.startswith(('h.', 'patch.')), not name.startswith('patch.')


def truncated_normal_(p, std):
    edge = math.erf(2 ** 0.5)                           # P(|z| < 2)
    p.uniform_(-edge, edge).erfinv_().mul_(2 ** 0.5 * std / 0.8796256610342398)     # 0.8796: std of N(0, 1) after the cut
