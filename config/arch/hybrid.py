# HybridNorm: norms on queries, keys and values, and one Post-Norm a block, after attention (Zhuo et al. 2025)
# Its text norms the input of the FFN and keeps the normed x on the skip, FFN(Norm(y)) + Norm(y) with y = x + attn(x). This is
# x ← Norm(x + attn(x)), x ← x + FFN(x), as here and in its code.
include('config/arch/pre.py')
norm = 'rmsnorm'
attn_pre_norm = False
ffn_pre_norm = False
attn_post_norm = True
qk_norm = True
v_norm = True
