# LLaMA 0.25B on MiniPile by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_minipile.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-minipile-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
# Figure 10 compares three sets of ratios, of which the last is the best, with the run above. To train and to draw them:
#     for r in '6 4 3 2' '8 6 4 3' '10 8 6 4'; do set -- $r
#         torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_minipile.py \
#             --r_emb=$1 --r_qk=$2 --r_ffn=$3 --r_vo=$4 --out_dir=out-figure10-$1; done
#     python -m lab.plot out-llama-0.25b-minipile out-figure10-6 out-figure10-8 out-figure10-10
include('config/sharpness/train_llama_0.25b.py')
include('config/base/sharpness_minipile.py')
out_dir = 'out-llama-0.25b-minipile'
learning_rate = 7.5e-4
min_lr = learning_rate / 20
