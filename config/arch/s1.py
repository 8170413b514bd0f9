# DNT's setting S1, the standard Transformer: Pre-LN with RMSNorm and Xavier initialization (DNT, figure 6)
include('config/arch/pre.py')
norm = 'rmsnorm'
norm_eps = 1e-8
init = 'xavier'
