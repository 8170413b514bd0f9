# LLaMA 0.13B on MiniPile by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.13b_minipile.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.13b-minipile-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/base/sharpness_minipile.py')
include('config/arch/llama.py')
out_dir = 'out-llama-0.13b-minipile'
n_layer, n_head, n_embd = 6, 12, 768
learning_rate = 1.2e-3
min_lr = learning_rate / 20
