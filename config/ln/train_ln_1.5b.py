# GPT-2 XL (1.5B) on OpenWebText under Pre-LN and Peri-LN, with and without residual scaling (LN stability, table 2)
#     torchrun --nproc_per_node=8 train.py config/train_ln_1.5b.py
# The paper's hardware: H200s, how many is not stated. Its validation loss, and what to add, with an --out_dir:
#     Pre-LN              2.88
#     Pre-LN, Δt = 0.1    2.88    --residual_scale=0.1
#     Peri-LN             2.89    config/arch/peri.py
#     Peri-LN, Δt = 0.1   2.87    config/arch/peri.py --residual_scale=0.1
# The learning rate is not stated; this is the one DNT's paper uses for GPT-2 XL.
include('config/train_ln_774m.py')
out_dir = 'out-ln-1.5b'
n_layer, n_head, n_embd = 48, 25, 1600
learning_rate = 1.5e-4
min_lr = learning_rate / 10
