# GPT-2 (124M) on OpenWebText by momentum SGDW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_sgd.py
# The paper used 8 A800 and reports a validation loss of 2.906.
# It does not say which norm its baseline has. Here it is nanoGPT's LayerNorm.
include('config/train_ldnt_sgd.py')
include('config/base/gpt2_xavier.py')
out_dir = 'out-gpt2-sgd'
