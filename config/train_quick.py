# draft
out_dir = 'out-quick'
dataset = 'pycode'
vocab_size = 256
block_size = 128
n_layer = 4
n_head = 4
n_embd = 128
batch_size = 16
gradient_accumulation_steps = 1
exec(open('config/arch/s5.py').read())
optimizer = 'sgdw'
learning_rate = 0.3
min_lr = 6e-5
weight_decay = 1e-4
max_iters = 1500
warmup_iters = 0
eval_interval = 500
eval_iters = 50
log_interval = 50
compile = False
