# LLaMA 0.2B on C4 by AdamW (sharpness disparity, table 4 and figure 5)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_c4_0.2b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-c4-0.2b-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
# The shape is that of the authors' code, with 200.3M parameters. The paper's table has 16 heads and 8 blocks, which give 124.8M
# and not the stated 200M; for this shape, add:  --n_layer=8 --n_head=16
include('config/base/sharpness_c4.py')
include('config/arch/llama.py')
out_dir = 'out-llama-c4-0.2b'
n_layer, n_head, n_embd = 16, 12, 768
max_iters = round(20 * 200e6 / (512 * 256))
learning_rate = 1e-3
min_lr = learning_rate / 20
