"""
A GPT in which every choice that decides whether a Transformer trains is a field of GPTConfig. A block applies

    x = Post(x + Δt · Mid(f(Pre(x))))

with f = attention and then with f = FFN. Pre, Mid and Post are each a norm or nothing.

The first half of this file has what nanoGPT, LLaMA and the four papers in README.md need. The second half has newer placements,
how parameters are named and started, and which fields exclude each other.

Shapes: B batch, T tokens, D = n_embd, H heads, K key/value heads, E = D / H.
"""
import hashlib
import itertools
import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class GPTConfig:
    """Each field is also a key of train.py, and its comment is the key's help."""
    # sizes
    block_size: int = 1024          # longest sequence, in tokens
    vocab_size: int = 50304         # GPT-2's 50257, padded up to a multiple of 64
    n_layer: int = 12               # blocks
    n_head: int = 12                # query heads; n_embd / n_head is the head dimension
    n_kv_head: int = 0              # key/value heads of grouped-query attention; 0: n_head
    n_embd: int = 768               # width of the residual stream
    d_ff: int = 0                   # hidden width of the FFN; 0: 4 * n_embd
    tie_weights: bool = True        # the output head is the token embedding
    bias: bool = False              # biases in linear layers and LayerNorms
    dropout: float = 0.0            # on embeddings, attention weights and branch outputs
    # norms
    norm: str = 'layernorm'         # CHOICES; q, k and v use StableNorm with stablenorm, else RMSNorm
    norm_alpha: float = 0.5         # StableNorm's α, which 0.5 makes RMSNorm; DyT's and Derf's a at the start
    attn_norm_alpha: float = 0.0    # the same for the norm before attention; 0: norm_alpha
    norm_eps: float = 1e-5          # added to mean(x²); if a paper adds ε to ‖x‖², divide it by the width
    input_norm: bool = False        # on the sum of token and position embeddings
    attn_pre_norm: bool = True      # f(Norm(x)), for attention
    ffn_pre_norm: bool = True       # the same for the FFN
    attn_mid_norm: bool = False     # x + Norm(f(x)), for attention; the key mid_norm sets this and the next
    ffn_mid_norm: bool = False      # the same for the FFN
    attn_post_norm: bool = False    # Norm(x + f(x)), for attention; the key post_norm sets this and the next
    ffn_post_norm: bool = False     # the same for the FFN
    qk_norm: bool = False           # on queries and keys, per head, before RoPE
    final_norm: bool = True         # before the output head
    residual_scale: float = 1.0     # Δt in x + Δt f(x)
    # attention
    attention: str = 'dot'          # CHOICES
    attn_tau: float = 1.618         # StableAtten: τ = attn_tau * log2(block_size)
    pos: str = 'learned'            # learned | rope
    rope_theta: float = 10000.0     # RoPE's base wavelength
    ffn: str = 'gelu'               # CHOICES: the activation of the FFN
    # start
    init: str = 'gpt2'              # CHOICES: the std of matrices, and of an untied head
    init_gain: float = 1.0          # multiplies the std of all matrices that `init` draws
    emb_init: str = 'normal'        # normal: by emb_std | head: a tied token embedding starts by `init`, like the head that it is
    emb_std: float = 0.02           # std of token and position embeddings
    fused_qkv_init: bool = False    # initialize W_q, W_k, W_v as parts of one matrix, as where one projection makes all
    # placements
    norm_gain: str = 'learned'      # learned | zero_centred: 1 + γ, so that decay pulls it to 1 | scalar: one number | none: 1
    sub_norm: bool = False          # inside the branches: before W_o, and before W_2 over the hidden width (Sub-LN)
    qk_norm_wide: bool = False      # qk_norm over all heads together instead, as in OLMo 2
    v_norm: bool = False            # on values, per head
    linear_norm: bool = False       # on the output of every linear map of a block (SimpleNorm)
    norm_depth_scale: bool = False  # block l, from 1, multiplies the outputs of its PreNorms by 1/√l (LayerNorm Scaling)
    mix_ln: float = 0.0             # the first blocks, up to this fraction, are Post-LN and ignore the flags above (Mix-LN)
    skip_scale: str = 'one'         # one | deepnorm | keel: α in Norm(α x + f(x)), from the depth; deepnorm scales `init` too
    residual: str = 'add'           # CHOICES: what branches read, and how their outputs join the stream
    streams: int = 4                # hyper, mhc, mhc_lite: copies of the residual stream
    parallel_ffn: bool = False      # x + attn(Norm(x)) + ffn(Norm(x)): the FFN reads what attention reads, and has no PreNorm
    b2t: bool = False               # adds a block's input behind its FFN too, in front of the second PostNorm (B2T connection)
    branch_gain: str = 'none'       # none | layerscale | rezero: a learned gain on each branch, per channel or one number
    value_residual: bool = False    # v ← λ₁ v + λ₂ v₁ in attention, learned, both initialized to 1/2; v₁ is the first block's
    embedding_skip: bool = False    # before block l: x ← λ_l x + μ_l x₀, learned, initialized to 1 and 0; x₀ is the first block's
    attn_sink: bool = False         # a learned logit per head, from 0, joins the softmax's denominator (gpt-oss)
    attn_gate: bool = False         # the output of attention times sigmoid(W_g x), before W_o (gated attention)
    qk_clip: float = 0.0            # after a step, shrink W_q and W_k of heads with a logit above this; 0: off (QK-Clip)
    emb_scale: bool = False         # token embeddings times √n_embd, as in Gemma
    emb_gain: bool = False          # the sum of token and position embeddings times a learned number, from √n_embd (DyT, Derf)
    unit_weights: bool = False      # after each step, normalize matrices along n_embd; gains behind W_1, W_3, the head (nGPT)
    # muP
    mup_base_width: int = 0         # muP: n_embd of the model whose learning rate and initialization carry over; 0: off
    mup_base_depth: int = 0         # CompleteP: n_layer of that model; Δt is multiplied by mup_base_depth / n_layer; 0: off
    mup_base_head_dim: int = 0      # muP needs it too: n_embd / n_head of that model; logits become qᵀk √mup_base_head_dim / E
    # loss
    z_loss: float = 0.0             # in training, add this times the mean of log² Z, Z the softmax's denominator (PaLM)

    causal: ClassVar[bool] = True   # a token sees only its past

    def __post_init__(self):
        check_types(self)
        self.head_dim, self.kv_heads = self.n_embd // self.n_head, self.n_kv_head or self.n_head
        self.grouped = self.kv_heads != self.n_head
        check_config(self)
        # muP and CompleteP: how many times as wide and as deep as its base the model is, or 1, and what follows
        mup = self.mup_base_width > 0
        self.width_growth = self.n_embd / self.mup_base_width if mup else 1.0
        self.depth_growth = self.n_layer / self.mup_base_depth if self.mup_base_depth else 1.0
        self.branch_scale = self.residual_scale / self.depth_growth     # Δt in CompleteP (Dey et al. 2025, with α = 1)
        # 1/√E, or under muP in proportion to 1/E (Yang et al. 2022, definition 4.1)
        self.logit_scale = self.mup_base_head_dim ** 0.5 / self.head_dim if mup else self.head_dim ** -0.5


