"""
A GPT, and a ViT of the same blocks, in which every choice that decides whether a Transformer trains is one field of `Config`:
where the norms stand, which norm, how the residual step is scaled, the attention, the FFN, the positions and the initialization.

Every field is resolved when a module is built; every `forward` then reads as the paper's equation.
Shapes in comments: B batch, T tokens, D = n_embd, H heads, K key/value heads, E = D / H.
"""
import math
import os
import re
import warnings
from dataclasses import dataclass, fields

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    """What a GPT and a ViT share. Each adds `causal`, whether a token sees only its past, and block_size."""
    n_layer: int = 12               # blocks
    n_head: int = 12                # query heads; n_embd / n_head is the head dimension
    n_kv_head: int = 0              # key/value heads of grouped-query attention; 0: n_head
    n_embd: int = 768               # width of the residual stream
    d_ff: int = 0                   # hidden width of the FFN; 0: 4 * n_embd
    dropout: float = 0.0            # on embeddings, attention weights and branch outputs
    bias: bool = False              # biases in linear layers and LayerNorms
    norm: str = 'layernorm'         # layernorm | rmsnorm | stablenorm
    norm_alpha: float = 0.5         # StableNorm's α; 0.5 is RMSNorm
    norm_eps: float = 1e-5          # inside the mean of squares; a paper's ε on ‖x‖² is this times the width
    input_norm: bool = False        # on the sum of token and position embeddings
    attn_pre_norm: bool = True      # f(Norm(x)), for attention
    ffn_pre_norm: bool = True       # the same for the FFN
    mid_norm: bool = False          # x + Norm(f(x))
    post_norm: bool = False         # Norm(x + f(x))
    qk_norm: bool = False           # on queries and keys, per head, before RoPE
    final_norm: bool = True         # before the output head
    residual_scale: float = 1.0     # Δt in x + Δt f(x)
    attention: str = 'dot'          # dot | stable | l2 | l2_tied
    attn_tau: float = 1.618         # StableAtten: τ = attn_tau * log2(block_size)
    ffn: str = 'gelu'               # gelu | gelu_tanh | relu | swiglu
    pos: str = 'learned'            # learned | rope
    rope_theta: float = 10000.0     # RoPE's base wavelength
    init: str = 'gpt2'              # gpt2 | normal | xavier | xavier_trunc | stable
    init_gain: float = 1.0          # multiplies the std of every matrix but the embeddings

    def __post_init__(self):
        for f in fields(self):
            if type(getattr(self, f.name)) not in ((int, float) if f.type is float else (f.type,)):
                raise ValueError(f'{f.name}={getattr(self, f.name)!r}: wants {f.type.__name__}')
        for name, choices in dict(norm=NORMS, attention=ATTENTIONS, ffn=FFNS, pos=POSITIONS, init=INITS, pool=POOLS).items():
            if getattr(self, name, None) not in (None, *choices):
                raise ValueError(f'{name}={getattr(self, name)!r}: choose one of {", ".join(choices)}')
        for f in fields(self):
            low = 0 if f.name in ('n_kv_head', 'd_ff') else 1
            if f.type is int and getattr(self, f.name) < low:
                raise ValueError(f'{f.name}={getattr(self, f.name)}: wants an integer of at least {low}')
        for name in ('dropout', 'drop_path'):
            if not 0 <= getattr(self, name, 0) < 1:
                raise ValueError(f'{name}={getattr(self, name)}: wants a probability, 0 <= {name} < 1')
        if not 0 <= self.norm_alpha <= 1:
            raise ValueError(f'norm_alpha={self.norm_alpha}: wants 0 <= norm_alpha <= 1')
        for name in ('norm_eps', 'init_gain'):
            if not getattr(self, name) >= 0:
                raise ValueError(f'{name}={getattr(self, name)}: wants a number that is not negative')
        if not self.rope_theta > 0:
            raise ValueError(f'rope_theta={self.rope_theta}: wants a positive number')
        if self.n_embd % self.n_head:
            raise ValueError(f'n_embd={self.n_embd} is not divisible by n_head={self.n_head}: change one of them')
        if self.n_kv_head and self.n_head % self.n_kv_head:
            raise ValueError(f'n_head={self.n_head} is not divisible by n_kv_head={self.n_kv_head}: change one of them')
        if self.attention == 'l2_tied' and self.n_kv_head not in (0, self.n_head):
            raise ValueError(f'n_kv_head={self.n_kv_head}: attention=l2_tied shares queries and keys, so it wants '
                             f'n_kv_head=0 or {self.n_head} (n_head)')
        if self.pos == 'rope' and self.head_dim % 2:
            raise ValueError(f'pos=rope rotates pairs, but the head dimension n_embd/n_head={self.head_dim} is odd: '
                             f'change n_embd or n_head, or choose pos=learned')

    @property
    def head_dim(self):
        return self.n_embd // self.n_head


