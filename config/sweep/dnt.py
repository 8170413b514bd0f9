# DNT, table 1: AdamW and momentum SGDW on the standard Transformer and on DNT; and figure 6: DNT's settings S1 to S5
#     python -m lab.sweep config/sweep/dnt.py
arguments = 'config/base/laptop.py'
out_dir = 'out-sweep/dnt'
grids = [dict(arch=['s1', 's2', 's3', 's4', 's5'], optim=['sgdw'], learning_rate=[0.03, 0.1, 0.3, 1.0]),
         dict(arch=['s1', 's5'], optim=['adamw'], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3])]
