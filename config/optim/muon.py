# Muon, scaled so that AdamW's settings fit (Liu et al. 2025, arXiv:2502.16982), with the momentum of its author (Jordan 2024,
# kellerjordan.github.io/posts/muon). For Jordan's own scale and learning rate, with AdamW's for the other parameters, add
#     --muon_scale=original --learning_rate=0.02 --min_lr=2e-3 --r_emb=0.03 --r_pos=0.03 --r_norm=0.03 --r_head=0.03
# but leave out --r_head if the embedding is the head.
include('config/optim/adamw.py')
optimizer = 'muon'
momentum = 0.95
muon_scale = 'match_rms_adamw'
