# L-DNT-Large (774M) on OpenWebText by AdamW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_large_adamw.py
# The paper used 16 A800 and reports a validation loss of 2.481.
include('config/train_ldnt_large_sgd.py')
include('config/base/dnt_adamw.py')
out_dir = 'out-ldnt-large-adamw'
