# AdamW at the size and length of config/train_quick.py, with the best rate of config/sweep/quick.py
# Validation loss, one seed: 1.283 at 4e-3; 1.316 at 2e-3, 1.325 at 8e-3.
include('config/optim/adamw.py')
learning_rate = 4e-3
min_lr = 0.0
