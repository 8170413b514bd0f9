# LN stability, table 2: Pre-LN and Peri-LN with smaller residual steps, without weight decay, and with an InputNorm
#     python -m lab.sweep config/sweep/ln_residual.py
arguments = 'config/base/pypkg_small.py config/optim/adamw.py'
out_dir = 'out-sweep/ln_residual'
seeds = 5
halving = '0.25,0.5'
extend = 2
_changes = {'none': '', 'step 0.3': '--residual_scale=0.3', 'step 0.1': '--residual_scale=0.1', 'InputNorm': '--input_norm=True',
            'no weight decay': '--weight_decay=0'}
grids = [dict(arch=['pre', 'peri'], change=_changes, learning_rate=[1e-3, 2e-3, 4e-3, 8e-3])]
