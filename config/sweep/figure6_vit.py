# DNT's settings S1 to S5 by momentum SGDW on images, at one rate for all and each at its best (DNT, figure 6, left)
#     python -m lab.sweep config/sweep/figure6_vit.py
# In the paper, which has one rate for all, 0.1, S3 is best here, and not S5 (DNT).
script = 'vision.train'
arguments = 'config/base/laptop_vision.py config/optim/sgdw.py --min_lr=0 --weight_decay=1e-3'
out_dir = 'out-sweep/figure6_vit'
csv = 'results/csv/figure6_vit.csv'
seeds = 5
_archs = ['s1', 's2', 's3', 's4', 's5']
grids = [dict(arch=_archs, rate={'0.1 for all': ''}, learning_rate=[0.1]),
         *(dict(arch=[arch], rate={'best': ''}, learning_rate=[0.02, 0.04, 0.08], seeds=17 if arch in ('s3', 's5') else 5)
           for arch in _archs)]
