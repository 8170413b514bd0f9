# Shared by the sweeps of ViTs: the 0.2M-parameter model and the data of train_quick_vision.py, for 300 iterations of 64 images,
# or 13 epochs
include('config/train_quick_vision.py')
max_iters = 300
warmup_iters = 30
eval_interval = 50
always_save_checkpoint = False
eval_train = False
