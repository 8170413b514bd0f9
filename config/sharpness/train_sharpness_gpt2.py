# GPT-2 (124M) on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_sharpness_gpt2.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-sharpness-gpt2-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/base/sharpness_openwebtext.py')
include('config/arch/pre.py')
out_dir = 'out-sharpness-gpt2'
n_layer, n_head, n_embd = 12, 12, 768
learning_rate = 6e-4
min_lr = learning_rate / 20
