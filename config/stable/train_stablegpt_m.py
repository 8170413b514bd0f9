# StableGPT-M (350M; this shape has 354.6M) on OpenWebText (Stable-Transformer, figure 1, tables 2 and 3)
#     torchrun --nproc_per_node=8 train.py config/train_stablegpt_m.py
# The paper's hardware: A800, 7.5 days. Its validation loss: 2.569.
# GPT-2 Medium, its baseline, 2.579, add:  config/arch/pre.py --out_dir=out-gpt2-m
include('config/train_stablegpt_s.py')
out_dir = 'out-stablegpt-m'
n_layer, n_head, n_embd = 24, 16, 1024
learning_rate = 3e-4
min_lr = learning_rate / 10
