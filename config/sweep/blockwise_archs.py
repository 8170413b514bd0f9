# Blockwise LR with AdamW on other architectures
#     python sweep.py config/sweep/blockwise_archs.py
arguments = 'config/base/laptop.py config/optim/adamw.py'
out_dir = 'out-sweep/blockwise_archs'
_archs = ['llama', 's5']
grids = [dict(arch=_archs, lr=['none'], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(arch=_archs, lr=['blockwise'], blockwise=['ramp', 'jump'], learning_rate=[2.5e-4, 5e-4, 1e-3, 2e-3])]
