# WSD as in sharpness disparity's code, which differs from their text, wsd.py: each type's rate falls from its own peak at a third
# of the iterations to the base rate at two thirds, and then with the base rate to a tenth of that. Blockwise LR is to be added.
schedule = 'wsd'
decay_frac = 1 / 3
blockwise = 'merge'
min_lr = learning_rate / 10
