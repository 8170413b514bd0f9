# DyT: Pre-LN with γ tanh(a x) + β instead of LayerNorm (Zhu et al. 2025)
include('config/arch/pre.py')
norm = 'dyt'
