# Decays beyond the edges of decay.py's grid, and decays for Post-LN. base.py and its successors take their decays from both files
#     python -m lab.sweep config/sweep/brackets.py
# In decay.py the best decay of five rows is the largest or the smallest one tried. Each of these rows gets one more decay here, a
# factor of 3 further. decay.py has no Post-LN; by momentum SGDW its best of three decays was the smallest, so it gets two more.
# The rule is that of decay.py: the lowest validation loss at the row's best rate.
include('config/base/tuned.py')
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/brackets'
csv = 'results/csv/brackets.csv'        # by commit 14cd207
seeds = 1
diverged_loss = 3.0             # nats per byte; about the loss of predicting each byte by its frequency
diverged_rise = 0.5
_settings = {**_placements(64), 'Post': 'config/arch/post.py --emb_std=0.08 --init_gain=3.46'}
grids = [dict(setting={name: _settings[name] for name in names}, weight_decay=decays, learning_rate=rates,
              optim={optim: f'config/optim/{optim}.py --min_lr=0'})
         for names, optim, decays, rates in (
             (('Peri',), 'adamw', [1.0], [4e-3, 8e-3, 16e-3]),
             (('Pre', 'S1+InputNorm', 'S1 large', 'Peri', 'Post'), 'sgdw', [2e-4], [0.4, 0.8, 1.6]),
             (('Post',), 'sgdw', [6e-5], [0.4, 0.8, 1.6]),
             (('Post',), 'adamw', [0.03, 0.1, 0.3], [4e-3, 8e-3, 16e-3]),
             (('Post',), 'sgdw', [6e-4, 2e-3, 6e-3], [0.2, 0.4, 0.8]))]
