# Shared by the smaller runs behind results/: pysource.py with 0.13M parameters, also with 20 bytes per parameter
include('config/base/pysource.py')
n_embd = 48
max_iters = 1280
warmup_iters = 128
eval_interval = 320
eval_iters = 50
