# All placements of norms, with AdamW and with Muon, each at its best learning rate
#     python -m lab.sweep config/sweep/placements.py
arguments = 'config/base/laptop.py'
out_dir = 'out-sweep/placements'
seeds = 1
halving = '0.25,0.5'
extend = 1
_archs = ['pre', 'post', 'peri', 'off', 's1', 's2', 's3', 's4', 's5', 'stable', 'hybrid', 'deepnorm', 'keel', 'mixln', 'lns',
          'simplenorm', 'dyt', 'derf', 'layerscale', 'rezero', 'embskip']
grids = [dict(arch=_archs, optim=['adamw', 'muon'], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3])]
