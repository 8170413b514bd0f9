# Stable-Transformer with a warm-up of a tenth and without one, each of its parts alone, and all at one large learning rate
#     python -m lab.sweep config/sweep/stable_warmup.py
arguments = 'config/base/pypkg_small.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/stable_warmup'
seeds = 5
halving = '0.25,0.5'
extend = 2
# At a width of 48, GPT-2's matrices have as large a gain as those of the paper's width of 768 with 4 times the standard deviation
_pre = 'config/arch/pre.py --init_gain=4 --emb_std=0.08'
_whole = {'GPT-2': _pre, 'Stable': 'config/arch/stable.py'}
_l2 = {'Stable L2': 'config/arch/stable.py --attention=l2', 'Stable tied L2': 'config/arch/stable.py --attention=l2_tied'}
# Every matrix starts by one rule, the tied embedding as a head, as in the paper's code; and with equal embeddings
_starts = {f'{name}{more}': f'config/arch/pre.py --init={init} --emb_std={emb_std} --fused_qkv_init=True'
           for name, init in (('Xavier', 'xavier'), ('StableInit', 'stable')) for more, emb_std in (('', 0), (' 0.08', 0.08))}
_atten = {'StableAtten': f'{_pre} --attention=stable'}
_norm = {f'α {alpha:g}': f'{_pre} --norm=stablenorm --norm_alpha={alpha} --norm_eps=1e-8' for alpha in (0, 0.25, 0.5)}
_warm, _none, _large = {'10%': ''}, {'none': '--warmup_iters=0'}, {'none at 0.032': '--warmup_iters=0'}
_rates = [2e-3, 4e-3, 8e-3]
grids = [dict(model={**_whole, **_l2}, warmup=_warm, learning_rate=_rates),
         dict(model={**_whole, **_starts, **_atten, **_norm}, warmup=_none, learning_rate=_rates),
         dict(model={**_whole, 'Xavier': _starts['Xavier'], 'StableInit': _starts['StableInit'], **_atten}, warmup=_large,
              learning_rate=[3.2e-2])]
