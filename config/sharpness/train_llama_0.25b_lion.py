# LLaMA 0.25B on OpenWebText by Lion, at a fifth of AdamW's learning rate (sharpness disparity, figures 7 and 11)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_lion.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-lion-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
include('config/sharpness/train_llama_0.25b.py')
include('config/optim/lion.py')
out_dir = 'out-llama-0.25b-lion'
learning_rate = 8e-4 / 5
min_lr = learning_rate / 20
