# AdamW as language models are trained with it (DNT, table 5)
optimizer = 'adamw'
learning_rate = 6e-4
min_lr = 6e-5
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
warmup_iters = 2000
