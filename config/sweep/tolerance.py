# Does a placement buy loss, or tolerance? The loss against eight learning rates, a factor of 2 apart, on one grid per optimizer
#     python -m lab.sweep config/sweep/tolerance.py
# All embeddings start with a standard deviation of 0.08. GPT-2's other matrices start with 3.46 times its 0.02, which at a width
# of 64 gives them the gain of a width of 768.
# The weight decays are the usual ones, not tuned. One seed, so no claims. 113 of the 144 runs have ended, by commit 14cd207. No
# claim needs the others, so they are not planned.
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/tolerance'
csv = 'results/csv/tolerance.csv'
seeds = 1
extend = 0
diverged_loss = 3.0
diverged_rise = 0.5
_archs = {arch: f'config/arch/{arch}.py --emb_init=normal --emb_std=0.08' + ' --init_gain=3.46' * (arch not in ('s1', 's5'))
          for arch in ('pre', 's1', 's5', 'peri', 'post', 'hybrid')}
_optims = {'adamw': ('', 5e-4), 'muon': ('', 2e-3), 'sgdw': ('--weight_decay=2e-3', 0.05)}      # (more, lowest rate)
grids = [dict(arch=_archs, optim={optim: f'config/optim/{optim}.py --min_lr=0 {more}'},
              learning_rate=[lowest * 2 ** i for i in range(8)]) for optim, (more, lowest) in _optims.items()]
