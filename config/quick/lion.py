# Lion at the size and length of config/train_quick.py, with the best of its rates in config/sweep/quick.py, which is the largest
include('config/optim/lion.py')
learning_rate = 64e-4
min_lr = 0.0