@dataclass
class GPTConfig(Config):
    block_size: int = 1024          # longest sequence, in tokens
    vocab_size: int = 50304         # GPT-2's 50257, padded up to a multiple of 64
    tie_weights: bool = True        # the output head is the token embedding

    causal, qkv_bias = True, True


@dataclass
class ViTConfig(Config):
    image_size: int = 224           # height and width of an image, in pixels
    patch_size: int = 16            # of a patch, which is a token
    channels: int = 3               # of an image: 1 is grey, 3 are RGB
    classes: int = 1000             # outputs of the head
    pool: str = 'cls'               # cls | mean: the head sees a class token, or the mean of the patches
    qkv_bias: bool = True           # with bias: in W_q, W_k and W_v too
    drop_path: float = 0.0          # stochastic depth: the last block's branches are dropped so often, the first one's never

    causal = False

    def __post_init__(self):
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ValueError(f'image_size={self.image_size} is not divisible by patch_size={self.patch_size}: change one of them')

    @property
    def block_size(self):
        """Tokens of an image"""
        return (self.image_size // self.patch_size) ** 2 + (self.pool == 'cls')


def at_least_fp32(x):
    """x in its own precision, or in fp32 where that is finer."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ----------------------------------------------------------------------------- norms
# Each takes (..., dim), and normalizes the last dimension in the finer precision of x and its gain γ (fp32 under autocast).

def finer(x, weight):
    """Both in the finer of their precisions."""
    dtype = torch.promote_types(x.dtype, weight.dtype)
    return x.to(dtype), weight.to(dtype)


class LayerNorm(nn.Module):
    """γ ⊙ (x − mean) / √(var + ε) [+ β], the bias β only with config.bias (Ba et al. 2016)."""

    def __init__(self, dim, config):
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if config.bias else None

    def forward(self, x):
        x, weight = finer(x, self.weight)
        bias = self.bias if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


class RMSNorm(nn.Module):
    """γ ⊙ x / √(mean(x²) + ε) (Zhang and Sennrich 2019; DNT, section 2)."""

    def __init__(self, dim, config):
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x, weight = finer(x, self.weight)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class StableNorm(nn.Module):
    """γ ⊙ d^α x / √(‖x‖² + dε), which is RMSNorm times d^(α − 1/2) (Stable-Transformer, eq. 2)."""

    def __init__(self, dim, config):
        super().__init__()
        self.eps = config.norm_eps
        self.scale = dim ** (config.norm_alpha - 0.5)
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x, weight = finer(x, self.weight)
        return F.rms_norm(x, weight.shape, self.scale * weight, self.eps)


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm, 'stablenorm': StableNorm}


def make_norm(on, config):
    """The norm of config.norm over n_embd, or nothing."""
    return NORMS[config.norm](config.n_embd, config) if on else nn.Identity()


def make_qk_norm(on, config):
    """RMSNorm over the head dimension, StableNorm where that is the model's norm, or nothing."""
    norm = StableNorm if config.norm == 'stablenorm' else RMSNorm
    return norm(config.head_dim, config) if on else nn.Identity()


# ----------------------------------------------------------------------------- positions
# pos='learned' adds wpe to the embedding and leaves queries and keys alone; pos='rope' does the reverse.

class NoPosition(nn.Module):
    """What stands at wpe where positions enter elsewhere."""

    def forward(self, pos):
        return 0


class NoRotation(nn.Module):
    """What stands at attn.rotary where positions enter elsewhere."""

    def forward(self, x, start):
        return x


class Rotary(nn.Module):
    """RoPE on (B, T, heads, E): rotates the pair (x_i, x_{i+E/2}) by position · θ^(−2i/E) (Su et al. 2021; LLaMA's halves)."""

    def __init__(self, config):
        super().__init__()
        pair = torch.arange(0, config.head_dim, 2, device='cpu')        # the tables are there in a model of device meta too
        frequency = config.rope_theta ** -(pair.double() / config.head_dim)
        angle = torch.outer(torch.arange(config.block_size, device='cpu').double(), frequency)
        self.register_buffer('cos', angle.cos().float()[:, None], persistent=False)     # (block_size, 1, E/2)
        self.register_buffer('sin', angle.sin().float()[:, None], persistent=False)

    def forward(self, x, start):
        cos, sin = self.cos[start:start + x.size(1)], self.sin[start:start + x.size(1)]
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


POSITIONS = {
    'learned': (lambda config: nn.Embedding(config.block_size, config.n_embd), lambda config: NoRotation()),
    'rope': (lambda config: NoPosition(), Rotary),
}


# ----------------------------------------------------------------------------- patches
# pool='cls' puts a learned token ahead of the patches, which is all that the head sees of the last block; 'mean' has none.

class ClassToken(nn.Module):

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.n_embd))

    def forward(self, x):
        return torch.cat((self.weight.to(x.dtype).expand(len(x), 1, -1), x), dim=1)


