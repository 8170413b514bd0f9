# L-DNT-XL (1436M) on OpenWebText by momentum SGDW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_xl_sgd.py
# The paper's hardware: 32 A800. Its validation loss: 2.408.
# 1436M without position embeddings.
include('config/train_ldnt_sgd.py')
out_dir = 'out-ldnt-xl-sgd'
n_layer, n_head, n_embd = 48, 24, 1536
batch_size = 4
gradient_accumulation_steps = 128       # 512 windows an iteration, for any power of two GPUs
