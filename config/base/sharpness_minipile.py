# Shared by sharpness disparity's runs on MiniPile, with 30K iterations; for runs with 60K, add --max_iters=60000
include('config/base/sharpness_openwebtext.py')
dataset = 'minipile'
block_size = 512
batch_size = 75                         # fits into 80 GB
gradient_accumulation_steps = 4         # 300 windows an iteration, for 1, 2 or 4 GPUs; for 3, 6 or 12 GPUs, use 12 × 25 windows
max_iters = 30000
warmup_iters = 600
