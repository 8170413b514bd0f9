# Which weight decay suits each optimizer? ladder.py takes its decays from here
#     python -m lab.sweep config/sweep/decay.py
# Today only mSGDW's was tuned, after a look at test losses. Here both are, alike: three decays a factor of 3 apart, around values
# of which rate times decay is about the same. The rule, written down before the runs: ladder.py and tolerance.py take, for each
# optimizer, the decay with the lowest mean over S1 and DNT of the validation loss at the row's best rate. One seed, so no claims.
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/decay'
seeds = 1
diverged_loss = 3.0             # nats a byte; about what the frequencies of single bytes give
diverged_rise = 0.5
_settings = {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py'}
_optims = {'adamw': ([0.03, 0.1, 0.3], [4e-3, 8e-3, 16e-3]), 'sgdw': ([6e-4, 2e-3, 6e-3], [0.2, 0.4, 0.8])}
grids = [dict(setting=_settings, optim={optim: f'config/optim/{optim}.py --min_lr=0'}, weight_decay=decays, learning_rate=rates)
         for optim, (decays, rates) in _optims.items()]
