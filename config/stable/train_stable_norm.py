# GPT-2 (124M) with StableNorm, without warm-up: which α? (Stable-Transformer, figure 3)
#     torchrun --nproc_per_node=8 train.py config/train_stable_norm.py
# Here α = 0.25; for the others add, with an --out_dir:  --norm_alpha=0, 0.125, 0.375 or 0.5 (RMSNorm), and for LayerNorm
#     --norm=layernorm --norm_eps=1e-5
# The paper's hardware: A800. It gives curves and no numbers: too small an α starves the gradient, too large an α is unstable.
# All else is GPT-2's, as its section 2 says; the names of the curves suggest StableGPT-S instead.
include('config/train_stablegpt_s.py')
include('config/arch/pre.py')
norm = 'stablenorm'
norm_alpha = 0.25
norm_eps = 1e-8
out_dir = 'out-stable-norm'
warmup_iters = 0
