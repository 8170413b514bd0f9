# Muon with AdamW's settings, which its scale makes fit (Liu et al. 2025, arXiv:2502.16982), and the momentum of its author
# (Jordan 2024, kellerjordan.github.io/posts/muon). Jordan's own scale and learning rate, with AdamW's for the rest, are
#     --muon_scale=original --learning_rate=0.02 --min_lr=2e-3 --r_emb=0.03 --r_pos=0.03 --r_norm=0.03 --r_head=0.03
# without --r_head where the embedding is the head.
include('config/optim/adamw.py')
optimizer = 'muon'
momentum = 0.95
muon_scale = 'match_rms_adamw'
