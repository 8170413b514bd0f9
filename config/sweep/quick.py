# Which learning rate suits each optimizer at the size of train_quick.py? One seed; config/optim/*_small.py have the best
#     python -m lab.sweep config/sweep/quick.py           # about 15 runs, 40 minutes of one core
arguments = 'config/train_quick.py --eval_interval=1500'
out_dir = 'out-sweep/quick'
csv = 'results/csv/quick.csv'
seeds = 1
_rates = dict(sgdw=[0.1, 0.3, 1.0], adamw=[2e-3, 4e-3, 8e-3], adam_mini=[2e-3, 4e-3, 8e-3], lion=[4e-4, 8e-4, 16e-4],
              muon=[4e-3, 8e-3, 16e-3])
grids = [dict(optim={optim: f'config/optim/{optim}_small.py'}, learning_rate=rates) for optim, rates in _rates.items()]
