# What sharpness disparity's runs on MiniPile share; 30K iterations, or 60K
dataset = 'minipile'
vocab_size = 50304
block_size = 512
batch_size = 25
gradient_accumulation_steps = 12        # 300 windows an iteration, for 1, 2, 3, 4, 6 or 12 GPUs
max_iters = 30000
warmup_iters = 600
eval_interval = 1000
log_interval = 10
include('config/optim/adamw.py')
