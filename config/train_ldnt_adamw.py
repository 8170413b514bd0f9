# L-DNT-Small (124M) on OpenWebText by AdamW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_adamw.py
# The paper's hardware: 8 A800. Its validation loss: 2.863.
include('config/train_ldnt_sgd.py')
include('config/optim/adamw.py')
out_dir = 'out-ldnt-adamw'
warmup_iters = 2000
