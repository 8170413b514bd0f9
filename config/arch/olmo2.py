# OLMo 2: norms behind the branches only, x + RMSNorm(f(x)), and QKNorm over all heads together (OLMo 2, 2025)
include('config/arch/llama.py')
attn_pre_norm = False
ffn_pre_norm = False
mid_norm = True
qk_norm = True
qk_norm_wide = True
rope_theta = 500000.0
