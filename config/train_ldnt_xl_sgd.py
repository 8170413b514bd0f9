# L-DNT-XL (1436M) on OpenWebText by momentum SGDW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_xl_sgd.py
# The paper used 32 A800 and reports a validation loss of 2.408.
# It counts 1436M parameters without the position embeddings; with them there are 1438M.
include('config/train_ldnt_sgd.py')
out_dir = 'out-ldnt-xl-sgd'
n_layer, n_head, n_embd = 48, 24, 1536
batch_size = 8
gradient_accumulation_steps = 64        # 512 windows an iteration, for 1, 2, 4 … 64 GPUs
eval_iters = 100
