"""
A GPT in which every choice that decides whether a Transformer trains is one field of `GPTConfig`: where the norms stand,
which norm, how the residual step is scaled, the attention, the FFN, the positions and the initialization.

Every field is resolved when a module is built, so that every `forward` reads as the paper's equation.
Shapes in comments: B batch, T tokens, D = n_embd, H heads, K key/value heads, E = D / H.
"""
import functools
import math
import re
from dataclasses import dataclass, fields, replace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    """What a GPT and the ViT of vit.py share. Each adds `causal`, whether a token sees only its past, and block_size."""
    n_layer: int = 12               # blocks
    n_head: int = 12                # query heads; n_embd / n_head is the head dimension
    n_kv_head: int = 0              # key/value heads of grouped-query attention; 0: n_head
    n_embd: int = 768               # width of the residual stream
    d_ff: int = 0                   # hidden width of the FFN; 0: 4 * n_embd
    dropout: float = 0.0            # on embeddings, attention weights and branch outputs
    bias: bool = False              # biases in linear layers and LayerNorms
    norm: str = 'layernorm'         # layernorm | rmsnorm | stablenorm | dyt | derf
    norm_alpha: float = 0.5         # StableNorm's α; 0.5 is RMSNorm
    norm_eps: float = 1e-5          # inside the mean of squares; a paper's ε on ‖x‖² is this times the width
    input_norm: bool = False        # on the sum of token and position embeddings
    attn_pre_norm: bool = True      # f(Norm(x)), for attention
    ffn_pre_norm: bool = True       # the same for the FFN
    attn_mid_norm: bool = False     # x + Norm(f(x)), for attention; the key mid_norm sets this and the next
    ffn_mid_norm: bool = False      # the same for the FFN
    attn_post_norm: bool = False    # Norm(x + f(x)), for attention; the key post_norm sets this and the next
    ffn_post_norm: bool = False     # the same for the FFN
    qk_norm: bool = False           # on queries and keys, per head, before RoPE
    v_norm: bool = False            # on values, per head
    linear_norm: bool = False       # on the output of every linear map of a block (SimpleNorm)
    final_norm: bool = True         # before the output head
    norm_depth_scale: bool = False  # block l, from 1, multiplies the outputs of its PreNorms by 1/√l (LayerNorm Scaling)
    mix_ln: float = 0.0             # the first blocks, this share of them, are Post-LN whatever the flags above say (Mix-LN)
    residual_scale: float = 1.0     # Δt in x + Δt f(x)
    skip_scale: str = 'one'         # one | deepnorm | keel: α in Norm(α x + f(x)), from the depth; deepnorm changes the start too
    branch_gain: str = 'none'       # none | layerscale | rezero: a learned gain on each branch, per channel or one number
    embedding_skip: bool = False    # before block l: x ← λ_l x + μ_l x₀, learned numbers from 1 and 0; x₀ is the first block's
    attention: str = 'dot'          # dot | stable | l2 | l2_tied
    attn_tau: float = 1.618         # StableAtten: τ = attn_tau * log2(block_size)
    ffn: str = 'gelu'               # gelu | gelu_tanh | relu | swiglu
    pos: str = 'learned'            # learned | rope
    rope_theta: float = 10000.0     # RoPE's base wavelength
    init: str = 'gpt2'              # gpt2 | normal | xavier | xavier_trunc | stable
    init_gain: float = 1.0          # multiplies the std of every matrix but the embeddings; with emb_std=0 that of a tied one too
    emb_std: float = 0.02           # std of embeddings; 0: a tied token embedding starts by `init` like a head, others with 0.02
    fused_qkv_init: bool = False    # W_q, W_k, W_v start as parts of one matrix, as in code with one projection for all three
    mup_base_width: int = 0         # muP: n_embd of the model whose learning rate and starts carry over to this one; 0: off
    mup_base_depth: int = 0         # CompleteP: n_layer of that model; Δt is multiplied by mup_base_depth / n_layer; 0: off
    mup_base_head_dim: int = 0      # muP needs it too: n_embd / n_head of that model; logits become qᵀk √mup_base_head_dim / E

    def __post_init__(self):
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) not in ((int, float) if f.type is float else (f.type,)):
                raise ValueError(f'{f.name}={value!r}: wants {f.type.__name__}')
        check(vars(self), CHOICES, RULES)

    @property
    def head_dim(self):
        return self.n_embd // self.n_head

    @property
    def width_growth(self):
        """How many times as wide the model is as the base of muP; 1 without muP"""
        return self.n_embd / self.mup_base_width if self.mup_base_width else 1.0

    @property
    def depth_growth(self):
        """How many times as deep the model is as the base of CompleteP; 1 without it"""
        return self.n_layer / self.mup_base_depth if self.mup_base_depth else 1.0

    @property
    def branch_scale(self):
        """Δt, over the growth in depth (CompleteP, Dey et al. 2025, with α = 1)"""
        return self.residual_scale / self.depth_growth

    @property
    def logit_scale(self):
        """1/√E for queries and keys of dimension E; under muP in proportion to 1/E (Yang et al. 2022, definition 4.1)"""
        return self.mup_base_head_dim ** 0.5 / self.head_dim if self.mup_base_width else self.head_dim ** -0.5


