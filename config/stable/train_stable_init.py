# GPT-2 (124M) without warm-up: which initialization lasts? (Stable-Transformer, figure 2)
#     torchrun --nproc_per_node=8 train.py config/train_stable_init.py
# Here Xavier; for StableInit add:  --init=stable --out_dir=out-stable-init-stable
# The paper's hardware: A800. It gives curves and no numbers: StableInit trains longer before it diverges.
include('config/train_stablegpt_s.py')
include('config/arch/pre.py')
init = 'xavier'
out_dir = 'out-stable-init'
warmup_iters = 0
