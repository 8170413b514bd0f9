# Blockwise LR with AdamW on DNT, by jump, against a baseline with the same short warm-up; recipe.py has ramp and a long warm-up
#     python -m lab.sweep config/sweep/blockwise_dnt.py
arguments = 'config/base/laptop.py config/optim/adamw.py config/arch/s5.py --warmup_iters=10'
out_dir = 'out-sweep/blockwise_dnt'
grids = [dict(lr=['none'], learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(lr=['blockwise'], blockwise=['jump'], learning_rate=[2.5e-4, 5e-4, 1e-3])]
