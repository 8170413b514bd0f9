# momentum SGDW as DNT's paper uses it (table 5); the warm-up is the experiment's, none there
optimizer = 'sgdw'
learning_rate = 1.0
min_lr = 6e-5
weight_decay = 1e-4
momentum = 0.9
