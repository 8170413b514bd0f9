# Adam-mini at the size and length of config/train_quick.py, with the best of its rates in config/sweep/quick.py
include('config/optim/adam_mini.py')
learning_rate = 4e-3
min_lr = 0.0
