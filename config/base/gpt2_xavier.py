# GPT-2 with Xavier initialization: DNT's baseline, and a run of Stable-Transformer's figure 2
include('config/arch/pre.py')
init = 'xavier'
# Both papers build on nanoGPT, which ties the embedding to the head before it draws weights, so that the embedding is initialized
# like a head, and which has W_q, W_k and W_v in one matrix.
emb_init = 'head'
fused_qkv_init = True
