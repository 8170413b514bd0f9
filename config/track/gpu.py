# The one-GPU division of the track: what all its entries share. GPT-2's size (124M), 0.5B tokens of FineWeb, AdamW
#     python data/fineweb/prepare.py
#     python -m lab.track --division=gpu --new=NAME config/arch/s5.py
# The rules are in results/track/README.md. An entry changes keys of its architecture; this file has those of `pre`.
# There is no entry yet, and no GPU has run it. lab.estimate predicts 11.8 GiB of memory for `pre` on one H100 and, at an MFU of
# 40%, 462,814 tokens/s:
#     python -m lab.estimate config/track/gpu.py
#     python -m lab.estimate config/track/gpu.py --scale=1
# So a run takes 18 minutes, without evaluations and compiling, and the 20 runs of an entry take 6 hours.
include('config/arch/pre.py')
dataset = 'fineweb'
vocab_size = 50304                      # GPT-2's 50257, padded to a multiple of 64, which is faster on a GPU
n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024
batch_size = 16                         # fits into 24 GB
gradient_accumulation_steps = 16        # 262,144 tokens an iteration
max_iters = 1920                        # 503M tokens
warmup_iters = 192
schedule = 'cosine'
lr_decay_iters = 0
min_lr = 0.0
optimizer = 'adamw'
learning_rate = 6e-4                    # of GPT-2, as is the decay; an entry chooses its own
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0
dropout = 0.0
eval_interval = 480
eval_iters = 125                        # 2000 windows of each split
log_interval = 10
dtype = 'bfloat16'
compile = True
_rates = [6e-4, 1.2e-3, 2.4e-3]         # each entry tries these first, with seed 1
# The first entry, `pre`, will give the fingerprint of the data, a seed's standard deviation, and the tolerance of a repetition.
_planned = ''                           # entries that `make results-run` makes
_hours = 6                              # of each, on one H100
