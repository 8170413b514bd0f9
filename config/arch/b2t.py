# B2T connection: Post-LN whose block adds its input in front of its last norm too (Takase et al. 2022)
# The authors' code (takase/b2t_connection, on fairseq) has Xavier's initialization, and multiplies all weights of a block but the
# norms' by 1/√n_layer. Ours starts as GPT-2. For theirs with 12 layers, add --init=xavier --init_gain=0.289
include('config/arch/post.py')
b2t = True
