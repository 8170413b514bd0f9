# GPT-2 Large (774M) on OpenWebText under Pre-LN and Peri-LN, with and without residual scaling (LN stability, table 2)
#     torchrun --nproc_per_node=8 train.py config/ln/train_ln_774m.py
# The paper used H200s and does not say how many. Its validation losses, and the arguments to add (with an --out_dir):
#     Pre-LN              2.90
#     Pre-LN, Δt = 0.1    2.91    --residual_scale=0.1
#     Peri-LN             2.91    config/arch/peri.py
#     Peri-LN, Δt = 0.1   2.89    config/arch/peri.py --residual_scale=0.1
# The paper does not state the learning rate. This is the one that DNT's paper uses for GPT-2 Large. Our other choices, explained
# in train_ln_124m.py, are the end of the cosine, and no biases.
include('config/ln/train_ln_124m.py')
out_dir = 'out-ln-774m'
n_layer, n_head, n_embd = 36, 20, 1280
batch_size = 15
gradient_accumulation_steps = 32        # for 1, 2, 4 … 32 GPUs
learning_rate = 2.5e-4
min_lr = learning_rate / 10
max_iters = 60000
