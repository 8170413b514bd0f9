# Stable-Transformer without warm-up, with the paper's share of it and with a tenth of the iterations; and each of its parts alone
#     python -m lab.sweep config/sweep/stable_warmup.py
arguments = 'config/base/pypkg_small.py config/optim/adamw.py'
out_dir = 'out-sweep/stable_warmup'
seeds = 5
halving = '0.25,0.5'
extend = 2
_warmup = {'none': '--warmup_iters=0', '0.3%': '--warmup_iters=4', '10%': '--warmup_iters=128'}
_whole = {'GPT-2': 'config/arch/pre.py', 'Stable-Transformer': 'config/arch/stable.py'}
# The embedding starts as a head, as in the authors' code, which draws every matrix by the same rule
_starts = {name: f'config/arch/pre.py --init={init} --emb_std=0 --fused_qkv_init=True'
           for name, init in (('Xavier', 'xavier'), ('StableInit', 'stable'))}
_parts = {**_starts,
          'StableNorm': 'config/arch/pre.py --norm=stablenorm --norm_alpha=0.475 --norm_eps=1e-8',
          'StableAtten': 'config/arch/pre.py --attention=stable',
          'L2': 'config/arch/pre.py --attention=l2',
          'L2, tied': 'config/arch/pre.py --attention=l2_tied'}
_rates = [1e-3, 2e-3, 4e-3, 8e-3]
grids = [dict(model=_whole, warmup=_warmup, learning_rate=_rates),
         dict(model=_parts, warmup={'none': _warmup['none']}, learning_rate=_rates)]
