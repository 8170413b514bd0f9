# LLaMA 0.25B on OpenWebText by Lion, at a fifth of AdamW's rate (sharpness disparity, figures 7 and 11)
#     torchrun --nproc_per_node=4 train.py config/train_llama_0.25b_lion.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-lion-blockwise
# The paper's hardware: 4 A800 or H800. It gives its losses as curves only.
include('config/train_llama_0.25b.py')
include('config/optim/lion.py')
out_dir = 'out-llama-0.25b-lion'
learning_rate = 8e-4 / 5
min_lr = learning_rate / 20