def at_least_fp32(x):
    """Return x in fp32, or in its own precision if that is higher."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ----------------------------------------------------------------------------- norms

class Norm(nn.Module):
    """A norm over the last dimension of x (..., dim). Subclasses have normalize(x, γ), with x and the gain γ (dim,) in the higher
    precision of both, which is fp32 under autocast. The parameter `weight` is γ; with norm_gain=zero_centred it is γ − 1."""

    def __init__(self, dim, config):
        super().__init__()
        self.eps, self.zero_centred = config.norm_eps, config.norm_gain == 'zero_centred'
        self.expand_to = dim if config.norm_gain == 'scalar' else 0         # one number is the gain of so many channels
        if config.norm_gain == 'none':
            self.register_buffer('weight', torch.ones(dim, device='cpu'), persistent=False)    # never on meta
        else:
            size = 1 if config.norm_gain == 'scalar' else dim
            self.weight = nn.Parameter(torch.zeros(size) if self.zero_centred else torch.ones(size))

    @property
    def gain(self):
        gain = 1 + self.weight if self.zero_centred else self.weight
        return gain.expand(self.expand_to) if self.expand_to else gain

    def forward(self, x):
        x = x.to(torch.promote_types(x.dtype, self.weight.dtype))
        return self.normalize(x, self.gain.to(x.dtype))


class LayerNorm(Norm):
    """γ ⊙ (x − mean) / √(var + ε) [+ β, with config.bias] (Ba et al. 2016)"""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.bias = nn.Parameter(torch.zeros(dim)) if config.bias else None

    def normalize(self, x, gain):
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, gain.shape, gain, bias, self.eps)


class RMSNorm(Norm):
    """γ ⊙ x / √(mean(x²) + ε) (Zhang and Sennrich 2019; DNT, section 2)"""

    def normalize(self, x, gain):
        return F.rms_norm(x, gain.shape, gain, self.eps)


class StableNorm(RMSNorm):
    """γ ⊙ d^α x / √(‖x‖² + dε): RMSNorm times d^(α − 1/2) (Stable-Transformer, eq. 2)"""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.scale = dim ** (config.norm_alpha - 0.5)

    def normalize(self, x, gain):
        return super().normalize(x, self.scale * gain)


NORMS = {'layernorm': LayerNorm, 'rmsnorm': RMSNorm, 'stablenorm': StableNorm}      # newer ones join below


def make_norm(on, config, dim=0):
    """Return the config's norm over n_embd or `dim`; if not `on`, nothing."""
    return NORMS[config.norm](dim or config.n_embd, config) if on else nn.Identity()


def make_head_norm(on, config):
    """Return RMSNorm per head, for queries, keys or values, or StableNorm if that is the config's norm; if not `on`, nothing."""
    norm = StableNorm if config.norm == 'stablenorm' else RMSNorm
    return norm(config.head_dim, config) if on else nn.Identity()


def make_linear(n_in, n_out, config):
    """Return a linear map of a block, with a norm behind it if config.linear_norm."""
    return NormedLinear(n_in, n_out, config) if config.linear_norm else nn.Linear(n_in, n_out, bias=config.bias)


# ----------------------------------------------------------------------------- attention

class Rotary(nn.Module):
    """RoPE on (B, T, heads, E): rotates the pair (x_i, x_{i+E/2}) by position · θ^(−2i/E) (Su et al. 2021; LLaMA's halves).
    `positions`: a slice, or numbers (B, T)"""

    def __init__(self, config):
        super().__init__()
        pair = torch.arange(0, config.head_dim, 2, device='cpu')        # a model on device 'meta' has its tables too
        frequency = config.rope_theta ** -(pair.double() / config.head_dim)
        angle = torch.outer(torch.arange(config.block_size, device='cpu').double(), frequency)
        self.register_buffer('cos', angle.cos().float()[:, None], persistent=False)     # (block_size, 1, E/2)
        self.register_buffer('sin', angle.sin().float()[:, None], persistent=False)

    def forward(self, x, positions):
        cos, sin = self.cos[positions], self.sin[positions]
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class KVCache:
    """Keys and values (B, K, T, E) of one layer's past tokens, for generation"""
    length = 0

    def append(self, k, v):
        """Store the keys and values of new tokens, and return those of all tokens."""
        if self.length:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v, self.length = k, v, k.size(2)
        return k, v


def plain_attention(q, k, v, is_causal=False, scale=None, enable_gqa=False, dropout_p=0.0):
    """Compute F.scaled_dot_product_attention as two matrix products and a softmax. Its logits have v's dtype: in bf16 they keep
    three digits, while PyTorch's kernel computes them in fp32."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.size(1) // k.size(1), dim=1) for x in (k, v))
    q, k = q.to(v.dtype), k.to(v.dtype)                 # a rotation and a norm may have left them in fp32
    mask = q.new_full((q.size(2), k.size(2)), -math.inf).triu(1) if is_causal else q.new_zeros(())
    logits = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=scale or q.size(3) ** -0.5)
    return (F.dropout(logits.softmax(-1), dropout_p) @ v.flatten(0, 1)).unflatten(0, q.shape[:2])


class DotAttention(nn.Module):
    """softmax(qᵀk / √E) v per head"""

    def __init__(self, config):
        super().__init__()
        d, self.head_dim = config.n_embd, config.head_dim
        d_kv = config.kv_heads * self.head_dim
        self.wq = make_linear(d, d, config)
        self.wk = make_linear(d, d_kv, config)
        self.wv = make_linear(d, d_kv, config)
        self.wo = make_linear(d, d, config)
        self.q_norm, self.k_norm = (make_head_norm(config.qk_norm, config) for _ in range(2))
        self.rotary = Rotary(config) if config.pos == 'rope' else None
        self.scale, self.causal, self.grouped, self.dropout = config.logit_scale, config.causal, config.grouped, config.dropout

    def forward(self, x, cache=None):
        """x (B, T, D) → (B, T, D)"""
        q, k = self.queries_keys(x)
        y = self.mix(q, k, self.heads(self.wv(x)), cache)
        return F.dropout(self.wo(y), self.dropout, self.training)

    def heads(self, x):
        """(B, T, heads · E) → (B, T, heads, E)"""
        return x.unflatten(-1, (-1, self.head_dim))

    def queries_keys(self, x):
        """(B, T, D) → (B, T, H, E), (B, T, K, E), before RoPE"""
        return self.q_norm(self.heads(self.wq(x))), self.k_norm(self.heads(self.wk(x)))

    def mix(self, q, k, v, cache=None):
        """q (B, T, H, E), k and v (B, T, K, E) → what each token's heads read from its past, side by side, (B, T, D)"""
        if self.rotary is not None:
            start = cache.length if cache else 0
            positions = slice(start, start + q.size(1))
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if cache:
            k, v = cache.append(k, v)
        y = self.attend(q, k, v).transpose(1, 2).flatten(2)
        return y

    def attend(self, q, k, v):
        """(B, H, T, E), (B, K, S, E), (B, K, S, E) → (B, H, T, E); T = S, or T = 1 with all S tokens in its past"""
        return self.kernel(q, k, v, is_causal=self.causal and q.size(2) > 1, scale=self.scale, enable_gqa=self.grouped,
                           dropout_p=self.dropout if self.training else 0.0)

    def kernel(self, q, k, v, **more):
        """softmax(scale · qᵀk) v. On a CPU, PyTorch's kernel is slow backward for short sequences. Without gradients it is
        faster, but in bf16 an evaluation should round as training does."""
        in_bf16 = v.dtype == torch.bfloat16
        plain = (v.device.type == 'cpu' and 1 < q.size(2) and k.size(2) <= (512 if in_bf16 else 128) and 'attn_mask' not in more
                 and (in_bf16 or torch.is_grad_enabled()))
        return (plain_attention if plain else F.scaled_dot_product_attention)(q, k, v, **more)


class StableAttention(DotAttention):
    """softmax(τ SN(q)ᵀSN(k) / E^2α) v: before τ the logit is a cosine (Stable-Transformer, eq. 3)"""

    def __init__(self, config):
        super().__init__(config)
        self.q_norm, self.k_norm = StableNorm(config.head_dim, config), StableNorm(config.head_dim, config)
        tau = config.attn_tau * math.log2(config.block_size)
        self.scale = tau / config.head_dim ** (2 * config.norm_alpha)


def bf16_bits(x):
    """Return x cut to the bits of bf16, without gradient. By a mask, because torch.compile drops a cast to bf16 and back."""
    return (x.detach().float().view(torch.int32) & -65536).view(torch.float32).to(x.dtype)


