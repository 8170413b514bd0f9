# Lion as sharpness disparity uses it: a fifth of AdamW's learning rate, five times its weight decay, and the betas of its code
optimizer = 'lion'
learning_rate = 1.2e-4
min_lr = 6e-6
weight_decay = 0.5
beta1 = 0.95
beta2 = 0.98
