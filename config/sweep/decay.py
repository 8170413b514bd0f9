# Does momentum SGDW fall behind because its weights decay less? What decays a weight is the sum of rate times weight decay
# over the iterations, and the paper's constants are for about 100 times as many
#     python -m lab.sweep config/sweep/decay.py
arguments = 'config/base/pypkg.py'
out_dir = 'out-sweep/decay'
seeds = 5
halving = '0.25,0.5'
extend = 2
_settings = {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py'}
_rates = {'sgdw': [0.2, 0.4, 0.8], 'adamw': [4e-3, 8e-3]}
grids = [dict(setting=_settings, optim=[optim], weight_decay=decays, learning_rate=_rates[optim], seeds=seeds)
         for optim, decays, seeds in (('sgdw', [0.0001, 0.002], 5), ('adamw', [0.1], 5),
                                      ('adamw', [0.5], 1), ('sgdw', [0.01], 1))]
