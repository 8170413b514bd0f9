# momentum SGDW as DNT is trained with it (DNT, table 5)
optimizer = 'sgdw'
learning_rate = 1.0
min_lr = 6e-5
weight_decay = 1e-4
momentum = 0.9
warmup_iters = 0
