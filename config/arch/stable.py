# Stable-Transformer: Pre-LN with StableNorm, StableAtten and StableInit (Stable-Transformer, equations 1 to 3)
# α is 0.25 for vision (appendix J). For language the paper gives none; 0.475 is its example (section 1, appendix M).
# ε is 1e-8 inside the mean of squares: 7.7e-6 beside ‖x‖² at a width of 768. Section 3.2 calls 1e-5 there reasonable, and Code 1
# adds 1e-8 to ‖x‖, outside of the root.
# Equation 3 norms queries and keys over the head dimension, as here. The paper's Code 1 norms dimension 2 of
# (batch, head, token, head dimension), which are the tokens; that looks like a slip.
include('config/arch/pre.py')
norm = 'stablenorm'
norm_alpha = 0.25 if _vit else 0.475
norm_eps = 1e-8
attention = 'stable'
init = 'stable'
# Code 1 draws every linear map by StableInit, and W_q, W_k, W_v as one matrix. It shows no head and no embedding; in nanoGPT, on
# which the paper builds, the head is the embedding, and is drawn last.
emb_init = 'head'
fused_qkv_init = True
