# ResiDual: a Post-LN stream, which branches read, beside a running sum of the branches, both for the head (Xie et al. 2023)
# The paper's models translate; the rest here is nanoGPT's. Its scaling against overflow in fp16 is left out.
include('config/arch/pre.py')
attn_pre_norm = False
ffn_pre_norm = False
residual = 'dual'
