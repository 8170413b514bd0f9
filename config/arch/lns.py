# LayerNorm Scaling: Pre-LN whose norms are multiplied by 1/√l in block l (Sun et al. 2025)
# The paper advises against GPT-2's smaller start of W_o and W_2 beside it.
include('config/arch/pre.py')
norm_depth_scale = True
init = init if _vit else 'normal'