RULES = (       # conditions on the numbers of a config; CHOICES has the values of its strings
    'n_layer >= 1', 'n_layer <= 5000',                                  # more take minutes to build before anything is printed
    'n_head >= 1', 'n_kv_head >= 0', 'n_embd >= 1', 'd_ff >= 0', 'block_size >= 1', 'vocab_size >= 1',
    '0 <= dropout < 1', '0 <= norm_alpha <= 1', 'norm_eps >= 0', 'rope_theta > 0', 'init_gain >= 0', 'emb_std >= 0',
    '0 <= mix_ln <= 1', 'mup_base_width >= 0', 'mup_base_depth >= 0', 'mup_base_head_dim >= 0',
    '(mup_base_width > 0) == (mup_base_head_dim > 0)',                  # heads may be more, or wider; only the user knows which
    "mup_base_depth == 0 or skip_scale == 'one'", 'mup_base_depth == 0 or not norm_depth_scale',         # two rules for the depth
    'n_embd % n_head == 0', 'n_kv_head == 0 or n_head % n_kv_head == 0',
    "attention != 'l2_tied' or n_kv_head in (0, n_head)",               # it shares queries and keys
    "pos != 'rope' or n_embd // n_head % 2 == 0",                       # it rotates pairs
)


code_of = functools.cache(lambda rule: compile(rule, rule, 'eval'))


def check(values, choices, rules):
    """ValueError if a value is not among its choices, {key: names}, or if values break a rule such as 'n_head >= 1'. Keys that
    `values` does not have are not checked."""
    for key, names in choices.items():
        if key in values and values[key] not in names:
            raise ValueError(f'{key}={values[key]!r}: choose one of {", ".join(names)}')
    for rule in rules:
        code = code_of(rule)
        if values.keys() >= {*code.co_names} and not eval(code, {}, values):
            raise ValueError(f'{", ".join(f"{name}={values[name]!r}" for name in code.co_names)}: wants {rule}')


@dataclass
class GPTConfig(Config):
    block_size: int = 1024          # longest sequence, in tokens
    vocab_size: int = 50304         # GPT-2's 50257, padded up to a multiple of 64
    tie_weights: bool = True        # the output head is the token embedding

    causal, qkv_bias = True, True


def layer_configs(config):
    """The config of each block: the model's, with the block's number `layer`, from 1, and Post-LN in the share mix_ln of them."""
    post_ln = dict(attn_pre_norm=False, ffn_pre_norm=False, attn_post_norm=True, ffn_post_norm=True)
    for number in range(1, config.n_layer + 1):
        of_layer = replace(config, **post_ln if number <= config.mix_ln * config.n_layer else {})
        of_layer.layer = number
        yield of_layer


