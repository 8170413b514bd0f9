# What sharpness disparity's runs on C4 share; the iterations are 20 tokens a parameter, at 512 · 256 tokens each.
# The rate falls to a twentieth, as the paper says; the authors' code for C4 has a tenth.
dataset = 'c4'
vocab_size = 32100                      # T5's
block_size = 256
batch_size = 64
gradient_accumulation_steps = 8         # 512 windows an iteration
warmup_iters = 1000
eval_interval = 1000
log_interval = 10
include('config/optim/adamw.py')
