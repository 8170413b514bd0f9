# StableAtten against L2 attention, tied and untied, and dot products, on an otherwise equal Pre-LN model without warm-up
#     python sweep.py config/sweep/attention.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0 config/arch/pre.py'
out_dir = 'out-sweep/attention'
grids = [dict(attention=['dot', 'stable', 'l2', 'l2_tied'], learning_rate=[2e-3, 4e-3, 8e-3])]
