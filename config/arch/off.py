# No norm: x + f(x), LN Off in the paper (LN stability, table 1)
include('config/arch/pre.py')
attn_pre_norm = False
ffn_pre_norm = False
final_norm = False
