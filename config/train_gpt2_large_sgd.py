# GPT-2 Large (774M) on OpenWebText by momentum SGDW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_large_sgd.py
# The paper used 16 A800 and reports a validation loss of 2.544.
# It does not say which norm its baseline has. Here it is nanoGPT's LayerNorm.
include('config/train_ldnt_large_sgd.py')
include('config/base/gpt2_xavier.py')
out_dir = 'out-gpt2-large-sgd'
