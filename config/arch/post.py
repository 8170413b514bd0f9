# Post-LN: the Transformer of 2017, LN(x + f(x)), and no norm before the head (LN stability, section 2)
include('config/arch/pre.py')
attn_pre_norm = False
ffn_pre_norm = False
post_norm = True
final_norm = False
