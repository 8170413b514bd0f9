# nGPT 0.5B on OpenWebText by AdamW, without weight decay and warm-up (Loshchilov et al. 2024; their code's launcher.sh)
#     torchrun --nproc_per_node=8 train.py config/train_ngpt_0.5b.py
# 10,000 iterations of 512 windows of 1024 tokens, as there
include('config/arch/ngpt.py')
out_dir = 'out-ngpt-0.5b'
dataset = 'openwebtext'
n_layer, n_head, n_embd = 24, 16, 1024
d_ff = 4096
block_size = 1024
batch_size = 8
gradient_accumulation_steps = 64
max_iters = 10000
eval_interval = 2000
eval_iters = 1000
optimizer = 'adamw'
learning_rate = 30e-4
min_lr = 0.0
warmup_iters = 0
weight_decay = 0.0
beta2 = 0.95
