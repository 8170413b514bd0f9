# GPT-2 (124M) on MiniPile by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_sharpness_gpt2_minipile.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-sharpness-gpt2-minipile-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/sharpness/train_sharpness_gpt2.py')
include('config/base/sharpness_minipile.py')
out_dir = 'out-sharpness-gpt2-minipile'
learning_rate = 6e-4
min_lr = learning_rate / 20
