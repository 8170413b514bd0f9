# Stable-Transformer: Pre-LN with StableNorm, StableAtten and StableInit (Stable-Transformer)
include('config/arch/pre.py')
norm = 'stablenorm'
norm_alpha = 0.475
norm_eps = 1e-8
attention = 'stable'
init = 'stable'
