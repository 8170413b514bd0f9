# Is it the weight decay by which momentum SGDW falls behind? The papers' constants belong to runs that are 100 times longer:
# what decays a weight is the sum of learning rate times weight decay over all iterations
#     python -m lab.sweep config/sweep/decay.py
arguments = 'config/base/pypkg.py'
out_dir = 'out-sweep/decay'
seeds = 5
halving = '0.25,0.5'
extend = 2
_settings = {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py'}
grids = [dict(setting=_settings, optim=['sgdw'], weight_decay=[0.0001, 0.002, 0.01], learning_rate=[0.2, 0.4, 0.8]),
         dict(setting=_settings, optim=['adamw'], weight_decay=[0.1, 0.5], learning_rate=[4e-3, 8e-3])]
