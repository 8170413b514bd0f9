# S1: DNT's standard Transformer, Pre-LN with RMSNorm and Xavier initialization (DNT, figure 6, tables 4 and 5)
include('config/arch/pre.py')
# DNT gives no ε; 1e-8 is our choice. It does not say what truncated Xavier does to the standard deviation either: here the cut
# distribution is scaled to that of Xavier, as timm's variance_scaling_ does. timm's trunc_normal_tf_ leaves 0.88 of it.
norm = 'rmsnorm'
norm_eps = 1e-8
init = 'xavier_trunc' if _vit else 'xavier'
# DNT's code is not public. This is how nanoGPT's code starts with Xavier weights: it ties the embedding to the head before it
# draws them, so that the embedding starts as a head, and W_q, W_k, W_v are one matrix. The latter holds for timm's ViT too.
emb_init = 'head'
fused_qkv_init = True
