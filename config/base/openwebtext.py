# OpenWebText with 480 windows of 1024 tokens per iteration, as in the GPT-2 (124M) configs of all four papers, though LN
# stability states no batch size
dataset = 'openwebtext'
vocab_size = 50304                      # GPT-2's 50257, padded to a multiple of 64, which is faster on a GPU
block_size = 1024
batch_size = 30                         # fits into 80 GB with a compiled model of 124M to 0.75B
gradient_accumulation_steps = 16        # 480 windows an iteration, for 1, 2, 4, 8 or 16 GPUs
eval_interval = 1000
eval_iters = 67                         # 2010 windows of each split
log_interval = 10
