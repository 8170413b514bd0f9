# Momentum SGDW at the size and length of config/train_quick.py, with the best rate of config/sweep/quick.py
# Validation loss, one seed: 1.412 at 0.3; 1.541 at 0.1, 1.534 at 1.0.
include('config/optim/sgdw.py')
learning_rate = 0.3
