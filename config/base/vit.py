# ViT's architecture as in timm, with the truncated Xavier initialization of both vision papers
include('config/arch/pre.py')
bias = True
norm_eps = 1e-6
init = 'xavier_trunc'
