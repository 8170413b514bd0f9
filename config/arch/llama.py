# LLaMA: RMSNorm, RoPE, SwiGLU and an untied head (sharpness disparity, appendix A); n_kv_head counts as a size
include('config/arch/pre.py')
tie_weights = False
norm = 'rmsnorm'
ffn = 'swiglu'
pos = 'rope'
init = 'normal'
