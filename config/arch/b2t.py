# B2T connection: Post-LN whose block adds its input in front of its last norm too (Takase et al. 2022)
# The authors' code (takase/b2t_connection, on fairseq) starts attention by Xavier, W_q, W_k and W_v as one matrix, and the FFN as
# PyTorch does, multiplies all weights of a block but the norms' by 1/√n_layer, and has embeddings of size 1 and no weight decay.
# Ours starts as GPT-2. Near theirs with 12 layers: --init=xavier --fused_qkv_init=True --init_gain=0.289
include('config/arch/post.py')
b2t = True
