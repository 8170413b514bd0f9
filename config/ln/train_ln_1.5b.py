# GPT-2 XL (1.5B) on OpenWebText under Pre-LN and Peri-LN, with and without residual scaling (LN stability, table 2)
#     torchrun --nproc_per_node=8 train.py config/ln/train_ln_1.5b.py
# The paper used H200s and does not say how many. Its validation losses, and the arguments to add (with an --out_dir):
#     Pre-LN              2.88
#     Pre-LN, Δt = 0.1    2.88    --residual_scale=0.1
#     Peri-LN             2.89    config/arch/peri.py
#     Peri-LN, Δt = 0.1   2.87    config/arch/peri.py --residual_scale=0.1
# Figure 1 shows the moments of the trained models' hidden states. To measure each run, and to draw two of them:
#     python -m lab.measure --out_dir=out-ln-1.5b --what=hidden
#     python -m lab.plot out-ln-1.5b out-ln-1.5b-peri --what=hidden
# The paper does not state the learning rate. This is the one that DNT's paper uses for GPT-2 XL. Our other choices, explained in
# train_ln_124m.py, are the end of the cosine, and no biases.
include('config/ln/train_ln_774m.py')
out_dir = 'out-ln-1.5b'
n_layer, n_head, n_embd = 48, 25, 1600
batch_size = 6
gradient_accumulation_steps = 80        # for 1, 2, 4, 8 or 16 GPUs
eval_iters = 167
learning_rate = 1.5e-4
min_lr = learning_rate / 10
