# Seven placements at 0.2M parameters, by AdamW and by momentum SGDW, each at its own weight decay and learning rate
#     python -m lab.sweep config/sweep/base.py
# Decays and rates come from config/base/tuned.py. Seed 1 chose them, so only the 12 other seeds are compared. Two more rows are
# DNT at the decay of S1, once at its own best rate there and once at the rate of S1. They split what a decay and rate of its own
# are worth to DNT. Half-width of a difference's interval: 0.012 by AdamW.
# No claim compares Peri and Post by AdamW, nor Pre, Peri and S1 large by momentum SGDW. S1 large has 7 runs from an earlier plan.
include('config/base/tuned.py')
tuned_elsewhere = True          # so no comparison uses seed 1
arguments = 'config/base/pysource.py --eval_interval=1100'
out_dir = 'out-sweep/base'
csv = 'results/csv/base.csv'            # by commit 14cd207
seeds = 13
diverged_loss = 3.0             # nats a byte; predicting each byte by its frequency has 3.2, and by the byte before it 2.5
diverged_rise = 0.5
_rows = {optim: {name: f'{_placements(64)[name]} --weight_decay={decay} --learning_rate={rate}'
                 for name, (decay, rate) in rows.items()} for optim, rows in _tuned.items()}
_rows['adamw']['DNT with the decay of S1'] = f'{_placements(64)["DNT"]} --weight_decay=0.1 --learning_rate=16e-3'
_rows['adamw']['DNT with the decay and rate of S1'] = f'{_placements(64)["DNT"]} --weight_decay=0.1 --learning_rate=8e-3'
_dropped = {'adamw': ('Peri', 'Post'), 'sgdw': ('Pre', 'Peri', 'S1 large')}
grids = [dict(optim={optim: f'config/optim/{optim}.py --min_lr=0'},
              setting={name: row for name, row in rows.items() if name not in _dropped[optim]})
         for optim, rows in _rows.items()]
grids += [dict(optim={'sgdw': 'config/optim/sgdw.py --min_lr=0'}, setting={'S1 large': _rows['sgdw']['S1 large']}, seeds=7)]