def at_least_fp32(x):
    """x in fp32, or in its own precision if that is higher."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ----------------------------------------------------------------------------- norms
# Each takes (..., dim) and normalizes the last dimension, in the higher precision of x and the gain γ (fp32 under autocast).

def finer(x, weight):
    """Both in the higher of their two precisions."""
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


class DyT(nn.Module):
    """γ ⊙ tanh(a x) + β with a learned number a from 0.5, which needs no mean over x (Zhu et al. 2025)."""

    def __init__(self, dim, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.alpha = nn.Parameter(torch.full((1,), 0.5))

    def squash(self, x):
        return torch.tanh(self.alpha.to(x.dtype) * x)

    def forward(self, x):
        x, weight = finer(x, self.weight)
        return torch.addcmul(self.bias.to(x.dtype), weight, self.squash(x))


class Derf(DyT):
    """γ ⊙ erf(a x + s) + β with learned numbers a from 0.5 and s from 0 (Chen et al. 2025, eq. 10)."""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.shift = nn.Parameter(torch.zeros(1))

    def squash(self, x):
        return torch.erf(self.alpha.to(x.dtype) * x + self.shift.to(x.dtype))


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm, 'stablenorm': StableNorm, 'dyt': DyT, 'derf': Derf}


def make_norm(on, config):
    """The norm that config.norm names, over n_embd; nothing if not `on`."""
    return NORMS[config.norm](config.n_embd, config) if on else nn.Identity()


def make_head_norm(on, config):
    """RMSNorm over the head dimension, for queries, keys or values, or StableNorm if that is the model's norm; nothing if not
    `on`."""
    norm = StableNorm if config.norm == 'stablenorm' else RMSNorm
    return norm(config.head_dim, config) if on else nn.Identity()


class NormedLinear(nn.Linear):
    """Norm(W x), over the outputs (SimpleNorm, Chen et al. 2026)"""

    def __init__(self, n_in, n_out, bias, config):
        super().__init__(n_in, n_out, bias=bias)
        self.norm = NORMS[config.norm](n_out, config)

    def forward(self, x):
        return self.norm(super().forward(x))


def make_linear(n_in, n_out, bias, config):
    """A linear map of a block, with a norm behind it if config.linear_norm."""
    return NormedLinear(n_in, n_out, bias, config) if config.linear_norm else nn.Linear(n_in, n_out, bias=bias)


# ----------------------------------------------------------------------------- positions
# pos='learned' adds wpe to the embedding; pos='rope' has no wpe and rotates queries and keys.

class NoPosition(nn.Module):
    """Replaces wpe if positions enter elsewhere."""

    def forward(self, pos):
        return 0


class NoRotation(nn.Module):
    """Replaces attn.rotary if positions enter elsewhere."""

    def forward(self, x, start):
        return x


class Rotary(nn.Module):
    """RoPE on (B, T, heads, E): rotates the pair (x_i, x_{i+E/2}) by position · θ^(−2i/E) (Su et al. 2021; LLaMA's halves)."""

    def __init__(self, config):
        super().__init__()
        pair = torch.arange(0, config.head_dim, 2, device='cpu')        # a model on device 'meta' has its tables too
        frequency = config.rope_theta ** -(pair.double() / config.head_dim)
        angle = torch.outer(torch.arange(config.block_size, device='cpu').double(), frequency)
        self.register_buffer('cos', angle.cos().float()[:, None], persistent=False)     # (block_size, 1, E/2)
        self.register_buffer('sin', angle.sin().float()[:, None], persistent=False)

    def forward(self, x, start):
        cos, sin = self.cos[start:start + x.size(1)], self.sin[start:start + x.size(1)]
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def share_rotary(blocks):
    """The same blocks, with one table of RoPE for all attentions that have one."""
    for block in blocks:
        if hasattr(block.attn, 'rotary'):
            block.attn.rotary = blocks[0].attn.rotary
    return blocks


POSITIONS = {
    'learned': (lambda config: nn.Embedding(config.block_size, config.n_embd), lambda config: NoRotation()),
    'rope': (lambda config: NoPosition(), Rotary),
}


# ----------------------------------------------------------------------------- attention

class KVCache:
    """Keys and values of one layer's past tokens, for generation: at most `size` of them."""

    def __init__(self, size):
        self.size, self.length = size, 0

    def append(self, k, v):
        """Stores the keys and values of new tokens, (B, K, T, E), and returns those of all tokens."""
        if self.length == 0:
            self.k, self.v = (x.new_empty(*x.shape[:2], self.size, x.size(3)) for x in (k, v))
        end = self.length + k.size(2)
        self.k[:, :, self.length:end], self.v[:, :, self.length:end] = k, v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]


