# Every optimizer on every architecture, among them Lion and Adam-mini on DNT, which DNT's paper does not try
#     python -m lab.sweep config/sweep/beyond.py
arguments = 'config/base/laptop.py'
out_dir = 'out-sweep/beyond'
_archs = ['pre', 'peri', 's5', 'stable']
grids = [dict(arch=_archs, optim=['adamw'], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(arch=_archs, optim=['adam_mini'], learning_rate=[5e-4, 1e-3, 2e-3, 4e-3, 8e-3]),
         dict(arch=_archs, optim=['lion'], learning_rate=[1.25e-4, 2.5e-4, 5e-4, 1e-3]),
         dict(arch=_archs, optim=['sgdw'], learning_rate=[0.03, 0.1, 0.3, 1.0])]
