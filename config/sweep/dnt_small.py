# S1 and DNT by AdamW and by momentum SGDW, from tied embeddings of 0.02. Those of dnt_parts.py start as a head does
#     python -m lab.sweep config/sweep/dnt_small.py
arguments = 'config/base/pypkg.py --dtype=bfloat16'
out_dir = 'out-sweep/dnt_small'
seeds = 5
halving = '0.25,0.5'
extend = 2
_archs = {'S1': 'config/arch/s1.py --emb_std=0.02', 'DNT': 'config/arch/s5.py --emb_std=0.02'}
_tokens = {'0.4M': '--max_iters=200 --warmup_iters=20 --eval_interval=50', '4.5M': ''}
_rates = {'adamw': [4e-3, 8e-3, 16e-3], 'sgdw': [0.2, 0.4, 0.8]}
grids = [dict(setting=_archs, tokens=_tokens, optim=[optim], learning_rate=rates) for optim, rates in _rates.items()]
