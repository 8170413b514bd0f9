# LLaMA 1.1B, of TinyLlama's shape, on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/train_llama_1.1b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-1.1b-blockwise
# The paper's hardware: 4 A800 or H800. It gives its losses as curves; zero-shot accuracy after 50K (table 1), AdamW and
# Blockwise LR: ARC-E 52.69 54.29, ARC-C 22.87 25.34, PIQA 68.71 69.53, HellaSwag 36.13 38.00, OBQA 19.40 22.60,
# WinoGrande 55.17 59.83, SciQ 77.60 81.60.
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-1.1b'
n_layer, n_head, n_embd = 22, 32, 2048
n_kv_head, d_ff = 4, 5632
batch_size = 5
gradient_accumulation_steps = 96
learning_rate = 4e-4
min_lr = learning_rate / 20