POOLS = {       # what stands ahead of the patches, and (B, T, D) → (B, D)
    'cls': (ClassToken, lambda x: x[:, 0]),
    'mean': (lambda config: nn.Identity(), lambda x: x.mean(1)),
}


class PatchEmbedding(nn.Linear):
    """Images (B, channels, S, S) of 0 to 255 → (B, T, D): W of each patch, row by row, once normalized by the data's mean and
    standard deviation, which are those of images of 0 to 1 and belong to the weights."""

    def __init__(self, config, mean, std):
        super().__init__(config.channels * config.patch_size ** 2, config.n_embd, bias=config.bias)
        self.size = config.patch_size
        self.cls = POOLS[config.pool][0](config)
        for name, value in (('mean', mean), ('std', std)):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.float32).expand(config.channels).view(-1, 1, 1).clone())

    def forward(self, images):
        x = ((images / 255 - self.mean) / self.std).to(self.weight.dtype)
        x = x.unflatten(3, (-1, self.size)).unflatten(2, (-1, self.size))       # (B, channels, rows, P, columns, P)
        return self.cls(super().forward(x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)))


# ----------------------------------------------------------------------------- attention

class KVCache:
    """Keys and values of one layer's past tokens, for generation: at most `size` of them."""

    def __init__(self, size):
        self.size, self.length = size, 0

    def append(self, k, v):
        """Takes those of new tokens, (B, K, T, E), returns those of all tokens."""
        if self.length == 0:
            self.k, self.v = (x.new_empty(*x.shape[:2], self.size, x.size(3)) for x in (k, v))
        end = self.length + k.size(2)
        self.k[:, :, self.length:end], self.v[:, :, self.length:end] = k, v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]


class NoCache:
    """What stands in for a KVCache in training, where there is no past."""
    length = 0

    @staticmethod
    def append(k, v):
        return k, v


