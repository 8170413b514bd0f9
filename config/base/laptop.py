# A short train_quick.py, for sweeps and comparisons: its 0.8M parameters and its data, for 400 iterations of 1024 bytes
include('config/train_quick.py')
block_size = 64
max_iters = 400
warmup_iters = 40
min_lr = 0.0
eval_interval = 100
eval_iters = 25
log_interval = 10
always_save_checkpoint = False
