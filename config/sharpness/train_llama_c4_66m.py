# LLaMA 66M on C4 by AdamW (sharpness disparity, table 4 and figure 5)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_c4_66m.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-c4-66m-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/base/sharpness_c4.py')
include('config/arch/llama.py')
out_dir = 'out-llama-c4-66m'
n_layer, n_head, n_embd = 8, 8, 512
max_iters = round(20 * 66e6 / (512 * 256))
learning_rate = 1e-3
min_lr = learning_rate / 20
