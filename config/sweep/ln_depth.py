# LN stability, figure 1: models of 24 thin layers that learn to read, whose hidden states are to be measured
#     python -m lab.sweep config/sweep/ln_depth.py
# Weights start as in ln_residual.py. 0.004 is the best rate of Peri-LN there.
arguments = ('config/base/pypkg_small.py config/optim/adamw.py --n_layer=24 --learning_rate=4e-3 --min_lr=0 --dtype=bfloat16 '
             '--init_gain=4 --tie_weights=False --emb_std=0.02')
out_dir = 'out-sweep/ln_depth'
grids = [dict(arch=['pre', 'peri'], residual_scale=[1.0, 0.1])]
