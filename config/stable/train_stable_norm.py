# Which α of StableNorm is best without warm-up, in GPT-2 (124M) on OpenWebText? (Stable-Transformer, figure 3)
#     torchrun --nproc_per_node=8 train.py config/stable/train_stable_norm.py
# This file has α = 0.25. For the other runs, add an --out_dir and:
#     --norm_alpha=0, 0.125, 0.375 or 0.5 (which is RMSNorm); for LayerNorm --norm=layernorm --norm_eps=1e-5
# The paper used A800s and shows curves without numbers: an extremely small α may let gradients vanish, a large α may be unstable.
# Everything else is GPT-2's, as section 2 of the paper says. The names of its curves suggest StableGPT-S instead.
# config/arch/stable.py says where ε comes from.
include('config/stable/train_stablegpt_s.py')
include('config/arch/pre.py')
norm = 'stablenorm'
norm_alpha = 0.25
norm_eps = 1e-8
out_dir = 'out-stable-norm'
warmup_iters = 0
