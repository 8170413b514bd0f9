# Mix-LN: the first quarter of the blocks Post-LN, the others Pre-LN (Li et al. 2024)
include('config/arch/pre.py')
mix_ln = 0.25
