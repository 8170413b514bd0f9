# s4: how this entry differs from config/track/laptop.py. lab.track wrote this file; do not edit it.
_commit = '67e13dde48a0b6a3a02dee90bf57b64f9088b1dd'      # of main; its code, with code.patch if there is one, trains the runs
_date = '2026-11-25'
norm = 'rmsnorm'
norm_eps = 1e-08
input_norm = True
attn_mid_norm = True
ffn_mid_norm = True
qk_norm = True
init = 'xavier'
init_gain = 1.0
emb_std = 0.0
fused_qkv_init = True
