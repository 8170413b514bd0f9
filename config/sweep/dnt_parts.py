# Which part of DNT does what, with embeddings that start as a head does; dnt_small.py has them at a standard deviation of 0.02.
# The rows whose contrasts decide have 8 seeds, the others 3.
#     python -m lab.sweep config/sweep/dnt_parts.py
arguments = 'config/base/pypkg.py'
out_dir = 'out-sweep/dnt_parts'
halving = '0.25,0.5'
extend = 2
_ends = {'S1': 'config/arch/s1.py', 'S5': 'config/arch/s5.py'}
_input = {'S1+InputNorm': 'config/arch/s1.py --input_norm=True'}
_between = {f'S{i}': f'config/arch/s{i}.py' for i in (2, 3, 4)}
_rates = {'adamw': [2e-3, 4e-3, 8e-3], 'sgdw': [0.2, 0.4, 0.8]}
grids = [dict(setting=setting, optim=[optim], learning_rate=rates, seeds=seeds)
         for setting, seeds in ((_ends, 8), (_input, 8), (_between, 3)) for optim, rates in _rates.items()]