class NoCache:
    """Replaces a KVCache in training, where there is no past."""
    length = 0

    @staticmethod
    def append(k, v):
        return k, v


def plain_attention(q, k, v, is_causal, scale, enable_gqa, dropout_p):
    """F.scaled_dot_product_attention as two matrix products and a softmax, for short sequences. Its logits have v's dtype: in
    bf16 they keep three digits, while PyTorch's kernel has them in fp32."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), dim=1) for x in (k, v))
    q, k = q.to(v.dtype), k.to(v.dtype)                 # a rotation and a norm may have left them in fp32
    mask = q.new_full((q.size(2), k.size(2)), -math.inf).triu(1) if is_causal else q.new_zeros(())
    logits = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=scale)
    return (F.dropout(logits.softmax(-1), dropout_p) @ v.flatten(0, 1)).unflatten(0, q.shape[:2])


class DotAttention(nn.Module):
    """softmax(qᵀk / √E) v per head, or muP's scale; the config decides on the causal mask, grouped heads, QKNorm and RoPE."""
    cpu_kernel = staticmethod(plain_attention)              # faster than PyTorch's in training on a CPU, for short sequences

    def __init__(self, config):
        super().__init__()
        d, self.head_dim = config.n_embd, config.head_dim
        d_kv = (config.n_kv_head or config.n_head) * self.head_dim
        qkv_bias = config.bias and config.qkv_bias
        self.wq = make_linear(d, d, qkv_bias, config)
        self.wk = make_linear(d, d_kv, qkv_bias, config)
        self.wv = make_linear(d, d_kv, qkv_bias, config)
        self.wo = make_linear(d, d, config.bias, config)
        self.q_norm = make_head_norm(config.qk_norm, config)
        self.k_norm = make_head_norm(config.qk_norm, config)
        self.v_norm = make_head_norm(config.v_norm, config)
        self.rotary = POSITIONS[config.pos][1](config)
        self.scale = config.logit_scale
        self.grouped, self.causal = d_kv != d, config.causal
        self.dropout = config.dropout
        self.kernel = F.scaled_dot_product_attention        # engine/device.py may put cpu_kernel here
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
        v = self.v_norm(self.heads(self.wv(x)))
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
    """x cut to the bits that bf16 has, without gradient. It uses a mask, because torch.compile drops a cast to bf16 and back."""
    return (x.detach().float().view(torch.int32) & -65536).view(torch.float32).to(x.dtype)


class L2Attention(DotAttention):
    """softmax(−‖q − k‖² / √E) v (Kim et al. 2021).

    ‖q‖² is the same for every key and cancels in the softmax, which leaves 2(qᵀk − ‖k‖²/2)/√E. The bracket is the dot product
    of (q, 1, 1, 1) and (k, s₁, s₂, s₃). s₁, s₂ and s₃ sum to −‖k‖²/2 in fp32, and each of them is exact in bf16.
    """
    cpu_kernel = staticmethod(F.scaled_dot_product_attention)       # plain_attention would round the logits to bf16

    def __init__(self, config):
        super().__init__(config)
        self.scale = 2 * config.logit_scale
        self.padding = -(self.head_dim + 3) % 8         # fused kernels need a multiple of 8

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
    """L2 attention with W_q = W_k, the condition for it to be Lipschitz (Kim et al. 2021). So k = q, also after the norm."""

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
        self.w1 = make_linear(config.n_embd, d_ff, config.bias, config)
        self.activation = activation
        self.w2 = make_linear(d_ff, config.n_embd, config.bias, config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.w2(self.activation(self.w1(x))))


