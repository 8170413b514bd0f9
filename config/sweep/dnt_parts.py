# Which part of DNT does what, with embeddings that start at a standard deviation of 0.02 and as a head does
#     python -m lab.sweep config/sweep/dnt_parts.py
arguments = 'config/base/pypkg.py'
out_dir = 'out-sweep/dnt_parts'
seeds = 8
halving = '0.25,0.5'
extend = 2
_settings = {'S1': 'config/arch/s1.py', 'S1+InputNorm': 'config/arch/s1.py --input_norm=True',
             **{f'S{i}': f'config/arch/s{i}.py' for i in (2, 3, 4, 5)}}
_starts = {'0.02': '--emb_std=0.02', 'as a head': '--emb_std=0'}
grids = [dict(setting=_settings, embedding=_starts, optim=['adamw'], learning_rate=[2e-3, 4e-3, 8e-3]),
         dict(setting=_settings, embedding=_starts, optim=['sgdw'], learning_rate=[0.1, 0.3, 0.9])]
