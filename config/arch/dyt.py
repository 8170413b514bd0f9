# DyT: Pre-LN with γ tanh(a x) + β instead of LayerNorm (Zhu et al. 2025)
# For LLaMA the authors start a between 0.8 and 0.2 before attention, at a quarter of that elsewhere, lower in larger models, and
# multiply the embeddings by a learned number from √n_embd. Here a starts at 0.5 and nothing multiplies the embeddings, which are
# small: at the start tanh is nearly linear. Larger embeddings are --emb_std.
include('config/arch/pre.py')
norm = 'dyt'