class L2Attention(DotAttention):
    """softmax(−‖q − k‖² / √E) v (Kim et al. 2021).

    ‖q‖² cancels in the softmax, which leaves 2(qᵀk − ‖k‖²/2)/√E: the dot product of (q, 1, 1, 1) and (k, s₁, s₂, s₃), where the
    three s sum to −‖k‖²/2 in fp32, and each is exact in bf16. plain_attention would round the logits.
    """
    kernel = staticmethod(F.scaled_dot_product_attention)

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
    """L2 attention with W_q = W_k: k = q, also after the norm. Kim et al. (2021) prove that it is Lipschitz with the values
    X W_qᵀ W_q / √E. With W_v of its own, as here, the Jacobian grows without bound along the null space of W_q."""

    def __init__(self, config):
        super().__init__(config)
        del self.wk, self.k_norm

    def queries_keys(self, x):
        q = self.q_norm(self.heads(self.wq(x)))
        return q, q


ATTENTIONS = {'dot': DotAttention, 'stable': StableAttention, 'l2': L2Attention, 'l2_tied': L2TiedAttention}


# ----------------------------------------------------------------------------- FFN

FFNS = {            # the activation, and whether a third matrix gates it
    'gelu': (F.gelu, False),
    'gelu_tanh': (lambda x: F.gelu(x, approximate='tanh'), False),      # as OpenAI trained GPT-2
    'relu': (F.relu, False),
    'relu2': (lambda x: F.relu(x).square(), False),                     # So et al. 2021
    'swiglu': (F.silu, True),
    'geglu': (lambda x: F.gelu(x, approximate='tanh'), True),
}


