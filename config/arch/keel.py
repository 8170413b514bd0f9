# Keel: Post-LN with α x on the skip, and a norm before each branch too (Chen and Wei 2026)
# α is the number of branches, 2 n_layer. We have not seen its code, and its treatment of the first block is not followed.
include('config/arch/post.py')
attn_pre_norm = True
ffn_pre_norm = True
skip_scale = 'keel'
