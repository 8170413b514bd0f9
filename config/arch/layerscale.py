# LayerScale: Pre-LN with a small learned gain per channel on each branch (CaiT, Touvron et al. 2021)
include('config/arch/pre.py')
branch_gain = 'layerscale'
