# Which weight decay suits each placement, with each optimizer? brackets.py has more decays, config/base/tuned.py the best ones
#     python -m lab.sweep config/sweep/decay.py
# All placements are tuned in the same way: decays a factor of 3 apart, around values for which rate × decay is about the same.
# One seed, so no claims. The rule: a placement takes the decay whose row here has the lowest validation loss at its best rate. S1
# and DNT ran first, and were to give one decay to all. But their best decays differ (AdamW: 0.1 and 0.3), and with the same decay
# DNT leads by 0.06 to 0.14. So each placement has its own, which was decided before any run of base.py.
include('config/base/tuned.py')
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/decay'
csv = 'results/csv/decay.csv'           # by commit 14cd207
seeds = 1
diverged_loss = 3.0             # nats per byte; about the loss of predicting each byte by its frequency
diverged_rise = 0.5
_rates = {'adamw': [4e-3, 8e-3, 16e-3], 'sgdw': [0.2, 0.4, 0.8]}
grids = [dict(setting={name: _placements(64)[name] for name in names}, weight_decay=decays, learning_rate=_rates[optim],
              optim={optim: f'config/optim/{optim}.py --min_lr=0'})
         for names, optim, decays in ((('S1', 'DNT'), 'adamw', [0.03, 0.1, 0.3]), (('S1', 'DNT'), 'sgdw', [6e-4, 2e-3, 6e-3]),
                                      (('DNT',), 'adamw', [1.0]), (('DNT',), 'sgdw', [2e-2]),
                                      (('Pre', 'S1+InputNorm', 'S1 large', 'Peri'), 'adamw', [0.03, 0.1, 0.3]),
                                      (('Pre', 'S1+InputNorm', 'S1 large', 'Peri'), 'sgdw', [6e-4, 2e-3, 6e-3]))]
