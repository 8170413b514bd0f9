# LLaMA 0.4B on C4 by AdamW (sharpness disparity, table 4 and figure 5)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_c4_0.4b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-c4-0.4b-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/base/sharpness_c4.py')
include('config/arch/llama.py')
out_dir = 'out-llama-c4-0.4b'
n_layer, n_head, n_embd = 12, 16, 1280
max_iters = round(20 * 400e6 / (512 * 256))
learning_rate = 6e-4
min_lr = learning_rate / 20
