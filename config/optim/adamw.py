# AdamW as DNT uses it for language (DNT, table 5). The warm-up belongs to the experiment; DNT has 2000 iterations.
optimizer = 'adamw'
learning_rate = 6e-4
min_lr = 6e-5
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
