# LLaMA 0.25B on MiniPile by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_minipile.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-minipile-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
# Figure 10 compares three sets of --r_emb, --r_qk, --r_ffn and --r_vo: 6 4 3 2, 8 6 4 3, and 10 8 6 4, which is the best.
include('config/sharpness/train_llama_0.25b.py')
include('config/base/sharpness_minipile.py')
out_dir = 'out-llama-0.25b-minipile'
learning_rate = 7.5e-4
min_lr = learning_rate / 20
