# StableGPT-L (774M) on OpenWebText for 100K iterations (Stable-Transformer, figure 11, table 2)
#     torchrun --nproc_per_node=8 train.py config/train_stablegpt_l.py
# The paper's hardware: 16 A800, two weeks for 600K. Its validation loss at 100K: 2.523.
# Its other runs, and what to add for them, with an --out_dir:
#     GPT-2 Large, the baseline    2.536           config/arch/pre.py
#     L2 attention (figure 14)     worse           --attention=l2
#     the same with W_q = W_k      notably worse   --attention=l2_tied
# Whether its cosine ends at 100K, as here, or at 600K (--lr_decay_iters=600000), is not stated.
include('config/train_stablegpt_s.py')
out_dir = 'out-stablegpt-l'
n_layer, n_head, n_embd = 36, 20, 1280
batch_size = 5
gradient_accumulation_steps = 96
learning_rate = 2.5e-4
min_lr = learning_rate / 10
max_iters = 100000
