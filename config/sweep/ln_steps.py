# LN stability, table 2: Pre-LN and Peri-LN with smaller residual steps; and Peri-LN with an InputNorm
#     python -m lab.sweep config/sweep/ln_steps.py
arguments = 'config/base/laptop.py config/optim/adamw.py'
out_dir = 'out-sweep/ln_steps'
_rates = [1e-3, 2e-3, 4e-3, 8e-3]
grids = [dict(arch=['pre', 'peri'], residual_scale=[1.0, 0.3, 0.1], learning_rate=_rates),
         dict(arch=['peri'], residual_scale=[1.0], input_norm=[True], learning_rate=_rates)]
