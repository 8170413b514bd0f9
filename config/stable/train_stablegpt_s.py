# StableGPT-S (124M) on OpenWebText by AdamW (Stable-Transformer, figure 1, tables 2 and 3)
#     torchrun --nproc_per_node=8 train.py config/stable/train_stablegpt_s.py
# The paper used 8 A800 for 3 days and reports a validation loss of 2.827.
# Its other runs, and the arguments to add (with an --out_dir):
#     GPT-2, the baseline        2.848             config/arch/pre.py
#     learning rate (figure 6)   2.819             --learning_rate=1.2e-3; 1.8e-3 and 2.4e-3 are stable too
#     τ (figure 7)               about the same    --attn_tau=0.809 or 3.236
# All have 2000 iterations of warm-up (table 3). Figures 2 to 4 show runs without warm-up.
# The paper has no runs of this model with --n_head=6, 8, 16 or 24. Its figure 4, on a ViT, finds that more heads are more stable.
# Without a warm-up (--warmup_iters=0) it has this model only in figure 3, by its legend.
# The paper gives no α for its language models. config/arch/stable.py uses the value that the paper names as an example.
out_dir = 'out-stablegpt-s'
include('config/base/openwebtext.py')
include('config/arch/stable.py')
include('config/optim/adamw.py')
n_layer, n_head, n_embd = 12, 12, 768
max_iters = 600000
warmup_iters = 2000
