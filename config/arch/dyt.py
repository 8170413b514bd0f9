# DyT: Pre-LN with γ tanh(a x) + β instead of LayerNorm (Zhu et al. 2025)
# It starts as in the code of Derf's authors, who compare the two in nanoGPT (zlab-princeton/Derf, language model/
# model_derf.patch): tok + pos times a learned number from √n_embd, and a = 1. Their a has a value each for attention, FFN and the
# final norm; those of their runs are not published. DyT's code for LLaMA (jiachenzhu/DyT) has the same number on the tokens, no
# β, and decays all parameters. Its commands have a = 0.8 for attention and 0.2 elsewhere at 7B, less above:
# --attn_norm_alpha=0.8 --norm_alpha=0.2
# For images neither multiplies the embedding, and a starts at 0.5.
# It lags in the size of train_quick.py: after 500 iterations by AdamW, with one seed, it has 3.19, 3.00 and 2.80 nats at 5e-4,
# 1e-3 and 2e-3, where pre.py has 1.95 at 8e-3.
include('config/arch/pre.py')
norm = 'dyt'
if not _vit:
    norm_alpha = 1.0
    emb_gain = True
