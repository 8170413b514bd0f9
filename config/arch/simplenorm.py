# SimpleNorm: a norm on the output of every linear map of a block, and none before the branches (SimpleGPT, Chen et al. 2026)
# From the paper's abstract and summaries; we have not seen its code. The norm before the head is kept.
include('config/arch/s1.py')
attn_pre_norm = False
ffn_pre_norm = False
linear_norm = True
