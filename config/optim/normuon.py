# NorMuon (Li et al. 2025, arXiv:2510.05491): Muon whose rows are normalized by a running mean of their squares. Its authors take
# AdamW's rate and decay times 0.2, as match_rms_adamw does; the settings are Muon's here
include('config/optim/muon.py')
optimizer = 'normuon'
