# What sharpness disparity's runs on OpenWebText share; 50K iterations, or 100K
dataset = 'openwebtext'
vocab_size = 50304
block_size = 1024
batch_size = 10
gradient_accumulation_steps = 48        # 480 windows an iteration
max_iters = 50000
warmup_iters = 1000
eval_interval = 1000
log_interval = 10
include('config/optim/adamw.py')