class SwiGLU(nn.Module):
    """W_2 (silu(W_1 x) ⊙ W_3 x) (Shazeer 2020)"""

    def __init__(self, config):
        super().__init__()
        d_ff = config.d_ff or 4 * config.n_embd
        self.w1 = make_linear(config.n_embd, d_ff, config.bias, config)
        self.w3 = make_linear(config.n_embd, d_ff, config.bias, config)
        self.w2 = make_linear(d_ff, config.n_embd, config.bias, config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))


FFNS = {
    'gelu': lambda config: FFN(config, nn.GELU()),
    'gelu_tanh': lambda config: FFN(config, nn.GELU(approximate='tanh')),   # as OpenAI trained GPT-2
    'relu': lambda config: FFN(config, nn.ReLU()),
    'swiglu': SwiGLU,
}


# ----------------------------------------------------------------------------- the block

class Scale(nn.Module):
    """x times a constant, a tensor, so that torch.compile makes one graph for the blocks of all depths"""

    def __init__(self, factor):
        super().__init__()
        self.register_buffer('factor', torch.tensor(factor, device='cpu'), persistent=False)       # as in Rotary

    def forward(self, x):
        return x * self.factor


def make_scale(factor):
    return nn.Identity() if factor == 1 else Scale(factor)


class Gain(nn.Module):
    """x times a learned gain for each of `dim` channels, or one for all"""

    def __init__(self, dim, start):
        super().__init__()
        self.weight = nn.Parameter(torch.full((dim,), start))

    def forward(self, x):
        return x * self.weight.to(x.dtype)


GAINS = {       # LayerScale starts as in CaiT (Touvron et al. 2021), ReZero at 0 (Bachlechner et al. 2020)
    'none': lambda config: nn.Identity(),
    'layerscale': lambda config: Gain(config.n_embd, 0.1 if config.n_layer <= 18 else 1e-5 if config.n_layer <= 24 else 1e-6),
    'rezero': lambda config: Gain(1, 0.0),
}
SKIPS = {       # α of n blocks: DeepNorm (Wang et al. 2022, decoder-only), which starts smaller too; Keel (Chen and Wei 2026)
    'one': lambda n: 1.0,
    'deepnorm': lambda n: (2 * n) ** 0.25,
    'keel': lambda n: 2.0 * n,
}


class Block(nn.Module):
    """x ← Post(α x + Δt · gain · Mid(f(Pre(x)))), first with f = attention, then with f = FFN. Any of the norms may be absent.
    `drop_path` is a module that acts on the branches: the stochastic depth of vit.py. `config` is one of layer_configs."""

    def __init__(self, config, drop_path=None):
        super().__init__()
        self.attn_pre_norm = make_norm(config.attn_pre_norm, config)
        self.attn = ATTENTIONS[config.attention](config)
        self.attn_mid_norm = make_norm(config.attn_mid_norm, config)
        self.attn_gain = GAINS[config.branch_gain](config)
        self.attn_post_norm = make_norm(config.attn_post_norm, config)
        self.ffn_pre_norm = make_norm(config.ffn_pre_norm, config)
        self.ffn = FFNS[config.ffn](config)
        self.ffn_mid_norm = make_norm(config.ffn_mid_norm, config)
        self.ffn_gain = GAINS[config.branch_gain](config)
        self.ffn_post_norm = make_norm(config.ffn_post_norm, config)
        of_depth = config.layer ** -0.5 if config.norm_depth_scale else 1.0
        self.attn_pre_scale = make_scale(of_depth if config.attn_pre_norm else 1.0)
        self.ffn_pre_scale = make_scale(of_depth if config.ffn_pre_norm else 1.0)
        self.skip = make_scale(SKIPS[config.skip_scale](config.n_layer))
        self.drop_path = drop_path or nn.Identity()
        self.dt = config.branch_scale

    def forward(self, x, cache=NoCache):
        f = self.drop_path(self.attn_gain(self.attn_mid_norm(self.attn(self.attn_pre_scale(self.attn_pre_norm(x)), cache))))
        x = self.attn_post_norm(torch.add(self.skip(x), f, alpha=self.dt))          # α x + Δt f in one pass
        f = self.drop_path(self.ffn_gain(self.ffn_mid_norm(self.ffn(self.ffn_pre_scale(self.ffn_pre_norm(x))))))
        return self.ffn_post_norm(torch.add(self.skip(x), f, alpha=self.dt))


