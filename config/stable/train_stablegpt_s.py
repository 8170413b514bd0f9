# StableGPT-S (124M) on OpenWebText (Stable-Transformer, figure 1, tables 2 and 3)
#     torchrun --nproc_per_node=8 train.py config/train_stablegpt_s.py
# The paper's hardware: 8 A800, 3 days. Its validation loss: 2.827.
# Its other runs, and what to add for them, with an --out_dir:
#     GPT-2, the baseline          2.848              config/arch/pre.py
#     learning rate (figure 6)     2.819              --learning_rate=1.2e-3; 1.8e-3 and 2.4e-3 are stable too
#     τ (figure 7)                 about the same     --attn_tau=0.809 or 3.236
# Not in the paper for this model:  --n_head=6, 8, 16 or 24 (figure 4: more heads are more stable, in a ViT); --warmup_iters=0
# The paper states no α for its language models; config/arch/stable.py has the one that it names as an example.
out_dir = 'out-stablegpt-s'
dataset = 'openwebtext'
include('config/arch/stable.py')
include('config/optim/adamw.py')
n_layer, n_head, n_embd, block_size = 12, 12, 768, 1024
batch_size = 10
gradient_accumulation_steps = 48        # 480 windows an iteration, for 1, 2, 4, 8, 12, 16, 24 or 48 GPUs
max_iters = 600000
warmup_iters = 2000
eval_interval = 1000
log_interval = 10
