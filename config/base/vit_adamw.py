# AdamW as the vision runs of DNT and of Stable-Transformer use it
# The final rate is that of DNT's table 4. Stable-Transformer's table 3 (b) names none; both papers use the same recipe otherwise.
include('config/optim/adamw.py')
beta1, beta2 = 0.9, 0.99
learning_rate = 1e-3
min_lr = 1e-8
weight_decay = 0.1
