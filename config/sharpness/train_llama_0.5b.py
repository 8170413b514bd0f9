# LLaMA 0.5B on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.5b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.5b-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-0.5b'
n_layer, n_head, n_embd = 15, 20, 1280
learning_rate = 8e-4
min_lr = learning_rate / 20
