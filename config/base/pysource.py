# Shared by the runs behind results/: 0.22M parameters, and Python sources as bytes, 20 per parameter. To prepare the data:
#     python data/pysource/prepare.py
dataset = 'pysource'
vocab_size = 256
n_layer = 4
n_head = 2
n_embd = 64
block_size = 128
batch_size = 16
gradient_accumulation_steps = 1
max_iters = 2200
warmup_iters = 220
min_lr = 0.0
eval_interval = 550
eval_iters = 100
eval_train = False
log_interval = 10
dtype = 'bfloat16'
compile = False                         # it pays off only in runs of several minutes
