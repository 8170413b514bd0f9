# Blockwise LR with Adam-mini, Lion, and the schedule WSD
#     python sweep.py config/sweep/blockwise_optimizers.py
arguments = 'config/base/laptop.py config/arch/pre.py'
out_dir = 'out-sweep/blockwise_optimizers'
_wsd = 'config/optim/adamw.py config/lr/wsd.py'
grids = [dict(optim={'Adam-mini': 'config/optim/adam_mini.py'}, blockwise={'no': ''}, learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(optim={'Adam-mini': 'config/optim/adam_mini.py'}, blockwise={'4/1/4/4': 'config/lr/blockwise_adam_mini.py'},
              learning_rate=[5e-4, 1e-3, 2e-3, 4e-3]),
         dict(optim={'Lion': 'config/optim/lion.py'}, blockwise={'no': ''}, learning_rate=[1.25e-4, 2.5e-4, 5e-4, 1e-3]),
         dict(optim={'Lion': 'config/optim/lion.py'}, blockwise={'10/8/6/4': 'config/lr/blockwise.py'},
              learning_rate=[6e-5, 1.2e-4, 2.5e-4, 5e-4]),
         dict(optim={'AdamW, WSD': _wsd}, blockwise={'no': ''}, learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(optim={'AdamW, WSD': _wsd}, blockwise={'10/8/6/4': 'config/lr/blockwise.py'},
              learning_rate=[2.5e-4, 5e-4, 1e-3, 2e-3])]
