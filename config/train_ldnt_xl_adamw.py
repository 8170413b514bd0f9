# L-DNT-XL (1436M) on OpenWebText by AdamW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_xl_adamw.py
# The paper used 32 A800 and reports a validation loss of 2.396.
# It counts 1436M parameters without the position embeddings; with them there are 1438M.
include('config/train_ldnt_xl_sgd.py')
include('config/base/dnt_adamw.py')
out_dir = 'out-ldnt-xl-adamw'