class EmbeddingSkip(nn.Module):
    """λ x + μ x₀ with learned numbers λ from 1 and μ from 0"""

    def __init__(self):
        super().__init__()
        self.stream, self.embedding = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x, x0):
        return self.stream.to(x.dtype) * x + self.embedding.to(x.dtype) * x0


class NoEmbeddingSkip(nn.Module):

    def forward(self, x, x0):
        return x


def make_embedding_skips(config):
    """What stands before each block."""
    return nn.ModuleList((EmbeddingSkip if config.embedding_skip else NoEmbeddingSkip)() for _ in range(config.n_layer))


# ----------------------------------------------------------------------------- how weights start
# init_weights fills the parameters that STARTS names. All others keep what their constructor gave them.

STARTS = {          # patch and head are parts of vit.py's model
    'embedding': r'(wte|wpe|patch\.cls)\.weight',
    'bias': r'(h\.\d+\.(attn\.w[qkvo]|ffn\.w[123])|patch|head)\.bias',
    'matrix': r'(h\.\d+\.(attn\.w[qkvo]|ffn\.w[123])|patch|head|lm_head)\.weight',
}
INITS = {           # the std of an (n_out, n_in) matrix
    'gpt2': lambda n_out, n_in: 0.02,
    'normal': lambda n_out, n_in: 0.02,
    'xavier': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'xavier_trunc': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'stable': lambda n_out, n_in: 1 / (math.sqrt(n_in) + math.sqrt(n_out)),
}
SHRINKS = {         # of n blocks: a factor on the std of W_v, W_o and the FFN (Wang et al. 2022)
    'deepnorm': lambda n: (8 * n) ** -0.25,
}


def start_of(name):
    """As what init_weights fills a parameter of this name, a key of STARTS, or None."""
    return next((start for start, pattern in STARTS.items() if re.fullmatch(pattern, name)), None)


@torch.no_grad()
def init_weights(model, weights=None):
    """Fills the parameters of the model that STARTS names, or `weights`, pairs of such names and of tensors to fill.

    bias                  0
    embedding             N(0, emb_std²): wte, also as a tied head, and wpe. If emb_std=0, a tied wte starts as a matrix, the rest
                          with 0.02
    matrix                N(0, (init_gain · s)²), s from INITS by its shape (n_out, n_in); also an untied head
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
        start = 'matrix' if name == 'wte.weight' and as_head else start_of(name)
        if start == 'bias':
            nn.init.zeros_(p)
        elif start == 'embedding':
            nn.init.normal_(p, std=config.emb_std or 0.02)
        elif start == 'matrix':
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


CHOICES = dict(norm=NORMS, attention=ATTENTIONS, ffn=FFNS, pos=POSITIONS, init=INITS, skip_scale=SKIPS, branch_gain=GAINS)

BLOCK_TYPES = {     # patch and head are parts of vit.py's model
    'emb': r'(wte|patch\.cls)\.weight|patch\.(weight|bias)',
    'pos': r'wpe\.weight',
    'head': r'lm_head\.weight|head\.(weight|bias)',
    'qk': r'h\.\d+\.attn\.w[qk]\.(weight|bias)',
    'vo': r'h\.\d+\.attn\.w[vo]\.(weight|bias)',
    'ffn': r'h\.\d+\.ffn\.w[123]\.(weight|bias)',
    'norm': r'(input_norm|final_norm|h\.\d+\.attn\.[qkv]_norm|h\.\d+\.(attn|ffn)(_(pre|mid|post)_|\.w\w\.)norm)'
            r'\.(weight|bias|alpha|shift)',
    'gain': r'h\.\d+\.(attn|ffn)_gain\.weight|embedding_skips\.\d+\.(stream|embedding)',
}


Config.layer = 1                        # a block's number, see layer_configs
Config.block_types = BLOCK_TYPES        # configurator.py makes the keys r_<type> and wd_<type> of them


def block_type(name):
    """The block type of a parameter, a key of BLOCK_TYPES, from its name in named_parameters()."""
    for kind, pattern in BLOCK_TYPES.items():
        if re.fullmatch(pattern, name):
            return kind
    raise ValueError(f'{name!r} belongs to no block type: add its name to BLOCK_TYPES in model.py')


# ----------------------------------------------------------------------------- the model

def through(block, recompute, x, cache=NoCache):
    """block(x, cache). With recompute, only x is kept, and the backward pass computes the rest again (Chen et al. 2016)."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(block, x, use_reentrant=False)
    return block(x, cache)


