# Blockwise LR with AdamW, by ramp and by jump. A ramp is a longer warm-up, so there are baselines with warm-ups of three lengths
#     python -m lab.sweep config/sweep/blockwise.py --against=warmup_iters=40,lr=none
arguments = 'config/base/laptop.py config/optim/adamw.py config/arch/pre.py'
out_dir = 'out-sweep/blockwise'
grids = [dict(warmup_iters=[10, 40, 100], lr=['none'], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(warmup_iters=[10, 40, 100], lr=['blockwise'], blockwise=['ramp', 'jump'], learning_rate=[2.5e-4, 5e-4, 1e-3, 2e-3])]
