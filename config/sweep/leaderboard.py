# All placements with AdamW, Muon and momentum SGDW: the loss, its sensitivity to the rate, and the largest rate that trains
#     python -m lab.sweep config/sweep/leaderboard.py
# In all rows the embedding is the head, and starts with a standard deviation of 0.08. Without halving, every rate trains to the
# end. The weight decay of momentum SGDW gives it about the rate times decay of AdamW.
arguments = 'config/base/pypkg_small.py --max_iters=640 --warmup_iters=64 --eval_interval=160 --dtype=bfloat16'
out_dir = 'out-sweep/leaderboard'
seeds = 1
extend = 2
_archs = ['pre', 'post', 'peri', 'off', 's1', 's2', 's3', 's4', 's5', 'stable', 'hybrid', 'deepnorm', 'keel', 'mixln', 'lns',
          'simplenorm', 'dyt', 'derf', 'layerscale', 'rezero', 'embskip']
_optims = {'adamw': ('', [4e-3, 8e-3, 16e-3]), 'muon': ('', [8e-3, 16e-3, 32e-3]),
           'sgdw': ('--weight_decay=2e-3', [0.2, 0.4, 0.8])}
grids = [dict(arch={arch: f'config/arch/{arch}.py --emb_std=0.08' for arch in _archs},
              optim={optim: f'config/optim/{optim}.py --min_lr=0 {more}'}, learning_rate=rates)
         for optim, (more, rates) in _optims.items()]