class GPT(nn.Module):
    recompute = False       # train.py's key, with which `through` saves memory

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = POSITIONS[config.pos][0](config)
        self.input_norm = make_norm(config.input_norm, config)
        self.dropout = nn.Dropout(config.dropout)
        self.embedding_skips = make_embedding_skips(config)
        self.h = share_rotary(nn.ModuleList(Block(of_layer) for of_layer in layer_configs(config)))
        self.final_norm = make_norm(config.final_norm, config)
        self.head_scale = make_scale(1 / config.width_growth)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_weights:
            self.lm_head.weight = self.wte.weight
        init_weights(self)

    def hidden(self, idx, caches=None):
        """(B, T) token ids → (B, T, D) after the last block. With caches, one per layer, idx continues their tokens."""
        caches = caches or [NoCache] * len(self.h)
        start, end = caches[0].length, caches[0].length + idx.size(1)
        if end > self.config.block_size:
            raise ValueError(f'a sequence of {end} tokens is longer than block_size={self.config.block_size}')
        x = self.wte(idx) + self.wpe(torch.arange(start, end, device=idx.device))
        x = x0 = self.dropout(self.input_norm(x))
        for skip, block, cache in zip(self.embedding_skips, self.h, caches):
            x = through(block, self.recompute, skip(x, x0), cache)
        return x

    def forward(self, idx, targets=None):
        """Token ids (B, T), targets (B, T) with −1 where there is none
        → logits (B, T, vocab_size), and the mean cross-entropy in nats per token, or None without targets.

        In training mode with targets the logits are None. A compiled backward pass would keep room for their gradient, of
        B · T · vocab_size numbers, though nobody reads them.
        """
        return self.output(self.hidden(idx), targets)

    def output(self, x, targets=None):
        """What forward returns, of (B, T, D) after the last block."""
        logits = self.lm_head(self.head_scale(self.final_norm(x)))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(at_least_fp32(logits).flatten(0, 1), targets.flatten(), ignore_index=-1)
        return None if self.training else logits, loss

    @torch.no_grad()
    def stream(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None):
        """Yields the token ids that continue idx (B, T), one (B, 1) tensor after another.

        temperature=0 takes the likeliest token; top_k keeps the k likeliest, top_p the fewest whose probabilities sum to p or
        more. Beyond block_size the window slides, so that all positions, and with them all keys, change at each token. The cache
        is then useless, and the last block_size tokens are computed again.
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
            new = draw(self.output(x[:, -1])[0], temperature, top_k, top_p)
            idx = torch.cat((idx, new), dim=1)
            yield new

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None):
        """idx (B, T) → (B, T + max_new_tokens), as `stream` draws it."""
        return torch.cat((idx, *self.stream(idx, max_new_tokens, temperature, top_k, top_p)), dim=1)

    def num_params(self):
        """Number of parameters; a tied head counts once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self):
        """FLOPs of one token's forward and backward pass: 6N + 12 n_layer D T (PaLM, appendix B; nanoGPT).

        N counts the parameters that a token is multiplied with: all except wpe, and except wte if the head is untied.
        """
        config = self.config
        lookups = sum(p.numel() for p in self.wpe.parameters()) + (0 if config.tie_weights else self.wte.weight.numel())
        return 6 * (self.num_params() - lookups) + 12 * config.n_layer * config.n_embd * config.block_size


def draw(logits, temperature, top_k, top_p):
    """Draws one token id per row from logits (B, vocab_size) → (B, 1)."""
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
