# Blockwise LR at two other sizes: 0.2M and 1.8M parameters, in four layers of width 64 and 192. blockwise.py has width 128
#     python -m lab.sweep config/sweep/blockwise_sizes.py
arguments = 'config/base/laptop.py config/optim/adamw.py config/arch/pre.py'
out_dir = 'out-sweep/blockwise_sizes'
_64 = {64: '--n_embd=64 --n_head=1'}
_192 = {192: '--n_embd=192 --n_head=3'}
grids = [dict(width=_64, lr=['none'], warmup_iters=[10], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(width=_64, lr=['none'], warmup_iters=[100], learning_rate=[2e-3, 4e-3, 8e-3, 1.6e-2]),
         dict(width=_64, lr=['blockwise'], blockwise=['ramp'], warmup_iters=[10], learning_rate=[2.5e-4, 5e-4, 1e-3, 2e-3]),
         dict(width=_192, lr=['none'], warmup_iters=[10], learning_rate=[5e-4, 1e-3, 2e-3, 4e-3]),
         dict(width=_192, lr=['none'], warmup_iters=[100], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(width=_192, lr=['blockwise'], blockwise=['ramp'], warmup_iters=[10], learning_rate=[2.5e-4, 5e-4, 1e-3])]
