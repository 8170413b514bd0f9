# LLaMA 0.25B on OpenWebText by Muon, with the settings of AdamW in sharpness disparity
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_muon.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-muon-blockwise
# Sharpness disparity has no run by Muon, and no paper reports its loss or tunes ratios for it. It was not trained here.
include('config/sharpness/train_llama_0.25b.py')
include('config/optim/muon.py')
out_dir = 'out-llama-0.25b-muon'
learning_rate = 8e-4
min_lr = learning_rate / 20
