# What the runs behind results/ share: a model of 0.22M parameters that reads the Python sources of packages as bytes, 20 for each
# parameter. Its data:
#     python data/pycode/prepare.py --packages=True --folder=data/pypkg
dataset = 'pypkg'
vocab_size = 256
n_layer = 4
n_head = 2
n_embd = 64
block_size = 128
batch_size = 16
gradient_accumulation_steps = 1
max_iters = 2200
warmup_iters = 220
eval_interval = 550
eval_iters = 100
log_interval = 10
always_save_checkpoint = False
dtype = 'float32'                       # on every machine the same
compile = False                         # on a CPU it pays only in runs of several minutes
