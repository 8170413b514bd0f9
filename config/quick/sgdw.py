# Momentum SGDW at the size and length of config/train_quick.py, with the best of its rates in config/sweep/quick.py
include('config/optim/sgdw.py')
learning_rate = 0.3
