# Which initialization lasts longest without warm-up, in GPT-2 (124M) on OpenWebText? (Stable-Transformer, figure 2)
#     torchrun --nproc_per_node=8 train.py config/stable/train_stable_init.py
# This file has Xavier initialization. For StableInit, add:  --init=stable --out_dir=out-stable-init-stable
# The paper used A800s and shows curves without numbers: StableInit trains longer before it diverges.
include('config/stable/train_stablegpt_s.py')
include('config/base/gpt2_xavier.py')
out_dir = 'out-stable-init'
warmup_iters = 0
