# L-DNT-XL (1436M) on OpenWebText by AdamW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_xl_adamw.py
# The paper's hardware: 32 A800. Its validation loss: 2.396.
# 1436M without position embeddings.
include('config/train_ldnt_xl_sgd.py')
include('config/optim/adamw.py')
out_dir = 'out-ldnt-xl-adamw'
warmup_iters = 2000
