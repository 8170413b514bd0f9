# GPT-2 (124M) on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_sharpness_gpt2.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-sharpness-gpt2-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
# Figures 1 (left), 2 (right) and 3 (a) show this run's sharpness. To measure it during training and at its end, on 1020 windows,
# for the paper's B = 1024, and to draw all three in one picture:
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_sharpness_gpt2.py --measure_interval=500 --measure_batches=34
#     python -m lab.measure --out_dir=out-sharpness-gpt2 --what=sharpness --batches=34
#     python -m lab.plot out-sharpness-gpt2 --what=sharpness
include('config/base/sharpness_openwebtext.py')
include('config/arch/pre.py')
out_dir = 'out-sharpness-gpt2'
n_layer, n_head, n_embd = 12, 12, 768
learning_rate = 6e-4
min_lr = learning_rate / 20
