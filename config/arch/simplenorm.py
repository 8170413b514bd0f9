# SimpleNorm: a norm on the output of every linear map of a block, and none before the branches (SimpleGPT, Chen et al. 2026)
# It starts as the authors' code does (Ocram7/SimpleGPT, simplegpt_model.py): LLaMA with a norm before the head, N(0, 1) for
# embeddings, 0.02 for matrices, 0.02/√2l in block l for W_o, W_2 and W_3, and 1/√n_embd for the head, which theirs cuts at three
# standard deviations. Theirs decays all parameters: --decay_norms=True. Its d_ff is 8/3 n_embd, up to a multiple of 256. The
# code of the paper's nanoGPT models is not public.
include('config/arch/llama.py')
norm_eps = 1e-5
attn_pre_norm = False
ffn_pre_norm = False
linear_norm = True
init = 'torchtitan'
emb_std = 1.0
