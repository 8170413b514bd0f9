# A small DNT on Python sources, byte by byte, by momentum SGDW; `make quickstart` runs it
#     python train.py config/train_quick.py
# This takes 1 to 9 minutes on two CPU cores. Validation loss: 1.40 nats per byte of Python 3.11.7's sources, 1.42 of 3.11.2's.
out_dir = 'out-quick'
dataset = 'pycode'
include('config/arch/s5.py')
n_layer, n_head, n_embd = 4, 2, 128
block_size = 128
vocab_size = 256
batch_size = 16
gradient_accumulation_steps = 1
optimizer = 'sgdw'
learning_rate = 0.3
weight_decay = 1e-4
max_iters = 1500
warmup_iters = 60
eval_interval = 250
eval_iters = 50
log_interval = 20
compile = False                         # on a CPU, compiling needs a C++ compiler and takes longer than it saves