def plain_attention(q, k, v, is_causal, scale, enable_gqa, dropout_p):
    """F.scaled_dot_product_attention by two products and a softmax, for short sequences. Its logits are of v's dtype: in bf16
    they have three digits, where the kernel has them in fp32."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), dim=1) for x in (k, v))
    q, k = q.to(v.dtype), k.to(v.dtype)                 # a rotation and a norm may have left them in fp32
    mask = q.new_full((q.size(2), k.size(2)), -math.inf).triu(1) if is_causal else q.new_zeros(())
    logits = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=scale)
    return (F.dropout(logits.softmax(-1), dropout_p) @ v.flatten(0, 1)).unflatten(0, q.shape[:2])


class DotAttention(nn.Module):
    """softmax(qᵀk / √E) v per head, with a causal mask, grouped keys and values, QKNorm and RoPE where the config says so."""

    def __init__(self, config):
        super().__init__()
        d, self.head_dim = config.n_embd, config.head_dim
        d_kv = (config.n_kv_head or config.n_head) * self.head_dim
        qkv_bias = config.bias and config.qkv_bias
        self.wq = nn.Linear(d, d, bias=qkv_bias)
        self.wk = nn.Linear(d, d_kv, bias=qkv_bias)
        self.wv = nn.Linear(d, d_kv, bias=qkv_bias)
        self.wo = nn.Linear(d, d, bias=config.bias)
        self.q_norm = make_qk_norm(config.qk_norm, config)
        self.k_norm = make_qk_norm(config.qk_norm, config)
        self.rotary = POSITIONS[config.pos][1](config)
        self.scale = self.head_dim ** -0.5
        self.grouped, self.causal = d_kv != d, config.causal
        self.dropout = config.dropout
        self.kernel = F.scaled_dot_product_attention        # or plain_attention, where device.py finds it to train faster
        self.out_dropout = nn.Dropout(config.dropout)

    def heads(self, x):
        """(B, T, heads · E) → (B, T, heads, E)"""
        return x.unflatten(-1, (-1, self.head_dim))

    def queries_keys(self, x, start):
        """(B, T, D) → (B, T, H, E), (B, T, K, E), of tokens at positions start, start + 1, …"""
        q = self.rotary(self.q_norm(self.heads(self.wq(x))), start)
        k = self.rotary(self.k_norm(self.heads(self.wk(x))), start)
        return q, k

    def attend(self, q, k, v):
        """(B, H, T, E), (B, K, S, E), (B, K, S, E) → (B, H, T, E); T = S, or T = 1 with all S tokens in its past."""
        return self.kernel(q, k, v, is_causal=self.causal and q.size(2) > 1, scale=self.scale, enable_gqa=self.grouped,
                           dropout_p=self.dropout if self.training else 0.0)

    def forward(self, x, cache=NoCache):
        q, k = self.queries_keys(x, cache.length)
        v = self.heads(self.wv(x))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = self.attend(q, *cache.append(k, v))
        return self.out_dropout(self.wo(y.transpose(1, 2).flatten(2)))


class StableAttention(DotAttention):
    """softmax(τ SN(q)ᵀSN(k) / E^2α) v: before τ the logit is a cosine (Stable-Transformer, eq. 3)."""

    def __init__(self, config):
        super().__init__(config)
        self.q_norm = StableNorm(config.head_dim, config)
        self.k_norm = StableNorm(config.head_dim, config)
        tau = config.attn_tau * math.log2(config.block_size)
        self.scale = tau / config.head_dim ** (2 * config.norm_alpha)


def bf16_bits(x):
    """x cut to the bits that bf16 has, as a constant. By a mask: torch.compile drops a cast to bf16 and back."""
    return (x.detach().float().view(torch.int32) & -65536).view(torch.float32).to(x.dtype)


class L2Attention(DotAttention):
    """softmax(−‖q − k‖² / √E) v (Kim et al. 2021).

    ‖q‖² is the same for every key and drops out of the softmax, which leaves 2(qᵀk − ‖k‖²/2)/√E: the dot product of
    (q, 1, 1, 1) with (k, s₁, s₂, s₃). The three parts sum to −‖k‖²/2 in fp32, and each is exact in bf16.
    """

    def __init__(self, config):
        super().__init__(config)
        self.scale = 2 * self.head_dim ** -0.5
        self.padding = -(self.head_dim + 3) % 8         # fused kernels want head dimensions in eights

    def attend(self, q, k, v):
        q, k = q.to(v.dtype), k.to(v.dtype)             # ‖k‖² must be that of the keys as the kernel sees them
        s = -at_least_fp32(k).square().sum(-1, keepdim=True) / 2
        s1 = bf16_bits(s)
        s2 = bf16_bits(s - s1)
        s3 = s - s1 - s2                                # carries the gradient of all three
        q = F.pad(F.pad(q, (0, 3), value=1.0), (0, self.padding))
        k = F.pad(torch.cat((k, *(x.to(k.dtype) for x in (s1, s2, s3))), dim=-1), (0, self.padding))
        v = F.pad(v, (0, 3 + self.padding))
        return super().attend(q, k, v)[..., :self.head_dim]


class L2TiedAttention(L2Attention):
    """L2 attention with W_q = W_k, the condition for it to be Lipschitz (Kim et al. 2021): k = q, after its norm too."""

    def __init__(self, config):
        super().__init__(config)
        del self.wk, self.k_norm

    def queries_keys(self, x, start):
        q = self.rotary(self.q_norm(self.heads(self.wq(x))), start)
        return q, q


ATTENTIONS = {'dot': DotAttention, 'stable': StableAttention, 'l2': L2Attention, 'l2_tied': L2TiedAttention}


# ----------------------------------------------------------------------------- FFN

class FFN(nn.Module):
    """W_2 φ(W_1 x)"""

    def __init__(self, config, activation):
        super().__init__()
        d_ff = config.d_ff or 4 * config.n_embd
        self.w1 = nn.Linear(config.n_embd, d_ff, bias=config.bias)
        self.activation = activation
        self.w2 = nn.Linear(d_ff, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.w2(self.activation(self.w1(x))))


class SwiGLU(nn.Module):
    """W_2 (silu(W_1 x) ⊙ W_3 x) (Shazeer 2020)"""

    def __init__(self, config):
        super().__init__()
        d_ff = config.d_ff or 4 * config.n_embd
        self.w1 = nn.Linear(config.n_embd, d_ff, bias=config.bias)
        self.w3 = nn.Linear(config.n_embd, d_ff, bias=config.bias)
        self.w2 = nn.Linear(d_ff, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))


FFNS = {
    'gelu': lambda config: FFN(config, nn.GELU()),
    'gelu_tanh': lambda config: FFN(config, nn.GELU(approximate='tanh')),   # as OpenAI trained GPT-2
    'relu': lambda config: FFN(config, nn.ReLU()),
    'swiglu': SwiGLU,
}


# ----------------------------------------------------------------------------- the blocks

class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training a sample's branch is 0 with probability p, else 1/(1 − p) of itself."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return x * F.dropout(x.new_ones(len(x), 1, 1), self.p, self.training)


class Block(nn.Module):
    """x ← Post(x + Δt Mid(f(Pre(x)))), for f attention and then FFN; any of the norms may be absent."""

    def __init__(self, config, drop_path=0.0):
        super().__init__()
        self.attn_pre_norm = make_norm(config.attn_pre_norm, config)
        self.attn = ATTENTIONS[config.attention](config)
        self.attn_mid_norm = make_norm(config.mid_norm, config)
        self.attn_post_norm = make_norm(config.post_norm, config)
        self.ffn_pre_norm = make_norm(config.ffn_pre_norm, config)
        self.ffn = FFNS[config.ffn](config)
        self.ffn_mid_norm = make_norm(config.mid_norm, config)
        self.ffn_post_norm = make_norm(config.post_norm, config)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.dt = config.residual_scale

    def forward(self, x, cache=NoCache):
        f = self.drop_path(self.attn_mid_norm(self.attn(self.attn_pre_norm(x), cache)))
        x = self.attn_post_norm(torch.add(x, f, alpha=self.dt))         # x + Δt f in one pass
        f = self.drop_path(self.ffn_mid_norm(self.ffn(self.ffn_pre_norm(x))))
        return self.ffn_post_norm(torch.add(x, f, alpha=self.dt))


INITS = {       # the std of an (n_out, n_in) matrix
    'gpt2': lambda n_out, n_in: 0.02,
    'normal': lambda n_out, n_in: 0.02,
    'xavier': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'xavier_trunc': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'stable': lambda n_out, n_in: 1 / (math.sqrt(n_in) + math.sqrt(n_out)),
}

BLOCK_TYPES = {
    'emb': r'(wte|wpe|patch\.cls)\.weight|patch\.(weight|bias)',
    'head': r'lm_head\.weight|head\.(weight|bias)',
    'qk': r'h\.\d+\.attn\.w[qk]\.(weight|bias)',
    'vo': r'h\.\d+\.attn\.w[vo]\.(weight|bias)',
    'ffn': r'h\.\d+\.ffn\.w[123]\.(weight|bias)',
    'norm': r'(input_norm|final_norm|h\.\d+\.attn\.[qk]_norm|h\.\d+\.(attn|ffn)_(pre|mid|post)_norm)\.(weight|bias)',
}


def block_type(name):
    """The kind of block that a parameter belongs to, by its name in named_parameters(): a key of BLOCK_TYPES."""
    for kind, pattern in BLOCK_TYPES.items():
        if re.fullmatch(pattern, name):
            return kind
    raise ValueError(f'{name!r} belongs to no block type: teach BLOCK_TYPES in model.py its name')


@torch.no_grad()
def init_weights(model):
    """
    norm gains            1
    biases                0
    wte (a tied head), wpe, class token  N(0, 0.02²)
    every other matrix    N(0, (init_gain · s)²), s on its own shape from INITS; an untied head and the patch embedding too
    init='gpt2'           s of wo and w2, which write to the residual stream, is divided by √(2 n_layer) (Radford et al. 2019)
    init='xavier_trunc'   the same N without what is beyond two of its deviations, and with init_gain · s left
    """
    config = model.config
    residual = (2 * config.n_layer) ** -0.5 if config.init == 'gpt2' else 1.0
    for name, p in model.named_parameters():
        if name.endswith('bias'):
            nn.init.zeros_(p)
        elif block_type(name) == 'norm':
            nn.init.ones_(p)
        elif re.fullmatch(r'(wte|wpe|patch\.cls)\.weight', name):
            nn.init.normal_(p, std=0.02)
        else:
            std = config.init_gain * INITS[config.init](*p.shape)
            std = std * residual if re.search(r'(wo|w2)\.weight', name) else std
            truncated_normal_(p, std) if config.init == 'xavier_trunc' else nn.init.normal_(p, std=std)


def truncated_normal_(p, std):
    edge = math.erf(2 ** 0.5)                           # P(|z| < 2)
    p.uniform_(-edge, edge).erfinv_().mul_(2 ** 0.5 * std / 0.8796256610342398)     # the deviation that the cut leaves of 1


# ----------------------------------------------------------------------------- the models

OPENAI_MODELS = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')


def through(block, recompute, x, cache=NoCache):
    """block(x, cache). With recompute a backward pass finds x alone and computes the rest again (Chen et al. 2016)."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(block, x, use_reentrant=False)
    return block(x, cache)


