# All placements with AdamW, Muon and momentum SGDW: the loss, its sensitivity to the rate, and the largest rate that trains
#     python -m lab.sweep config/sweep/leaderboard.py
# In all rows the embedding is the head, and starts with a standard deviation of 0.08. GPT-2's other matrices start with 4 times
# its 0.02, which at a width of 48 gives them the gain of a width of 768. Without halving, every rate trains to the end.
arguments = 'config/base/pypkg_small.py --max_iters=640 --warmup_iters=64 --eval_interval=320 --dtype=bfloat16'
out_dir = 'out-sweep/leaderboard'
seeds = 1
extend = 2
_gpt2 = ['pre', 'post', 'peri', 'off', 'hybrid', 'keel', 'mixln', 'lns', 'dyt', 'derf', 'layerscale', 'rezero', 'embskip']
_own = ['s1', 's2', 's3', 's4', 's5', 'simplenorm', 'deepnorm', 'stable']       # which have an initialization of their own
_archs = {arch: f'config/arch/{arch}.py --emb_std=0.08' + ' --init_gain=4' * (arch in _gpt2) for arch in [*_gpt2, *_own]}
_optims = {'adamw': ('', [4e-3, 8e-3, 16e-3]), 'muon': ('', [8e-3, 16e-3, 32e-3]),
           'sgdw': ('--weight_decay=2e-3', [0.2, 0.4, 0.8])}
grids = [dict(arch=_archs, optim={optim: f'config/optim/{optim}.py --min_lr=0 {more}'}, learning_rate=rates)
         for optim, (more, rates) in _optims.items()]
