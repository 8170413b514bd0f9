# Value residual: the values of each block's attention are mixed with those of the first block (ResFormer, Zhou et al. 2024)
# Both numbers are learned from 1/2, as in the paper's learnable ResFormer.
include('config/arch/llama.py')
value_residual = True