class GPT(nn.Module):
    recompute = False       # train.py's key, by which `through` saves memory

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = POSITIONS[config.pos][0](config)
        self.input_norm = make_norm(config.input_norm, config)
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.final_norm = make_norm(config.final_norm, config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_weights:
            self.lm_head.weight = self.wte.weight
        init_weights(self)

    def hidden(self, idx, caches=None):
        """(B, T) token ids → (B, T, D) after the final norm. With caches, one a layer, idx continues their tokens."""
        caches = caches or [NoCache] * len(self.h)
        start, end = caches[0].length, caches[0].length + idx.size(1)
        if end > self.config.block_size:
            raise ValueError(f'a sequence of {end} tokens is longer than block_size={self.config.block_size}')
        x = self.wte(idx) + self.wpe(torch.arange(start, end, device=idx.device))
        x = self.dropout(self.input_norm(x))
        for block, cache in zip(self.h, caches):
            x = through(block, self.recompute, x, cache)
        return self.final_norm(x)

    def forward(self, idx, targets=None):
        """Token ids (B, T), targets (B, T) with −1 where there is none
        → logits (B, T, vocab_size), and the mean cross-entropy in nats per token, or None without targets."""
        logits = self.lm_head(self.hidden(idx))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(at_least_fp32(logits).flatten(0, 1), targets.flatten(), ignore_index=-1)

    @torch.no_grad()
    def stream(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None):
        """Yields one (B, 1) tensor of token ids after another, drawn to continue idx (B, T).

        temperature 0 takes the likeliest token; top_k keeps the k likeliest, top_p the fewest whose probabilities reach p.
        Past block_size the window slides: its positions, and with them every key, change at each token, so that the
        cache is of no use and the last block_size tokens are computed anew.
        """
        if not temperature >= 0:
            raise ValueError(f'temperature={temperature}: wants a number that is not negative; 0 takes the likeliest token')
        if top_k is not None and top_k < 1:
            raise ValueError(f'top_k={top_k}: wants at least 1, or None for every token')
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f'top_p={top_p}: wants 0 < top_p <= 1, or None for every token')
        if idx.size(1) == 0:
            raise ValueError('an empty prompt: give at least one token to continue')
        size = self.config.block_size
        caches = [KVCache(size) for _ in self.h]
        new = idx = idx[:, -size:]
        for _ in range(max_new_tokens):
            x = self.hidden(new, caches) if idx.size(1) <= size else self.hidden(idx[:, -size:])
            new = draw(self.lm_head(x[:, -1]), temperature, top_k, top_p)
            idx = torch.cat((idx, new), dim=1)
            yield new

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None):
        """idx (B, T) → (B, T + max_new_tokens), as `stream` draws it."""
        return torch.cat((idx, *self.stream(idx, max_new_tokens, temperature, top_k, top_p)), dim=1)

    def num_params(self):
        """Parameters, a tied head counted once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self):
        """FLOPs of one token's forward and backward pass: 6N + 12 n_layer D T (PaLM, appendix B; nanoGPT).

        N counts what a token is multiplied with: all parameters but wpe, and but wte where the head is untied.
        """
        config = self.config
        lookups = sum(p.numel() for p in self.wpe.parameters()) + (0 if config.tie_weights else self.wte.weight.numel())
        return 6 * (self.num_params() - lookups) + 12 * config.n_layer * config.n_embd * config.block_size

    @classmethod
    def from_pretrained(cls, name, block_size=None, dropout=0.0):
        """OpenAI's weights, 'gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl', or a folder that export.py, or Hugging Face's
        GPT-2, LLaMA or Qwen3 has saved.

        A block_size below theirs leaves out the later positions, but where StableAtten's τ depends on it. ValueError for
        what is no such name or folder, cannot be loaded, or has no equal here.
        """
        from export import read_folder
        config, weights = read_folder(name)
        if config.attention != 'stable':
            config.block_size = min(block_size or config.block_size, config.block_size)
        config.dropout = dropout
        if config.pos == 'learned':
            weights['wpe.weight'] = weights['wpe.weight'][:config.block_size]
        model = cls(config)
        model.load_state_dict(weights)
        return model

    @classmethod
    def from_checkpoint(cls, path, device='cpu'):
        """As load_run does it; ValueError for a model of images."""
        model, state = load_run(path, device)
        if not isinstance(model, cls):
            raise ValueError(f'{path} is of a model of images, which reads and draws no text')
        return model, state


class ViT(nn.Module):
    """The same blocks on the patches of an image, and without a mask (Dosovitskiy et al. 2021)."""
    recompute = False       # as a GPT's

    def __init__(self, config, mean=0.5, std=0.5):
        super().__init__()
        self.config = config
        self.patch = PatchEmbedding(config, mean, std)
        self.wpe = POSITIONS[config.pos][0](config)
        self.input_norm = make_norm(config.input_norm, config)
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config, config.drop_path * i / max(1, config.n_layer - 1)) for i in range(config.n_layer))
        self.pool = POOLS[config.pool][1]
        self.final_norm = make_norm(config.final_norm, config)
        self.head = nn.Linear(config.n_embd, config.classes, bias=config.bias)
        init_weights(self)

    def hidden(self, images):
        """Images (B, channels, S, S) of 0 to 255 → (B, T, D) behind the last block."""
        x = self.patch(images)
        x = self.dropout(self.input_norm(x + self.wpe(torch.arange(x.size(1), device=x.device))))
        for block in self.h:
            x = through(block, self.recompute, x)
        return x

    def forward(self, images, targets=None):
        """Images (B, channels, S, S) of 0 to 255, targets classes (B,) or their probabilities (B, classes)
        → logits (B, classes), and the mean cross-entropy in nats per image, or None without targets."""
        logits = self.head(self.final_norm(self.pool(self.hidden(images))))
        return logits, None if targets is None else F.cross_entropy(at_least_fp32(logits), targets)

    def num_params(self):
        return sum(p.numel() for p in self.parameters())

    def flops_per_image(self):
        """FLOPs of one image's forward and backward pass: 6N + 12 n_layer D T a token, as for a GPT; the head sees but one."""
        c, head = self.config, sum(p.numel() for p in self.head.parameters())
        a_token = self.num_params() - head - sum(p.numel() for p in self.wpe.parameters())
        return c.block_size * (6 * a_token + 12 * c.n_layer * c.n_embd * c.block_size) + 6 * head

    @classmethod
    def from_pretrained(cls, path, classes=0, n_head=0, dropout=0.0, drop_path=0.0):
        """Weights of a ViT in a folder of Hugging Face's or timm's, or in a file with timm's state_dict (.pth, .safetensors).

        Another number of classes than theirs gets a new head. A file does not tell the heads: they are timm's for its width, or
        n_head. Nor does it tell mean and std, which are then 0.5. ValueError for what cannot be loaded, or has no equal here.
        """
        from export import read_vit
        config, mean, std, weights = read_vit(path, n_head)
        config.dropout, config.drop_path = dropout, drop_path
        if classes not in (0, config.classes):
            config.classes = classes
            weights = {name: value for name, value in weights.items() if not name.startswith('head.')}
        model = cls(config, mean, std)
        try:
            missing, unexpected = model.load_state_dict(weights, strict=False)
        except RuntimeError as error:                   # of another shape
            raise ValueError(f'{path!r} is no ViT that has an equal here: {" ".join(str(error).split())}') from error
        wrong = unexpected + [name for name in missing if not name.startswith(('head.', 'patch.mean', 'patch.std'))]
        if wrong:
            raise ValueError(f'{path!r} is no ViT that has an equal here, see {wrong[0]!r}')
        return model


