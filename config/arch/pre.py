# Pre-LN, the GPT-2 of nanoGPT: x + f(LN(x)) (the baseline of all four papers)
# This file sets every field of the architecture but the sizes. The other files here show in what they differ.
bias = False
tie_weights = True
norm = 'layernorm'
norm_alpha = 0.5
norm_eps = 1e-5
input_norm = False
attn_pre_norm = True
ffn_pre_norm = True
mid_norm = False
post_norm = False
qk_norm = False
final_norm = True
residual_scale = 1.0
attention = 'dot'
attn_tau = 1.618
ffn = 'gelu'
pos = 'learned'
rope_theta = 10000.0
init = 'gpt2'
init_gain = 1.0
