# Muon at the size and length of config/train_quick.py, with the best rate of config/sweep/quick.py
# Validation loss, one seed: 1.073 at 16e-3; 1.110 at 8e-3, 1.087 at 32e-3.
include('config/optim/muon.py')
learning_rate = 16e-3
min_lr = 0.0
