# Blockwise LR with AdamW on DNT, against baselines with a short and with a long warm-up
#     python sweep.py config/sweep/blockwise_dnt.py
arguments = 'config/base/laptop.py config/optim/adamw.py config/arch/s5.py'
out_dir = 'out-sweep/blockwise_dnt'
grids = [dict(lr=['none'], warmup_iters=[10], learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(lr=['none'], warmup_iters=[100], learning_rate=[2e-3, 4e-3, 8e-3]),
         dict(lr=['blockwise'], blockwise=['ramp', 'jump'], warmup_iters=[10], learning_rate=[2.5e-4, 5e-4, 1e-3])]
