# LLaMA 1B on C4 by AdamW (sharpness disparity, table 4 and figure 5)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_c4_1b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-c4-1b-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/base/sharpness_c4.py')
include('config/arch/llama.py')
out_dir = 'out-llama-c4-1b'
n_layer, n_head, n_embd = 22, 25, 1600
max_iters = round(20 * 1004e6 / (512 * 256))
learning_rate = 3e-4
min_lr = learning_rate / 20
