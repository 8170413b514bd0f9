# OpenWebText in windows of 1024 tokens, 480 of them an iteration, as GPT-2 (124M) trains on it in the configs of all four papers
dataset = 'openwebtext'
block_size = 1024
batch_size = 10
gradient_accumulation_steps = 48        # 480 windows an iteration, for 1, 2, 4, 8, 12, 16, 24 or 48 GPUs
eval_interval = 1000
log_interval = 10
