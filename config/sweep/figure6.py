# DNT's settings S1 to S5 by momentum SGDW as the paper compares them, at one rate for all (DNT, figure 6, right)
#     python -m lab.sweep config/sweep/figure6.py
# The paper's rate is 1.0; 0.4 is S1's best rate at 0.2M parameters (results/claims.md).
arguments = 'config/base/pysource_small.py config/optim/sgdw.py --learning_rate=0.4 --min_lr=0'
out_dir = 'out-sweep/figure6'
csv = 'results/csv/figure6.csv'         # by commit 37168e4
seeds = 5
grids = [dict(arch=['s1', 's2', 's3', 's4', 's5'])]
