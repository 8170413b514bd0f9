# LLaMA 0.2B on C4 by AdamW (sharpness disparity, table 4 and figure 5)
#     torchrun --nproc_per_node=4 train.py config/train_llama_c4_0.2b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-c4-0.2b-blockwise
# The paper's hardware: 4 A800 or H800. It gives its losses as curves only.
# The shape that it states has 124.8M parameters; its 200M need --n_layer=16.
include('config/base/sharpness_c4.py')
include('config/arch/llama.py')
out_dir = 'out-llama-c4-0.2b'
n_layer, n_head, n_embd = 8, 16, 768
max_iters = round(20 * 200e6 / (512 * 256))
learning_rate = 1e-3
min_lr = learning_rate / 20
