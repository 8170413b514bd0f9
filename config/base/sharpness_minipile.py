# What sharpness disparity's runs on MiniPile share. They have 30K iterations; for those of 60K, add --max_iters=60000
include('config/base/sharpness_openwebtext.py')
dataset = 'minipile'
block_size = 512
batch_size = 75                         # a GPU of 80 GB holds these windows
gradient_accumulation_steps = 4         # 300 windows an iteration, for 1, 2 or 4 GPUs; 25 windows 12 times are for 3, 6 or 12
max_iters = 30000
warmup_iters = 600
