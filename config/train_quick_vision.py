# A small V-DNT on digits of 8 × 8 pixels, by momentum SGDW; `make quickstart-vision` runs it
#     python -m vision.train config/train_quick_vision.py
# This takes about a minute on two CPU cores. It classifies 345 of 355 validation images correctly in bfloat16, 348 in float32.
out_dir = 'out-quick-vision'
dataset = 'digits'
include('config/arch/s5.py')
n_layer, n_head, n_embd = 4, 2, 64
image_size, patch_size, channels, classes = 8, 2, 1, 10
pool = 'cls'
drop_path = 0.1
batch_size = 64
gradient_accumulation_steps = 1
optimizer = 'sgdw'
learning_rate = 0.1
min_lr = 0.0
weight_decay = 1e-3
grad_clip = 0.0
label_smoothing = 0.1
max_iters = 600
warmup_iters = 60
eval_interval = 50
eval_iters = 20
log_interval = 25
compile = False                         # on a CPU, compiling needs a C++ compiler and takes longer than it saves
