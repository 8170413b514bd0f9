# Momentum SGDW as DNT uses it for language (DNT, table 5). The warm-up belongs to the experiment.
# DNT's table 5 has none, its appendix B 2000 iterations.
# The paper uses timm's SGDW. The class itself has plain momentum, as in the paper's equation and here. Created by the name
# 'sgdw', it has Nesterov's momentum. The paper does not say how it was created.
optimizer = 'sgdw'
learning_rate = 1.0
min_lr = 6e-5
weight_decay = 1e-4
momentum = 0.9
