# LN stability, table 2: Pre-LN and Peri-LN with smaller residual steps
#     python sweep.py config/sweep/ln_steps.py
arguments = 'config/base/laptop.py config/optim/adamw.py'
out_dir = 'out-sweep/ln_steps'
grids = [dict(arch=['pre', 'peri'], residual_scale=[1.0, 0.3, 0.1], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3])]
