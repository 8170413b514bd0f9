# LLaMA 0.5B on MiniPile by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.5b_minipile.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.5b-minipile-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/sharpness/train_llama_0.5b.py')
include('config/base/sharpness_minipile.py')
out_dir = 'out-llama-0.5b-minipile'
learning_rate = 4.5e-4
min_lr = learning_rate / 20
