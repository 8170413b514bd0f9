# LN stability, figure 1: models whose hidden states are then measured, 24 thin layers deep
#     python sweep.py config/sweep/ln_depth.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=4e-3 --n_layer=24 --n_embd=64 --n_head=1'
out_dir = 'out-sweep/ln_depth'
grids = [dict(arch=['pre', 'peri'], residual_scale=[1.0, 0.1])]
