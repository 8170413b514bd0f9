# Decays beyond the edges of decay.py's grid, and those of Post-LN. base.py and its followers take their decays from both
#     make results-run SWEEPS=brackets
# In decay.py the best decay of five rows is the largest or the smallest that was tried. Each gets one more here, a factor of 3
# further. Post-LN was not in it; by momentum SGDW its best of three was the smallest, so it has two more. The rule is that of
# decay.py: the lowest validation loss at the row's best rate.
include('config/base/placements.py')
_commit = '14cd207'             # whose code trains these runs
_hours = 0.7                    # of one core, as planned
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/brackets'
seeds = 1
diverged_loss = 3.0             # nats a byte; about what the frequencies of single bytes give
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
