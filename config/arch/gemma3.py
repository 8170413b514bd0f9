# Gemma 3: Peri-LN with zero-centred gains, QKNorm, GeGLU, embeddings times √n_embd (Gemma 3, 2025)
# Not in it: local attention in five blocks of six, and the θ of the others' RoPE, 1e6 (--rope_theta=1e6); n_kv_head counts as a
# size. In transformers a head's dimension does not depend on the width: it is 256, and at 27B 128, with logits divided by √168.
# Here it is n_embd / n_head.
include('config/arch/llama.py')
if not _vit:
    tie_weights = True
    emb_scale = True
mid_norm = True
norm_gain = 'zero_centred'
qk_norm = True
ffn = 'geglu'
