# LLaMA 0.5B on MiniPile by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/train_llama_0.5b_minipile.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.5b-minipile-blockwise
# The paper's hardware: 4 A800 or H800. It gives its losses as curves only.
include('config/train_llama_0.5b.py')
include('config/base/sharpness_minipile.py')
out_dir = 'out-llama-0.5b-minipile'
learning_rate = 4.5e-4
min_lr = learning_rate / 20
