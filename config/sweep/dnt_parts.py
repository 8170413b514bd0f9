# Which part of DNT does what, with embeddings that start at a standard deviation of 0.02 and as a head does. The rows whose
# contrasts decide have 8 seeds, the others 3.
#     python -m lab.sweep config/sweep/dnt_parts.py
arguments = 'config/base/pypkg.py'
out_dir = 'out-sweep/dnt_parts'
halving = '0.25,0.5'
extend = 2
_ends = {'S1': 'config/arch/s1.py', 'S5': 'config/arch/s5.py'}
_input = {'S1+InputNorm': 'config/arch/s1.py --input_norm=True'}
_between = {f'S{i}': f'config/arch/s{i}.py' for i in (2, 3, 4)}
_small, _head = {'0.02': '--emb_std=0.02'}, {'as a head': '--emb_std=0'}
_rates = {'adamw': [2e-3, 4e-3, 8e-3], 'sgdw': [0.2, 0.4, 0.8]}
grids = [dict(setting=setting, embedding=embedding, optim=[optim], learning_rate=rates, seeds=seeds)
         for setting, embedding, seeds in ((_ends, _head, 8), (_input, _head, 8), (_between, _head, 3),
                                           ({**_ends, **_input, **_between}, _small, 3))
         for optim, rates in _rates.items()]
