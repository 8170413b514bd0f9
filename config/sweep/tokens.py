# How far momentum SGDW falls behind AdamW, and how that depends on the number of tokens: 0.4M to 16M, 2 to 74 for each parameter
#     python -m lab.sweep config/sweep/tokens.py
arguments = 'config/base/pypkg.py'
out_dir = 'out-sweep/tokens'
halving = '0.25,0.5'
extend = 2
_settings = {'S1': 'config/arch/s1.py', 'Pre-LN': 'config/arch/pre.py', 'S1+InputNorm': 'config/arch/s1.py --input_norm=True',
             'DNT': 'config/arch/s5.py'}
_tokens = {f'{iters * 2048 / 1e6:.1f}M': f'--max_iters={iters} --warmup_iters={iters // 10} --eval_interval={iters // 4}'
           for iters in (200, 800, 3200, 8000)}
grids = [dict(setting=_settings, tokens=_tokens, optim=['adamw'], learning_rate=[2e-3, 4e-3, 8e-3]),
         dict(setting=_settings, tokens=_tokens, optim=['sgdw'], learning_rate=[0.2, 0.4, 0.8])]
