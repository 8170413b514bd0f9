# StableGPT-L (774M) on OpenWebText by AdamW, for 100K iterations (Stable-Transformer, figure 11, table 2)
#     torchrun --nproc_per_node=8 train.py config/stable/train_stablegpt_l.py
# The paper used 16 A800, two weeks for 600K iterations, and reports a validation loss of 2.523 after 100K.
# Its other runs, and the arguments to add (with an --out_dir):
#     GPT-2 Large, the baseline      2.536           config/arch/pre.py
#     L2 attention (figure 14)       worse           --attention=l2
#     L2 attention with W_q = W_k    notably worse   --attention=l2_tied
# The paper does not say whether its cosine ends at 100K, as here, or at 600K, as in nanoGPT, which it follows (appendix K).
# For 600K, add --lr_decay_iters=600000
# The learning rate is that of table 2; table 3 has 6e-4 for all sizes.
include('config/stable/train_stablegpt_s.py')
out_dir = 'out-stablegpt-l'
n_layer, n_head, n_embd = 36, 20, 1280
batch_size = 15
gradient_accumulation_steps = 32        # for 1, 2, 4 … 32 GPUs
learning_rate = 2.5e-4
min_lr = learning_rate / 10
max_iters = 100000
