# Parallel blocks: attention and FFN read one norm of the stream, x + attn(LN(x)) + ffn(LN(x)) (GPT-J 2021, PaLM 2022)
# Wang and Komatsuzaki 2021; Chowdhery et al. 2022. Both have RoPE, GPT-J on a quarter of each head. GPT-J has an untied head, and
# biases except in attention. PaLM has SwiGLU and one key/value head, starts with N(0, 1) for embeddings and N(0, 1/n_in) for
# matrices, and divides logits by √n_embd. The rest here is nanoGPT's. GPT-NeoX gives the FFN a norm of its own, which is not
# offered here.
include('config/arch/pre.py')
ffn_pre_norm = False
parallel_ffn = True
