# LLaMA 0.25B on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b.py
# The paper used 4 A800 or H800. Its losses after 50K iterations (table 2), and what to add for each run besides an --out_dir:
#     AdamW                                           2.834
#     AdamW, larger rate for the embeddings           2.818    --r_emb=10
#     AdamW, larger rates for embeddings and FFN      2.791    --r_emb=10 --r_ffn=6
#     AdamW, Blockwise LR                             2.784    config/lr/blockwise.py
# The table also has a run with twice the rate for the norms, 2.837, which is left out here.
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-0.25b'
n_layer, n_head, n_embd = 8, 16, 1024
learning_rate = 8e-4
min_lr = learning_rate / 20
