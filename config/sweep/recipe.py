# Do the methods add up? DNT by AdamW with a long warm-up, and methods of the other papers on top of it
#     python -m lab.sweep config/sweep/recipe.py --against=change=DNT
arguments = 'config/base/laptop.py config/optim/adamw.py config/arch/s5.py --warmup_iters=100'
out_dir = 'out-sweep/recipe'
_blockwise = 'config/lr/blockwise.py --warmup_iters=10'
grids = [dict(change={'DNT': '', 'StableInit': '--init=stable', 'Δt 0.3': '--residual_scale=0.3',
                      'StableInit, Δt 0.3': '--init=stable --residual_scale=0.3', 'StableAtten': '--attention=stable',
                      'WSD': 'config/lr/wsd.py'},
              learning_rate=[2e-3, 4e-3, 8e-3]),
         dict(change={'Blockwise LR': _blockwise, 'StableInit, Blockwise LR': f'--init=stable {_blockwise}'},
              learning_rate=[2.5e-4, 5e-4, 1e-3])]
