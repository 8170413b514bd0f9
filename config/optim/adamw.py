# AdamW as DNT's paper uses it (table 5); the warm-up is the experiment's, 2000 there
optimizer = 'adamw'
learning_rate = 6e-4
min_lr = 6e-5
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
