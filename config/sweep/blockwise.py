# Blockwise LR with AdamW: 'ramp' and 'jump' against the tuned baseline
#     python sweep.py config/sweep/blockwise.py --against=lr=none,arch=pre
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=10 --min_lr=0 --eval_interval=40'
out_dir = 'out-sweep/blockwise'
_archs = ['pre', 'llama', 's5']
grids = [dict(arch=_archs, lr=['none'], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(arch=_archs, lr=['blockwise'], blockwise=['ramp', 'jump'], learning_rate=[2.5e-4, 5e-4, 1e-3, 2e-3])]
