# Stable-Transformer without warm-up: what StableInit, StableNorm and StableAtten do alone and together, against the learning rate
#     python sweep.py config/sweep/stable.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0'
out_dir = 'out-sweep/stable'
_norm = '--norm=stablenorm --norm_alpha=0.475 --norm_eps=1e-8'
grids = [dict(model={'GPT-2': 'config/arch/pre.py',
                     'Xavier': 'config/arch/pre.py --init=xavier',
                     'StableInit': 'config/arch/pre.py --init=stable',
                     'StableNorm': f'config/arch/pre.py {_norm}',
                     'StableAtten': 'config/arch/pre.py --attention=stable',
                     'all three': 'config/arch/stable.py'},
              learning_rate=[1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2])]
