# Blockwise LR with Adam-mini, with Lion and with the schedule WSD, against baselines with a short and with a long warm-up
#     python -m lab.sweep config/sweep/blockwise_optimizers.py
arguments = 'config/base/laptop.py config/arch/pre.py'
out_dir = 'out-sweep/blockwise_optimizers'
_adam_mini = {'Adam-mini': 'config/optim/adam_mini.py'}
_lion = {'Lion': 'config/optim/lion.py'}
_wsd = {'AdamW, WSD': 'config/optim/adamw.py config/lr/wsd.py'}
_no = {'no': ''}
_ratios = {'10/8/6/4': 'config/lr/blockwise.py'}
grids = [dict(optim=_adam_mini, blockwise=_no, warmup_iters=[10], learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(optim=_adam_mini, blockwise=_no, warmup_iters=[100], learning_rate=[2e-3, 4e-3, 8e-3]),
         dict(optim=_adam_mini, blockwise={'4/1/4/4': 'config/lr/blockwise_adam_mini.py'}, warmup_iters=[10],
              learning_rate=[5e-4, 1e-3, 2e-3]),
         dict(optim=_lion, blockwise=_no, warmup_iters=[10], learning_rate=[1.25e-4, 2.5e-4, 5e-4]),
         dict(optim=_lion, blockwise=_no, warmup_iters=[100], learning_rate=[1.25e-4, 2.5e-4, 5e-4, 1e-3]),
         dict(optim=_lion, blockwise=_ratios, warmup_iters=[10], learning_rate=[3e-5, 6e-5, 1.25e-4, 2.5e-4]),
         dict(optim=_wsd, blockwise=_no, warmup_iters=[10], learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(optim=_wsd, blockwise=_no, warmup_iters=[100], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3]),
         dict(optim=_wsd, blockwise=_ratios, warmup_iters=[10], learning_rate=[2.5e-4, 5e-4, 1e-3])]
