# Lion at the size and length of config/train_quick.py, with the best rate of config/sweep/quick.py
# Validation loss, one seed: 1.378 at 6.4e-3, the largest rate tried; 1.389 at 3.2e-3.
include('config/optim/lion.py')
learning_rate = 6.4e-3
min_lr = 0.0
