# Pre-LN: the GPT-2 of nanoGPT, x + f(LN(x)) (the baseline of all four papers); in vision.train the ViT of timm
# This file sets every field of the architecture but the sizes. The other files here show in what they differ.
# For images it follows timm's ViT where that differs from nanoGPT's GPT, as do the other files here.
_vit = 'patch_size' in globals()        # a key of vision.train alone
bias = _vit
if not _vit:
    tie_weights = True
    emb_scale = False
    emb_gain = False
norm = 'layernorm'
norm_gain = 'learned'
norm_alpha = 0.5
attn_norm_alpha = 0.0
norm_eps = 1e-6 if _vit else 1e-5
input_norm = False
attn_pre_norm = True
ffn_pre_norm = True
mid_norm = False                # attention and FFN
post_norm = False               # attention and FFN
sub_norm = False
qk_norm = False
qk_norm_wide = False
v_norm = False
linear_norm = False
final_norm = True
norm_depth_scale = False
mix_ln = 0.0
residual_scale = 1.0
skip_scale = 'one'
residual = 'add'
streams = 4
parallel_ffn = False
b2t = False
branch_gain = 'none'
value_residual = False
embedding_skip = False
attention = 'dot'
attn_tau = 1.618
attn_gate = False
qk_clip = 0.0
ffn = 'gelu'
pos = 'learned'
rope_theta = 10000.0
init = 'xavier_trunc' if _vit else 'gpt2'     # ViT: the truncated Xavier of DNT, table 4, see s1.py
init_gain = 1.0
unit_weights = False
emb_std = 0.02
fused_qkv_init = _vit                   # timm has W_q, W_k and W_v in one matrix; under gpt2 this makes no difference
