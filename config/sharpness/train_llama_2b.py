# LLaMA 2B on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/train_llama_2b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-2b-blockwise
# The paper's hardware: 4 A800 or H800. It gives its losses as curves only.
# The shape that it states has 1682M parameters; near its 2025M comes --n_layer=27, 2018M.
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-2b'
n_layer, n_head, n_embd = 22, 32, 2048
batch_size = 5
gradient_accumulation_steps = 96
learning_rate = 2e-4
min_lr = learning_rate / 20
