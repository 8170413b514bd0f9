# What the sweeps of ViTs share: the model of 0.2M parameters and the data of train_quick_vision.py, for 300 iterations of
# 64 images, which are 13 epochs
include('config/train_quick_vision.py')
max_iters = 300
warmup_iters = 30
eval_interval = 50
always_save_checkpoint = False
