# L-DNT-Small (124M) on OpenWebText by momentum SGDW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_sgd.py
# The paper's hardware: 8 A800. Its validation loss: 2.849.
# Figure 6, in which S1 is worst and S4 and S5 are best, adds, with an --out_dir:  config/arch/s1.py, s2.py, s3.py or s4.py
# Its table has no warm-up for momentum SGDW, as here, its text 2000 iterations for all: --warmup_iters=2000
out_dir = 'out-ldnt-sgd'
dataset = 'openwebtext'
include('config/arch/s5.py')
include('config/optim/sgdw.py')
n_layer, n_head, n_embd, block_size = 12, 12, 768, 1024
batch_size = 10
gradient_accumulation_steps = 48        # 480 windows an iteration, for 1, 2, 4, 8, 12, 16, 24 or 48 GPUs
max_iters = 200000
warmup_iters = 0
eval_interval = 1000
log_interval = 10