MODELS = {'gpt': (GPT, GPTConfig), 'vit': (ViT, ViTConfig)}


def config_of(keys):
    """GPTConfig or ViTConfig, by the keys of a run: those of train.py, or a checkpoint's, which once had GPTs alone."""
    if keys.get('model', 'gpt') not in MODELS:
        raise ValueError(f'model={keys["model"]!r}: choose one of {", ".join(MODELS)}')
    Config = MODELS[keys.get('model', 'gpt')][1]
    return Config(**{f.name: keys[f.name] for f in fields(Config) if f.name in keys})


def draw(logits, temperature, top_k, top_p):
    """One token id a row from logits (B, vocab_size) → (B, 1)."""
    logits = at_least_fp32(logits)
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits, ids = (logits / temperature).sort(descending=True)
    if top_k is not None:
        logits, ids = logits[:, :top_k], ids[:, :top_k]
    probs = logits.softmax(-1)
    if top_p is not None:
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0.0)       # the first always stays
    return ids.gather(1, torch.multinomial(probs, 1))


def load_checkpoint(path, device='cpu', mmap=False):
    """What train.py saved: {'model': state_dict, 'optimizer', 'scaler', 'config', 'iter', 'best_val_loss'}. With mmap its tensors
    are read from the file as they are used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            state = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        types = dict(model=dict, optimizer=dict, scaler=dict, config=dict, iter=int, best_val_loss=float)
        if isinstance(state, dict) and all(isinstance(state[key], kind) for key, kind in types.items()):
            if {'dataset', 'init_from', 'optimizer'} <= state['config'].keys():
                return state
    except (IsADirectoryError, PermissionError):
        raise
    except Exception:                                   # unpickling garbage fails in many ways
        pass
    raise ValueError(f'{path} is damaged, or not a checkpoint of train.py')


def load_run(path, device='cpu'):
    """The model of a checkpoint of train.py's, on the device, and all that load_checkpoint found there. ValueError where there is
    none, or a damaged one."""
    if not os.path.exists(path):
        raise ValueError(f'there is no {path}: train first, or check out_dir and checkpoint')
    state = load_checkpoint(path, device)
    Model, _ = MODELS[state['config'].get('model', 'gpt')]
    model = Model(config_of(state['config'])).to(device)
    load_weights(model, state, path)
    return model, state


def load_weights(model, state, path):
    """Those of a checkpoint that was read from `path`; ValueError where they are another model's."""
    try:
        model.load_state_dict(state['model'])
    except RuntimeError as error:
        raise ValueError(f'{path} is damaged, or not a checkpoint of train.py: its weights do not fit its config') from error