class FFN(nn.Module):
    """W_2 φ(W_1 x), or gated W_2 (φ(W_1 x) ⊙ W_3 x) (Shazeer 2020)"""

    def __init__(self, config):
        super().__init__()
        d, d_ff = config.n_embd, config.d_ff or 4 * config.n_embd
        self.activation, gated = FFNS[config.ffn]
        self.w1 = make_linear(d, d_ff, config)
        self.w3 = make_linear(d, d_ff, config) if gated else None
        self.w2 = make_linear(d_ff, d, config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        y = self.activation(self.w1(x))
        if self.w3 is not None:
            y = y * self.w3(x)
        return self.dropout(self.w2(y))


# ----------------------------------------------------------------------------- the block

class Block(nn.Module):
    """x ← Post(x + Δt · Mid(f(Pre(x)))), first with f = attention, then with f = FFN. Any norm may be absent. A config that sets
    newer placements gets VariantBlock instead: an edit that should act there too belongs into both."""

    def __init__(self, config, layer):
        """`layer` counts from 1."""
        super().__init__()
        attn_alpha = config.attn_norm_alpha or config.norm_alpha
        self.attn_pre_norm = make_norm(config.attn_pre_norm, replace(config, norm_alpha=attn_alpha))
        self.attn = make_attention(config)
        self.attn_mid_norm = make_norm(config.attn_mid_norm, config)
        self.attn_post_norm = make_norm(config.attn_post_norm, config)
        self.ffn_pre_norm = make_norm(config.ffn_pre_norm, config)
        self.ffn = make_ffn(config)
        self.ffn_mid_norm = make_norm(config.ffn_mid_norm, config)
        self.ffn_post_norm = make_norm(config.ffn_post_norm, config)
        self.dt = config.branch_scale

    def forward(self, x, cache=None):
        """x (B, T, D) → (B, T, D)"""
        x = self.attn_post_norm(x + self.dt * self.attn_mid_norm(self.attn(self.attn_pre_norm(x), cache)))
        x = self.ffn_post_norm(x + self.dt * self.ffn_mid_norm(self.ffn(self.ffn_pre_norm(x))))
        return x

    def collapse(self, x, final_norm):
        """What the last block returns → what the head reads, (B, T, D)"""
        return final_norm(x)


def make_blocks(config, seed, kind=None):
    """Return the blocks, which share one RoPE table. What constructors draw depends only on the seed and the layer."""
    kind, blocks = kind or (VariantBlock if sets_any(config, BLOCK_FIELDS) else Block), nn.ModuleList()
    with torch.random.fork_rng(devices=[]):
        for layer in range(1, config.n_layer + 1):
            torch.default_generator.manual_seed(hash_seed(seed, layer))
            blocks.append(block := kind(config, layer))
            block.attn.rotary = blocks[0].attn.rotary
    return blocks


def run_blocks(blocks, x, caches=None, recompute=False):
    """The stream x (B, T, D) → the residual state behind the last block. With recompute, only each block's input is kept, and the
    backward pass computes the rest again (Chen et al. 2016)."""
    for i, block in enumerate(blocks):
        if recompute and torch.is_grad_enabled():
            x = checkpoint(block, x, use_reentrant=False)
        else:
            x = block(x, caches[i] if caches else None)
    return x


# ----------------------------------------------------------------------------- the model

class GPT(nn.Module):
    """A decoder-only Transformer: token ids → logits, and with targets their mean cross-entropy"""
    Config = GPTConfig
    recompute = False       # train.py's key

    def __init__(self, config):
        super().__init__()
        config = replace(config)                # a copy, so that __post_init__ sees edits made to the config
        self.config, self.init_seed = config, torch.randint(2 ** 63 - 1, (), device='cpu').item()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.emb_scale = Scale(config.n_embd ** 0.5) if config.emb_scale else nn.Identity()
        self.emb_gain = Gain(1, (config.mup_base_width or config.n_embd) ** 0.5) if config.emb_gain else nn.Identity()
        self.wpe = nn.Embedding(config.block_size, config.n_embd) if config.pos == 'learned' else None
        self.input_norm = make_norm(config.input_norm, config)
        self.dropout = nn.Dropout(config.dropout)
        self.h = make_blocks(config, self.init_seed)
        self.final_norm = make_norm(config.final_norm, config)
        self.head_scale = Scale(1 / config.width_growth) if config.mup_base_width else nn.Identity()
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head_gain = Gain(config.vocab_size, 1.0, config.n_embd ** -0.5) if config.unit_weights else nn.Identity()
        if config.tie_weights:
            self.lm_head.weight = self.wte.weight
        attach_aux_and_logged(self)             # add your own modules above this line
        init_weights(self)

    def hidden(self, idx, caches=None):
        """Token ids (B, T) → the residual state behind the last block. With caches, one per layer, idx continues their tokens."""
        start = caches[0].length if caches else 0
        end = start + idx.size(1)
        if end > self.config.block_size:
            raise ValueError(f'a sequence of {end} tokens is longer than block_size={self.config.block_size}')
        x = self.emb_scale(self.wte(idx))
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(start, end, device=idx.device))
        x = self.dropout(self.input_norm(self.emb_gain(x)))
        return run_blocks(self.h, x, caches, self.recompute)

    def forward(self, idx, targets=None):
        """Token ids (B, T), targets (B, T) with −1 for none → logits (B, T, vocab_size), and the mean cross-entropy in nats per
        token, None without targets. In training mode with targets the logits are None: in a compiled model they would cost
        memory."""
        x = self.hidden(idx)
        return self.output(x, targets)

    def output(self, x, targets=None):
        """The residual state behind the last block → logits and loss, as in forward"""
        x = self.h[-1].collapse(x, self.final_norm)
        logits = self.head_gain(self.lm_head(self.head_scale(x)))
        if targets is None:
            return logits, None
        if self.training and self.config.z_loss:                    # Chowdhery et al. 2022, section 5
            self.aux['z_loss'] = self.config.z_loss * at_least_fp32(logits).logsumexp(-1).square().mean()
        loss = F.cross_entropy(at_least_fp32(logits).flatten(0, 1), targets.flatten(), ignore_index=-1)
        return None if self.training else logits, loss

    @torch.no_grad()
    def after_step(self):
        """Change weights after the step, identically on all ranks. Both loops call this before a run's first step too."""
        if self.config.unit_weights:
            normalize_matrices(self)
        for block in self.h if self.config.qk_clip else ():
            block.attn.clip(self.config.qk_clip)

    @torch.no_grad()
    def sample(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None):
        """Yield the token ids (B, 1) that continue idx (B, T). temperature=0 takes the likeliest; top_k keeps the k likeliest,
        top_p the fewest whose probabilities sum to p. Beyond block_size the window slides and all positions change: the cache is
        useless then, and the last block_size tokens are computed again."""
        size = self.config.block_size
        caches = [KVCache() for _ in self.h]
        new = idx = idx[:, -size:]
        for _ in range(max_new_tokens):
            x = self.hidden(new, caches) if idx.size(1) <= size else self.hidden(idx[:, -size:])
            new = sample_token(self.output(x[:, -1])[0], temperature, top_k, top_p)
            idx = torch.cat((idx, new), dim=1)
            yield new

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None):
        """idx (B, T) → (B, T + max_new_tokens), as `sample` continues it."""
        return torch.cat((idx, *self.sample(idx, max_new_tokens, temperature, top_k, top_p)), dim=1)

    def num_params(self):
        """A tied head counts once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self):
        """Forward and backward: 6N + 12 n_layer D T (PaLM, appendix B; nanoGPT). N excludes lookup tables: wpe, and wte if the
        head is untied."""
        c = self.config
        lookups = (self.wpe.weight.numel() if self.wpe is not None else 0) + (0 if c.tie_weights else self.wte.weight.numel())
        return 6 * (self.num_params() - lookups) + 12 * c.n_layer * c.n_embd * c.block_size


def attach_aux_and_logged(model):
    """Give every module the same two dicts, aux and logged, {name: scalar tensor}. Training empties both before each micro-batch,
    adds the terms in `aux` to the loss, and writes `logged` to the log. A model inside of this one, such as a teacher, keeps its
    own."""
    aux, logged = {}, {}
    inside = {part for inner in model.modules() if inner is not model and isinstance(inner, GPT) for part in inner.modules()}
    for module in (part for part in model.modules() if part not in inside):
        if taken := {'aux', 'logged'} & vars(module).keys():
            raise ValueError(f'{type(module).__name__} has an attribute {taken.pop()}, which every module gets: rename its own')
        module.aux, module.logged = aux, logged


def sample_token(logits, temperature, top_k, top_p):
    """Draw one token id per row of logits (B, vocab_size) → (B, 1)."""
    logits = at_least_fp32(logits)
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits, ids = (logits / temperature).sort(descending=True)
    probs = logits[:, :top_k].softmax(-1)
    if top_p is not None:
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0.0)       # the first always stays
    return ids.gather(1, torch.multinomial(probs, 1))


# ============================================================================= second half: newer placements

class Scale(nn.Module):
    """x times a constant, a tensor, so that torch.compile makes one graph for the blocks of all depths"""

    def __init__(self, factor):
        super().__init__()
        self.register_buffer('factor', torch.tensor(factor, device='cpu'), persistent=False)       # never on meta

    def forward(self, x):
        return x * self.factor


class Gain(nn.Module):
    """x times a learned gain per channel, or one for all. The parameter starts at `stored` and is multiplied by start / stored,
    so that a step of AdamW, about as large as the rate, changes the gain by start / stored times as much (nGPT)."""

    def __init__(self, dim, start, stored=None):
        super().__init__()
        self.weight = nn.Parameter(torch.full((dim,), stored or start))
        self.factor = start / stored if stored else 1.0

    @property
    def gain(self):
        return self.weight if self.factor == 1 else self.factor * self.weight

    def forward(self, x):
        return x * self.gain.to(x.dtype)


GAINS = {           # LayerScale starts as in CaiT (Touvron et al. 2021), ReZero at 0 (Bachlechner et al. 2020)
    'none': lambda config: nn.Identity(),
    'layerscale': lambda config: Gain(config.n_embd, 0.1 if config.n_layer <= 18 else 1e-5 if config.n_layer <= 24 else 1e-6),
    'rezero': lambda config: Gain(1, 0.0),
}


# ----------------------------------------------------------------------------- newer norms

class WideRMSNorm(RMSNorm):
    """RMSNorm of (..., heads, E) over all heads together (OLMo 2, 2025)"""

    def normalize(self, x, gain):
        return super().normalize(x.flatten(-2), gain).unflatten(-1, x.shape[-2:])


class SeeDNorm(Norm):
    """(γ + α tanh(x·β)) ⊙ x / √(mean(x²) + ε) with learned vectors α, initialized to 1, and β, to 0 (Cai et al. 2025, eq. 3)"""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.alpha, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def normalize(self, x, gain):
        gain = gain + self.alpha.to(x.dtype) * torch.tanh(x @ self.beta.to(x.dtype)[:, None])
        return gain * F.rms_norm(x, x.shape[-1:], eps=self.eps)


class GatedNorm(RMSNorm):
    """y ⊙ σ(W_up silu(W_down y)), y = RMSNorm(x), with matrices of rank 16 (Qiu et al. 2026, section 3.4)"""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.down, self.up = nn.Linear(dim, 16, bias=False), nn.Linear(16, dim, bias=False)

    def normalize(self, x, gain):
        y = super().normalize(x, gain)
        return y * torch.sigmoid(self.up(F.silu(self.down(y))))


class DyT(Norm):
    """γ ⊙ tanh(a x) + β with a learned number a (Zhu et al. 2025)"""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.bias = nn.Parameter(torch.zeros(dim))
        self.alpha = nn.Parameter(torch.full((1,), config.norm_alpha))

    def normalize(self, x, gain):
        y = torch.tanh(self.alpha.to(x.dtype) * x)
        return torch.addcmul(self.bias.to(x.dtype), gain, y)


class Derf(DyT):
    """γ ⊙ erf(a x + s) + β with learned numbers a and s, from 0 (Chen et al. 2025, eq. 10)"""

    def __init__(self, dim, config):
        super().__init__(dim, config)
        self.shift = nn.Parameter(torch.zeros(1))

    def normalize(self, x, gain):
        y = torch.erf(self.alpha.to(x.dtype) * x + self.shift.to(x.dtype))
        return torch.addcmul(self.bias.to(x.dtype), gain, y)


NORMS |= {'dyt': DyT, 'derf': Derf, 'seednorm': SeeDNorm, 'gatednorm': GatedNorm}


class NormedLinear(nn.Linear):
    """Norm(W x), over the outputs (SimpleNorm, Chen et al. 2026)"""

    def __init__(self, n_in, n_out, config):
        super().__init__(n_in, n_out, bias=config.bias)
        self.norm = make_norm(True, config, n_out)

    def forward(self, x):
        return self.norm(super().forward(x))


# ----------------------------------------------------------------------------- newer attentions and FFNs

def unit(x, gain):
    """Return x / ‖x‖ over the last dimension, in the higher precision of x and its gain, as norms do."""
    return F.normalize(x.to(torch.promote_types(x.dtype, gain.dtype)), dim=-1)


class NGPTAttention(DotAttention):
    """softmax(√E q̂ᵀk̂) v with q̂ = s ⊙ q / ‖q‖, k̂ = s ⊙ k / ‖k‖ behind RoPE, and a learned s per channel, from 1 (nGPT,
    Loshchilov et al. 2024, arXiv:2410.01131; this and its other parts follow the authors' code)"""

    def __init__(self, config):
        super().__init__(config)
        self.qk_gain, self.scale = Gain(config.n_embd, 1.0, config.n_embd ** -0.5), config.head_dim ** 0.5

    def attend(self, q, k, v):
        s = self.qk_gain.gain.view(q.size(1), 1, -1)
        return super().attend(s * unit(q, s), s * unit(k, s), v)


ATTENTIONS |= {'ngpt': NGPTAttention}


class VariantAttention:
    """What newer placements add to each of ATTENTIONS: a norm on values and one before W_o, a gate, a sink, values of the first
    block, QK-Clip. With value_residual, forward also returns the values (B, T, K, E). `max_over_ranks` names buffers of which
    each rank needs the largest value of all ranks, before after_step."""

    def __init__(self, config):
        super().__init__(config)
        if super().forward.__func__ is not DotAttention.forward:        # it would be ignored in silence
            raise ValueError(f'attention={config.attention} has a forward of its own, and {ATTENTION_FIELDS} another: override '
                             'queries_keys, mix or attend instead')
        d = config.n_embd
        if config.qk_norm and config.qk_norm_wide:
            self.q_norm = WideRMSNorm(d, config)
            if hasattr(self, 'k_norm'):                     # l2_tied has none
                self.k_norm = WideRMSNorm(config.kv_heads * self.head_dim, config)
        self.v_norm = make_head_norm(config.v_norm, config)
        self.wg = make_linear(d, d, config) if config.attn_gate else None
        self.inner_norm = make_norm(config.sub_norm, config)
        self.v_gain, self.v1_gain = (nn.Parameter(torch.full((1,), 0.5)) if config.value_residual else None for _ in range(2))
        self.sink = nn.Parameter(torch.zeros(config.n_head)) if config.attn_sink else None
        self.value_residual = config.value_residual
        self.register_buffer('max_logits', torch.zeros(config.n_head, device='cpu') if config.qk_clip else None, persistent=False)
        self.max_over_ranks = ('max_logits',) if config.qk_clip else ()

    def forward(self, x, cache=None, v1=None):
        """x (B, T, D), and the first block's values v₁ for value_residual → (B, T, D)"""
        q, k = self.queries_keys(x)
        v = self.v_norm(self.heads(self.wv(x)))
        if self.v1_gain is not None:                        # Zhou et al. 2024, learnable ResFormer
            v = self.v_gain.to(v.dtype) * v + self.v1_gain.to(v.dtype) * v1
        y = self.mix(q, k, v, cache)
        if self.wg is not None:                             # Qiu et al. 2025, the gate behind the softmax, per channel
            y = y * torch.sigmoid(self.wg(x))
        y = F.dropout(self.wo(self.inner_norm(y)), self.dropout, self.training)
        return (y, v) if self.value_residual else y

    def attend(self, q, k, v):
        if self.max_logits is not None and self.training:
            self.track_max_logits(q, k)
        return super().attend(q, k, v) if self.sink is None else self.attend_with_sink(q, k, v)

    def attend_with_sink(self, q, k, v):
        """Attend with a first key whose logit is the head's sink, and whose value is 0. A coordinate is added for it: the sink's
        in queries, 0 in keys, and 1 in the first key. For the causal mask the first key has a query too."""
        size, first = q.size(3), int(q.size(2) > 1)
        sink = (self.sink / self.scale).to(v.dtype).view(-1, 1, 1).expand(*q.shape[:3], 1)
        q = F.pad(torch.cat((q.to(v.dtype), sink), dim=3), (0, -(size + 1) % 8, first, 0))      # kernels need a multiple of 8
        k, v = (F.pad(x.to(v.dtype), (0, q.size(3) - size, 1, 0)) for x in (k, v))
        k[:, :, 0, size] = 1.0
        return super().attend(q, k, v)[:, :, first:, :size]

    @torch.no_grad()
    def track_max_logits(self, q, k):
        """Track each head's largest logit, in the first quarter of the sequences: the kernel does not return its logits."""
        share = -(-len(q) // 4)
        logits = self.scale * q[:share] @ k[:share].repeat_interleave(q.size(1) // k.size(1), dim=1).mT
        largest = logits.tril().amax((0, 2, 3)) if self.causal else logits.amax((0, 2, 3))
        self.max_logits.copy_(torch.maximum(self.max_logits, largest))

    @torch.no_grad()
    def clip(self, tau):
        """Multiply W_q and W_k of a head by √γ, γ = min(1, τ / S) with S its largest logit since the last call. If heads share
        W_k, it takes their smallest γ (QK-Clip, Kimi Team 2025, arXiv:2507.20534, per head as in its text)."""
        root = (tau / self.max_logits).clamp(max=1).sqrt()          # 1 for a head without a positive logit
        self.max_logits.zero_()
        key_heads = self.wk.out_features // self.head_dim
        for linear, roots in ((self.wq, root), (self.wk, root.unflatten(0, (key_heads, -1)).amin(1))):
            for p in linear.parameters():
                p.mul_(roots.repeat_interleave(self.head_dim).view(-1, *(1,) * (p.dim() - 1)))


class VariantFFN(FFN):
    """W_2 Norm(φ(s₁ ⊙ W_1 x)), gated by s₃ ⊙ W_3 x, with the norm of sub_norm, and nGPT's learned gains s"""

    def __init__(self, config):
        super().__init__(config)
        d, d_ff = config.n_embd, config.d_ff or 4 * config.n_embd
        self.w1_gain = Gain(d_ff, d ** 0.5, 1.0) if config.unit_weights else nn.Identity()
        self.w3_gain = Gain(d_ff, d ** 0.5, 1.0) if config.unit_weights and self.w3 is not None else nn.Identity()
        self.inner_norm = make_norm(config.sub_norm, config, d_ff)

    def forward(self, x):
        y = self.activation(self.w1_gain(self.w1(x)))
        if self.w3 is not None:
            y = y * self.w3_gain(self.w3(x))
        return self.dropout(self.w2(self.inner_norm(y)))


ATTENTION_FIELDS = 'qk_norm_wide v_norm attn_sink attn_gate sub_norm value_residual qk_clip'
VARIANT_ATTENTIONS = {name: type(f'Variant{kind.__name__}', (VariantAttention, kind), {}) for name, kind in ATTENTIONS.items()}


def make_attention(config):
    """Return the config's attention, with the parts of VariantAttention if it sets one of their fields."""
    return (VARIANT_ATTENTIONS if sets_any(config, ATTENTION_FIELDS) else ATTENTIONS)[config.attention](config)


def make_ffn(config):
    return (VariantFFN if config.sub_norm or config.unit_weights else FFN)(config)


def normalize_matrices(model):
    """Give each row or column of the matrices that has n_embd elements the length 1 (nGPT)."""
    for name, p in model.named_parameters():
        path = module_path(name)
        if p.dim() == 2 and path.startswith(('wte', 'lm_head', 'attn.w', 'ffn.w')):
            p.copy_(F.normalize(p, dim=0 if path in ('attn.wo', 'ffn.w2') else 1))


# ----------------------------------------------------------------------------- newer blocks

class State(NamedTuple):
    """What VariantBlocks pass on: the residual state x, x₀ in front of the first block, the first block's values v₁"""
    x: torch.Tensor
    x0: torch.Tensor | None = None      # for embedding_skip
    v1: torch.Tensor | None = None      # for value_residual


BLOCK_FIELDS = ('norm_depth_scale mix_ln skip_scale residual parallel_ffn b2t branch_gain value_residual embedding_skip')


class VariantBlock(Block):
    """x ← Post(α x + Δt · gain · Mid(f(Pre(x)))), first with f = attention, then with f = FFN, where `residual` may replace
    α x + Δt f. At the defaults of BLOCK_FIELDS it equals Block."""

    def __init__(self, config, layer):
        if layer <= config.mix_ln * config.n_layer:             # Mix-LN (Li et al. 2024): the first blocks are Post-LN
            config = replace(config, attn_pre_norm=False, ffn_pre_norm=False, attn_post_norm=True, ffn_post_norm=True)
        super().__init__(config, layer)
        self.attn_gain = GAINS[config.branch_gain](config)
        self.attn_residual = RESIDUALS[config.residual](config, 2 * layer - 2)
        self.ffn_gain = GAINS[config.branch_gain](config)
        self.ffn_residual = RESIDUALS[config.residual](config, 2 * layer - 1)
        self.attn_pre_scale, self.ffn_pre_scale = (             # LayerNorm Scaling (Sun et al. 2025)
            Scale(layer ** -0.5) if config.norm_depth_scale and on else nn.Identity()
            for on in (config.attn_pre_norm, config.ffn_pre_norm))
        self.x_gain, self.x0_gain = (nn.Parameter(torch.full((1,), start)) if config.embedding_skip else None
                                     for start in (1.0, 0.0))
        self.value_residual, self.b2t, self.parallel_ffn = config.value_residual, config.b2t, config.parallel_ffn
        self.passes_state = config.value_residual or config.embedding_skip
        self.is_first, self.is_last = layer == 1, layer == config.n_layer
        if layer == 1:                                          # its values are v₁
            self.attn.v_gain = self.attn.v1_gain = None

    def attn_branch(self, x, v1=None, cache=None):
        """The residual state → what attention adds to it before Δt, f (B, T, D); and with value_residual its values, else None"""
        f = self.attn_pre_scale(self.attn_pre_norm(self.attn_residual.read(x)))
        f, v = self.attn(f, cache, v1) if self.value_residual else (self.attn(f, cache), None)
        return self.attn_gain(self.attn_mid_norm(f)), v

    def ffn_branch(self, x):
        """The residual state → what the FFN adds to it before Δt, f (B, T, D)"""
        if self.parallel_ffn:                                   # its own norm is absent then
            x = self.attn_pre_scale(self.attn_pre_norm(x))
        f = self.ffn_pre_scale(self.ffn_pre_norm(self.ffn_residual.read(x)))
        return self.ffn_gain(self.ffn_mid_norm(self.ffn(f)))

    def forward(self, x, cache=None):
        """The residual state → the residual state, from the stream (B, T, D) on. With x₀ or v₁ it is a State between blocks."""
        x, x0, v1 = x if isinstance(x, State) else (self.attn_residual.expand(x) if self.is_first else x, None, None)
        if self.x0_gain is not None:
            x0 = x if x0 is None else x0
            x = self.x_gain.to(x.dtype) * x + self.x0_gain.to(x.dtype) * x0
        x_in = x
        f, v = self.attn_branch(x, v1, cache)
        x = self.attn_post_norm(self.attn_residual(x, f, self.dt))
        x = self.ffn_residual(x, self.ffn_branch(x_in if self.parallel_ffn else x), self.dt)
        x = self.ffn_post_norm(x + x_in if self.b2t else x)
        return State(x, x0, v if v1 is None else v1) if self.passes_state and not self.is_last else x

    def collapse(self, x, final_norm):
        return self.ffn_residual.collapse(x, final_norm)


# ----------------------------------------------------------------------------- residual streams

SKIP_SCALES = {     # α
    'one': lambda n_layer: 1.0,
    'deepnorm': lambda n_layer: (2 * n_layer) ** 0.25,  # Wang et al. 2022, decoder-only; see init_weight too
    'keel': lambda n_layer: 2.0 * n_layer,              # Chen and Wei 2026
}


class Residual(nn.Module):
    """x ← α x + Δt f, behind branch number `branch` of the model, from 0. The residual state is the stream x (B, T, D), or in
    subclasses several streams (B, T, n, D): `expand` makes it from the embedding, a branch gets what `read` returns, `forward`
    adds the branch's output f (B, T, D), times Δt, which VariantBlock gives, and the head gets what `collapse` returns."""

    def __init__(self, config, branch):
        super().__init__()
        self.streams = config.streams
        alpha = SKIP_SCALES[config.skip_scale](config.n_layer)
        self.skip = Scale(alpha) if alpha != 1 else nn.Identity()

    def expand(self, x):
        return x

    def read(self, x):
        return x

    def forward(self, x, f, dt):
        return torch.add(self.skip(x), f, alpha=dt)

    def collapse(self, x, final_norm):
        return final_norm(x)


class GPAS(Residual):
    """y − silu(g) sg(y), y = x + Δt f, with a learned number g from 0; no gradient flows through sg (Chen et al. 2025)"""

    def __init__(self, config, branch):
        super().__init__(config, branch)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x, f, dt):
        y = super().forward(x, f, dt)
        return y - F.silu(self.gate).to(y.dtype) * y.detach()


class NGPTResidual(Residual):
    """h ← N(N(h) + Δt |α| ⊙ (N(f) − N(h))), N(x) = x / ‖x‖, with a learned α per channel, from 0.05 (nGPT)"""

    def __init__(self, config, branch):
        super().__init__(config, branch)
        self.rate = Gain(config.n_embd, 0.05, config.n_embd ** -0.5)

    def forward(self, h, f, dt):
        h, f = (unit(x, self.rate.weight) for x in (h, f))
        return F.normalize(torch.add(h, self.rate.gain.abs() * (f - h), alpha=dt), dim=-1)


class ResiDual(Residual):
    """Streams x ← Norm(x + Δt f), which branches read, and s ← s + Δt f; the head reads x + FinalNorm(s) (Xie et al. 2023)"""

    def __init__(self, config, branch):
        super().__init__(config, branch)
        self.norm = make_norm(True, config)

    def expand(self, x):
        return torch.stack((x, x), dim=-2)

    def read(self, xs):
        return xs.select(-2, 0)

    def forward(self, xs, f, dt):
        x, s = super().forward(xs, f.unsqueeze(-2), dt).unbind(-2)
        return torch.stack((self.norm(x).to(s.dtype), s), dim=-2)

    def collapse(self, xs, final_norm):
        x, s = xs.unbind(-2)
        return x + final_norm(s)


class SiameseNorm(Residual):
    """Two streams X and Y (B, T, 2, D): a branch of block l reads N(X) + N'(Y), X ← N(X) + Δt f / √(2l), Y ← Y + Δt f, and the
    head reads as branches do (Li et al. 2026, their code)"""
    expand = ResiDual.expand

    def __init__(self, config, branch):
        super().__init__(config, branch)
        self.x_norm, self.y_norm = make_norm(True, config), make_norm(True, config)
        self.x_scale = Scale((2 * (branch // 2 + 1)) ** -0.5)
        self.head = SiameseNorm(config, branch + 1) if branch == 2 * config.n_layer - 1 else None

    def read(self, xy):
        x, y = xy.unbind(-2)
        return self.x_norm(x) + self.y_norm(y)

    def forward(self, xy, f, dt):
        x, y = xy.unbind(-2)
        x, y = super().forward(self.x_norm(x), self.x_scale(f), dt), super().forward(y, f, dt)
        xy = torch.stack((x.to(y.dtype), y), dim=-2)
        return xy if self.head is None else self.head.read(xy)


class AttentionResiduals(Residual):
    """The embedding and the outputs of all k branches so far, V (B, T, k + 1, D): a branch reads Σ_i a_i V_i with
    a = softmax_i(w·RMSNorm(V_i)) and a learned w from 0, and so does the head (full AttnRes, Kimi Team 2026, eq. 2–4)"""

    def __init__(self, config, branch):
        super().__init__(config, branch)
        self.norm, self.query = RMSNorm(config.n_embd, config), nn.Parameter(torch.zeros(config.n_embd))
        self.head = AttentionResiduals(config, branch + 1) if branch == 2 * config.n_layer - 1 else None

    def expand(self, x):
        return x.unsqueeze(-2)

    def read(self, values):
        a = (self.norm(values) @ self.query).softmax(-1)
        return (a.unsqueeze(-1) * values).sum(-2)

    def forward(self, values, f, dt):
        values = torch.cat((values, dt * f.unsqueeze(-2)), dim=-2)
        return values if self.head is None else self.head.read(values)


class Streams(Residual):
    """n streams H (B, T, n, D): a branch reads Σ_i a_i H_i, H_j ← b_j Δt f + Σ_i A_ji H_i, and the head reads their sum.
    Subclasses have methods weights(H) → a (B, T, n), b (B, T, n), m, and mixing(m) → A (B, T, n, n)."""

    def expand(self, x):
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, -1)

    def read(self, h):
        return (self.weights(h)[0].unsqueeze(-1) * h).sum(-2)

    def forward(self, h, f, dt):
        _, b, m = self.weights(h)
        return torch.add(self.mixing(m) @ h, b.unsqueeze(-1) * f.unsqueeze(-2), alpha=dt)

    def collapse(self, h, final_norm):
        return final_norm(h.sum(-2))


class HyperConnections(Streams):
    """a_i = a'_i + s tanh(N(H_i)·w), and so on for b and A (dynamic hyper-connections, Zhu et al. 2024, eq. 10–13). At the start,
    branch k reads stream k mod n and adds to all."""

    def __init__(self, config, branch):
        super().__init__(config, branch)
        n, d = config.streams, config.n_embd
        self.norm = make_norm(True, config)
        self.a = nn.Parameter(torch.cat((torch.eye(n)[:, [branch % n]], torch.eye(n)), dim=1))     # (n, 1 + n): a, Aᵀ
        self.b = nn.Parameter(torch.ones(n))
        self.wa, self.wb = nn.Parameter(torch.zeros(d, n + 1)), nn.Parameter(torch.zeros(d))
        self.sa, self.sb = nn.Parameter(torch.full((1,), 0.01)), nn.Parameter(torch.full((1,), 0.01))

    def weights(self, h):
        normed = self.norm(h)
        a = self.a + self.sa * torch.tanh(normed @ self.wa)                     # (B, T, n, 1 + n)
        return a[..., 0], self.b + self.sb * torch.tanh(normed @ self.wb), a[..., 1:]

    def mixing(self, m):
        return m.mT


class ManifoldHyperConnections(Streams):
    """0 < a < 1, 0 < b < 2 and a doubly stochastic A: mixing keeps the sum of the streams. The logits of a, b and A are
    c + s RMSNorm(vec H) W (mHC, Xie et al. 2025, eq. 7–9). The paper is silent on c's start; as in mHC-lite's code, branch k
    reads and writes mostly stream k mod n, and A is almost the identity."""

    def __init__(self, config, branch, identity=None):
        super().__init__(config, branch)
        n, self.eps = config.streams, config.norm_eps
        own = 2 * torch.eye(n)[branch % n] - 1
        identity = torch.eye(n).flatten() if identity is None else identity     # 1 for logits that are large where A is I, else 0
        self.c = nn.Parameter(torch.cat((own, own, 8 * identity - 8)))
        self.w = nn.Parameter(torch.zeros(n * config.n_embd, len(self.c)))
        self.s = nn.Parameter(torch.full((3,), 0.01))
        self.sizes = n, n, len(self.c) - 2 * n

    def weights(self, h):
        vec = h.flatten(-2)
        parts = (F.rms_norm(vec, vec.shape[-1:], eps=self.eps) @ self.w).split(self.sizes, dim=-1)
        a, b, m = (c + s * part for c, s, part in zip(self.c.split(self.sizes), self.s, parts))
        return torch.sigmoid(a), 2 * torch.sigmoid(b), m

    def mixing(self, m):
        """Return a = exp(m), columns and rows divided by their sums in turn, 20 times (Sinkhorn and Knopp 1967)"""
        m = m.unflatten(-1, (self.streams, -1))
        a = (m - m.amax((-2, -1), keepdim=True)).exp()
        for _ in range(20):
            a = a / a.sum(-2, keepdim=True)
            a = a / a.sum(-1, keepdim=True)
        return a


class MHCLite(ManifoldHyperConnections):
    """mHC with A = Σ_k softmax_k(m) P_k over all n! permutation matrices P_k (mHC-lite, Yang and Gao 2026, eq. 4–5)"""

    def __init__(self, config, branch):
        permutations = torch.tensor(list(itertools.permutations(range(config.streams))), device='cpu')      # never on meta
        super().__init__(config, branch, identity=torch.eye(1, len(permutations)).flatten())                # it comes first
        self.register_buffer('permutations', F.one_hot(permutations).flatten(1).float(), persistent=False)   # (n!, n · n)

    def mixing(self, m):
        return (m.softmax(-1) @ self.permutations.to(m.dtype)).unflatten(-1, (self.streams, -1))


RESIDUALS = {'add': Residual, 'gpas': GPAS, 'ngpt': NGPTResidual, 'dual': ResiDual, 'siamese': SiameseNorm,
             'attnres': AttentionResiduals, 'hyper': HyperConnections, 'mhc': ManifoldHyperConnections, 'mhc_lite': MHCLite}


# ============================================================================= how parameters are named and started

class Row(NamedTuple):
    """Block type, init kind and decay of a module's parameters."""
    type: str               # block type: the keys r_<type> and wd_<type> of train.py follow
    init: str = ''          # how init_weight draws it: embedding | head | matrix | input | constructor: as the constructor does
    decays: bool = True     # whether weight decay applies (two-dimensional parameters only)
    muon: bool = False      # whether Muon orthogonalizes its `weight`


def MATRIX(type):
    return Row(type, 'matrix', muon=True)


PARAMS = {          # by a module's path in the model or in a block; a row holds for what is inside of the module too
    'wte': Row('emb', 'embedding'), 'wpe': Row('pos', 'embedding'), 'lm_head': Row('head', 'head'),
    'attn.wq': MATRIX('qk'), 'attn.wk': MATRIX('qk'),
    'attn.wv': MATRIX('vo'), 'attn.wo': MATRIX('vo'), 'attn.wg': MATRIX('vo'),
    'ffn.w1': MATRIX('ffn'), 'ffn.w2': MATRIX('ffn'), 'ffn.w3': MATRIX('ffn'),
    'norm': Row('norm', decays=False), 'norm.down': MATRIX('mix'), 'norm.up': MATRIX('mix'),
    'attn_residual': Row('gain', decays=False), 'ffn_residual': Row('gain', decays=False),
    **{f'{branch}_residual.{w}': Row('mix') for branch in ('attn', 'ffn') for w in ('w', 'wa', 'wb')},
}
GPTConfig.params = PARAMS


def module_path(name):
    """Return the path of a parameter's module in the model or in a block: 'h.3.attn.wq.weight' → 'attn.wq'. Indices are dropped.
    A parameter that is not called weight or bias counts as a module: 'h.3.x_gain' → 'x_gain'. A module whose name ends in norm
    is a norm, wherever it stands: 'h.3.attn_pre_norm.down.weight' → 'norm.down'."""
    parts = [part for part in name.removeprefix('h.').split('.') if not part.isdigit()]
    path = '.'.join(parts[:-1] if parts[-1] in ('weight', 'bias') else parts)
    _, norm, module = f'{path}.'.rpartition('norm.')
    return (norm + module).rstrip('.')


def row_of(name, table=PARAMS):
    """Return the entry for the longest matching prefix of the parameter's module path; otherwise a gain's."""
    path = module_path(name)
    while path and path not in table:
        path = path.rpartition('.')[0]
    return table.get(path) or Row('gain', decays=False)


def block_type(name, table=PARAMS):
    return row_of(name, table).type


def check_rows(model, table=PARAMS):
    """Raise ValueError for a parameter of two dimensions without a row, and for a linear map or an embedding whose row does not
    say how it starts."""
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(prefix, recurse=False):
            if not p.dim():
                raise ValueError(f'{name} has no dimension, by which FSDP and Adam-mini split it: use torch.full((1,), …)')
            path = module_path(name)
            has_row = any(path == key or path.startswith(f'{key}.') for key in table)
            own = not isinstance(module, (nn.Linear, nn.Embedding)) and (p.dim() < 2 or not row_of(name, table).init)
            starts = own or path in table and table[path].init or row_of(name, table).init == 'constructor'
            if p.dim() > 1 and not has_row or not starts:
                raise ValueError(f'{name} {tuple(p.shape)} has no row that says how it starts: add one to PARAMS in model.py, '
                                 f"such as  {path!r}: MATRIX('ffn')")


INIT_STD = {        # of an (n_out, n_in) matrix
    'gpt2': lambda n_out, n_in: 0.02,
    'normal': lambda n_out, n_in: 0.02,
    'torchtitan': lambda n_out, n_in: 0.02,
    'xavier': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'xavier_trunc': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
    'stable': lambda n_out, n_in: 1 / (math.sqrt(n_in) + math.sqrt(n_out)),
    'magneto': lambda n_out, n_in: math.sqrt(2 / (n_in + n_out)),
}


def hash_seed(seed, what):
    """Return the seed of this name or number, the same on every machine: Python's hash of a string changes with the process."""
    return int.from_bytes(hashlib.blake2b(f'{seed} {what}'.encode(), digest_size=8).digest(), 'big')


@torch.no_grad()
def init_weight(name, shape, config, seed):
    """Return the parameter `name` as it starts: whole, in fp32, on the CPU, drawn by a generator of its own, so that an edit that
    adds a module changes no other weight. Biases are 0, embeddings N(0, emb_std²), matrices (n_out, n_in) and the head
    N(0, (init_gain · s)²) with s from INIT_STD and these factors."""
    c, kind, module = config, row_of(name, config.params).init, module_path(name)
    p = torch.zeros(shape)
    generator = torch.Generator().manual_seed(hash_seed(seed, name))
    if module == 'wte' and c.tie_weights and c.emb_init == 'head':
        kind = 'head'
    if name.endswith('.bias'):
        return p
    if kind == 'embedding':
        return p.normal_(std=c.emb_std, generator=generator)
    n_out, n_in = shape
    if c.fused_qkv_init and module in ('attn.wq', 'attn.wk', 'attn.wv'):       # one matrix with the rows of all three
        n_out = c.n_embd + (1 if c.attention == 'l2_tied' else 2) * c.kv_heads * c.head_dim
    # muP: s is that of the matrix in the base model, and in the blocks divided by the root of n_in's growth (Yang et al. 2022,
    # table 8). Sides that are tokens or pixels do not grow.
    width_ratio_out = c.width_growth if kind in ('matrix', 'input') else 1.0
    width_ratio_in = c.width_growth if kind != 'input' else 1.0
    std = c.init_gain * INIT_STD[c.init](n_out / width_ratio_out, n_in / width_ratio_in)
    if kind == 'matrix':
        std *= width_ratio_in ** -0.5
    if c.init == 'gpt2' and module in ('attn.wo', 'ffn.w2'):                    # they write to the stream (Radford et al. 2019)
        std *= (2 * c.n_layer / c.depth_growth) ** -0.5
    if c.init == 'torchtitan' and module in ('attn.wo', 'ffn.w2', 'ffn.w3'):    # by the layer, from 1 (Liang et al. 2024)
        std *= (2 * (int(name.split('.')[1]) + 1) / c.depth_growth) ** -0.5
    elif c.init == 'torchtitan' and kind == 'head':
        std = c.init_gain * (n_in / width_ratio_in) ** -0.5
    if module in ('attn.wv', 'attn.wo', 'ffn.w1', 'ffn.w2', 'ffn.w3'):
        std *= (8 * c.n_layer) ** -0.25 if c.skip_scale == 'deepnorm' else 1.0  # Wang et al. 2022
        std *= math.log(2 * c.n_layer) ** 0.5 if c.init == 'magneto' else 1.0   # Wang et al. 2022, Magneto, for decoders
    if c.init == 'xavier_trunc':                # cut at two standard deviations, then scaled back to std
        edge = math.erf(2 ** 0.5)                       # P(|z| < 2); 0.8796 is the std of N(0, 1) after the cut
        return p.uniform_(-edge, edge, generator=generator).erfinv_().mul_(2 ** 0.5 * std / 0.8796256610342398)
    return p.normal_(std=std, generator=generator)


@torch.no_grad()
def init_weights(model):
    """Fill the weights and biases of the modules whose rows in PARAMS say how they start."""
    table = model.config.params
    check_rows(model, table)
    for name, p in model.named_parameters():
        row = table.get(module_path(name))
        if row and row.init not in ('', 'constructor') and not p.is_meta:
            p.copy_(init_weight(name, p.shape, model.config, model.init_seed))


# ============================================================================= which values go together

CHOICES = dict(norm=NORMS, norm_gain=('learned', 'zero_centred', 'scalar', 'none'), attention=ATTENTIONS, ffn=FFNS,
               pos=('learned', 'rope'), init=INIT_STD, emb_init=('normal', 'head'), skip_scale=SKIP_SCALES, residual=RESIDUALS,
               branch_gain=GAINS)
LOWEST = dict.fromkeys(('n_layer', 'n_head', 'n_embd', 'block_size', 'vocab_size', 'streams'), 1) | dict.fromkeys((
    'dropout', 'norm_alpha', 'attn_norm_alpha', 'norm_eps', 'mix_ln', 'init_gain', 'emb_std', 'qk_clip', 'z_loss'), 0)  # as ints


def sets_any(config, names):
    """Return whether a field of these names has another value than its default."""
    return any(getattr(config, f.name) != f.default for f in fields(config) if f.name in names.split())


def require(config, holds, names, demand):
    """Raise ValueError with the values of these fields, and what is demanded of them, unless it holds."""
    if not holds:
        raise ValueError(f'{", ".join(f"{name}={getattr(config, name)!r}" for name in names.split())}: {demand}')


def check_types(config):
    """Raise ValueError for a field with a value of another type, outside its choices, or too small."""
    for f in fields(config):
        value, low = getattr(config, f.name), LOWEST.get(f.name, 0 if f.type is int else -math.inf)
        kinds = (int, float) if f.type is float else (f.type,)
        require(config, type(value) in kinds, f.name, f'must be of type {f.type.__name__}')
        if f.name in CHOICES:
            require(config, value in CHOICES[f.name], f.name, f'choose one of {", ".join(CHOICES[f.name])}')
        if f.type in (int, float):
            require(config, value >= low, f.name, f'must be at least {low}')


def check_config(c):
    """Raise ValueError for fields that exclude each other."""
    one_stream, mup = c.residual in ('add', 'gpas'), c.mup_base_width > 0
    for holds, names, demand in (
        (c.dropout < 1, 'dropout', 'must be below 1'),
        (max(c.norm_alpha, c.attn_norm_alpha, c.mix_ln) <= 1, 'norm_alpha attn_norm_alpha mix_ln', 'must be at most 1'),
        (c.n_embd % c.n_head == 0, 'n_embd n_head', 'the heads must divide the width'),
        (c.n_head % c.kv_heads == 0, 'n_head n_kv_head', 'the key/value heads must divide the heads'),
        (c.attention not in ('l2_tied', 'ngpt') or not c.grouped, 'attention n_head n_kv_head', 'needs n_kv_head=0'),
        (c.pos != 'rope' or c.head_dim % 2 == 0, 'pos n_embd n_head', 'RoPE rotates pairs: the head dimension must be even'),
        (c.attention not in ('stable', 'ngpt') or not c.qk_norm_wide, 'attention qk_norm_wide', 'use at most one of them'),
        (not c.attn_sink or c.attention in ('dot', 'stable'), 'attn_sink attention', 'a sink needs attention=dot or stable'),
        (not c.qk_clip or c.attention == 'dot' and not (c.qk_norm or c.linear_norm), 'qk_clip attention qk_norm linear_norm',
         'QK-Clip needs attention=dot and no norm behind W_q and W_k, which undoes the clipping'),
        (c.residual == 'add' or c.skip_scale == 'one', 'residual skip_scale', 'use residual=add, or skip_scale=one'),
        (one_stream or not (c.attn_post_norm or c.ffn_post_norm or c.mix_ln or c.b2t),
         'residual attn_post_norm ffn_post_norm mix_ln b2t', 'a PostNorm or b2t needs residual=add or gpas'),
        (c.residual != 'mhc_lite' or c.streams <= 6, 'residual streams', 'must be at most 6: it mixes streams! permutations'),
        (not c.parallel_ffn or c.residual == 'add' and c.skip_scale == 'one' and not (
            c.ffn_pre_norm or c.attn_post_norm or c.mix_ln or c.b2t),
         'parallel_ffn residual skip_scale ffn_pre_norm attn_post_norm mix_ln b2t',
         'parallel_ffn needs residual=add, skip_scale=one and none of the others'),
        (not mup or one_stream and c.norm != 'gatednorm' and c.attention != 'ngpt' and not c.unit_weights,
         'mup_base_width residual norm attention unit_weights',
         'muP needs residual=add or gpas, no gatednorm and nothing of nGPT: nobody has derived their rates'),
        (mup == (c.mup_base_head_dim > 0), 'mup_base_width mup_base_head_dim', "set both or neither: state the base's heads"),
        (not c.mup_base_depth or c.skip_scale == 'one' and not c.norm_depth_scale, 'mup_base_depth skip_scale norm_depth_scale',
         'use one rule for the depth'),
    ):
        require(c, holds, names, demand)
