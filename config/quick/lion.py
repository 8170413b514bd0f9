# Lion at the size and length of config/train_quick.py, with the best of its rates in config/sweep/quick.py
include('config/optim/lion.py')
learning_rate = 8e-4
min_lr = 0.0
