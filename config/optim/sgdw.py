# Momentum SGDW as DNT uses it for language (DNT, table 5). The warm-up belongs to the experiment; DNT has none.
optimizer = 'sgdw'
learning_rate = 1.0
min_lr = 6e-5
weight_decay = 1e-4
momentum = 0.9
