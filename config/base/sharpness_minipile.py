# What sharpness disparity's runs on MiniPile share. They have 30K iterations; for those of 60K, add --max_iters=60000
include('config/base/sharpness_openwebtext.py')
dataset = 'minipile'
block_size = 512
batch_size = 25
gradient_accumulation_steps = 12        # 300 windows an iteration, for 1, 2, 3, 4, 6 or 12 GPUs
max_iters = 30000
warmup_iters = 600
