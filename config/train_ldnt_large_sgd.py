# L-DNT-Large (774M) on OpenWebText by momentum SGDW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_large_sgd.py
# The paper used 16 A800 and reports a validation loss of 2.503.
include('config/train_ldnt_sgd.py')
out_dir = 'out-ldnt-large-sgd'
n_layer, n_head, n_embd = 36, 20, 1280
batch_size = 16
gradient_accumulation_steps = 32        # 512 windows an iteration, for 1, 2, 4 … 32 GPUs
eval_iters = 100
