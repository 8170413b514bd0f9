# Gemma 3: Peri-LN with zero-centred gains, QKNorm, GeGLU, embeddings times √n_embd (Gemma 3, 2025)
# Not in it: local attention in five blocks of six with another RoPE; n_kv_head counts as a size.
include('config/arch/llama.py')
if not _vit:
    tie_weights = True
    emb_scale = True
mid_norm = True
norm_gain = 'zero_centred'
qk_norm = True
ffn = 'geglu'
