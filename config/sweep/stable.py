# Stable-Transformer without warm-up: StableInit, StableNorm and StableAtten, each alone and all together, at five learning rates
#     python -m lab.sweep config/sweep/stable.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0'
out_dir = 'out-sweep/stable'
_norm = '--norm=stablenorm --norm_alpha=0.475 --norm_eps=1e-8'
grids = [dict(model={'GPT-2': 'config/arch/pre.py',
                     'Xavier': 'config/arch/pre.py --init=xavier',
                     'StableInit': 'config/arch/pre.py --init=stable',
                     'StableNorm': f'config/arch/pre.py {_norm}',
                     'StableAtten': 'config/arch/pre.py --attention=stable',
                     'all three': 'config/arch/stable.py',
                     'L2': 'config/arch/pre.py --attention=l2',
                     'L2, tied': 'config/arch/pre.py --attention=l2_tied',
                     'GPT-2, InputNorm': 'config/arch/pre.py --input_norm=True',
                     'StableInit, InputNorm': 'config/arch/pre.py --init=stable --input_norm=True',
                     'all three, InputNorm': 'config/arch/stable.py --input_norm=True'},
              learning_rate=[5e-4, 1e-3, 2e-3, 4e-3, 8e-3])]
