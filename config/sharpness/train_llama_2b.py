# LLaMA 2B on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_2b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-2b-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
# The paper's shape, used here, has 1683M parameters and not 2025M, as the paper says. --n_layer=27 comes close with 2018M.
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-2b'
n_layer, n_head, n_embd = 22, 32, 2048
batch_size = 10
gradient_accumulation_steps = 48        # for 1, 2, 4, 8, 12, 16, 24 or 48 GPUs
eval_iters = 100
learning_rate = 2e-4
min_lr = learning_rate / 20
