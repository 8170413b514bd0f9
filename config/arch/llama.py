# LLaMA: RMSNorm, RoPE, SwiGLU and an untied head (sharpness disparity, appendix A); n_kv_head counts as a size
# The paper takes Hugging Face's LLaMA, whose ε and initialization are these; for its 1.1B it sets an ε of 1e-5.
include('config/arch/pre.py')
bias = False
if not _vit:
    tie_weights = False
norm = 'rmsnorm'
norm_eps = 1e-6
ffn = 'swiglu'
pos = 'rope'
init = 'normal'
fused_qkv_init = False
