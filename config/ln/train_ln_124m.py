# GPT-2 (124M) on OpenWebText under Pre-LN and Peri-LN, with and without residual scaling (LN stability, table 2)
#     torchrun --nproc_per_node=8 train.py config/train_ln_124m.py
# The paper's hardware: H200s, how many is not stated. Its validation loss, and what to add, with an --out_dir:
#     Pre-LN              5.43
#     Pre-LN, Δt = 0.1    3.13    --residual_scale=0.1
#     Peri-LN             3.12    config/arch/peri.py
#     Peri-LN, Δt = 0.1   3.10    config/arch/peri.py --residual_scale=0.1
# Diverged runs of 5 in 20K iterations (table 1), --max_iters=20000 --lr_decay_iters=100000 --seed=1 … 5: Pre-LN 1, Peri-LN 0,
# LN Off (config/arch/off.py) 5; with --weight_decay=0 Pre-LN 3, Peri-LN 0. Seeds and horizon are ours.
# Of batch, rates and decay the paper says only that they were tuned for Pre-LN; these are nanoGPT's.
out_dir = 'out-ln-124m'
dataset = 'openwebtext'
include('config/arch/pre.py')
include('config/optim/adamw.py')
n_layer, n_head, n_embd, block_size = 12, 12, 768, 1024
batch_size = 10
gradient_accumulation_steps = 48        # 480 windows an iteration, for 1, 2, 4, 8, 12, 16, 24 or 48 GPUs
max_iters = 100000
warmup_iters = 2000
eval_interval = 1000
log_interval = 10
