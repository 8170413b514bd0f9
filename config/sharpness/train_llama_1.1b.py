# LLaMA 1.1B, of TinyLlama's shape and ε, on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_1.1b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-1.1b-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers. Its zero-shot accuracies after 50K iterations
# (table 1), by AdamW and then with Blockwise LR:
#     ARC-E 52.69 54.29    ARC-C 22.87 25.34    PIQA 68.71 69.53    HellaSwag 36.13 38.00
#     OBQA 19.40 22.60    WinoGrande 55.17 59.83    SciQ 77.60 81.60
# For these accuracies, of which the paper does not say whether they are normalized by length:
#     python -m lab.evaluate --out_dir=out-llama-1.1b --checkpoint=ckpt.pt \
#         --tasks=arc_easy,arc_challenge,piqa,hellaswag,openbookqa,winogrande,sciq
include('config/sharpness/train_llama_2b.py')
out_dir = 'out-llama-1.1b'
n_kv_head, d_ff = 4, 5632
norm_eps = 1e-5
learning_rate = 4e-4
min_lr = learning_rate / 20
