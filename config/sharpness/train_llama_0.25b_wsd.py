# LLaMA 0.25B on OpenWebText by AdamW under WSD (sharpness disparity, figure 7)
#     torchrun --nproc_per_node=4 train.py config/train_llama_0.25b_wsd.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-wsd-blockwise
# The paper's hardware: 4 A800 or H800. It gives its losses as curves only; which model they are of is not stated.
include('config/train_llama_0.25b.py')
include('config/lr/wsd.py')
out_dir = 'out-llama-0.25b-wsd'
