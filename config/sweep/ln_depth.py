# LN stability, figure 1: models of 24 thin layers, whose hidden states are to be measured
#     python -m lab.sweep config/sweep/ln_depth.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=4e-3 --n_layer=24 --n_embd=64 --n_head=1'
out_dir = 'out-sweep/ln_depth'
grids = [dict(arch=['pre', 'peri'], residual_scale=[1.0, 0.1])]
