# What the sweeps of ViTs share: a model of 0.2M parameters on digits of 8 × 8 pixels, 300 iterations of 64 images, 13 epochs
include('config/train_quick_vision.py')
max_iters = 300
warmup_iters = 30
eval_interval = 50
always_save_checkpoint = False
