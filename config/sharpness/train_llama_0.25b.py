# LLaMA 0.25B on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/train_llama_0.25b.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-blockwise
# The paper's hardware: 4 A800 or H800. Its loss after 50K iterations (table 2): 2.834, Blockwise LR 2.784;
# with --r_emb=10 alone 2.818, with --r_emb=10 --r_ffn=6 2.791. Left out: the norms' rate doubled, 2.837.
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-0.25b'
n_layer, n_head, n_embd = 8, 16, 1024
learning_rate = 8e-4
min_lr = learning_rate / 20
