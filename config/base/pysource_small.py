# What the smaller runs behind results/ share: pysource.py with 0.13M parameters, also with 20 bytes for each
include('config/base/pysource.py')
n_embd = 48
max_iters = 1280
warmup_iters = 128
eval_interval = 320
eval_iters = 50
