# What does momentum SGDW cost after 16M bytes? Four placements at 0.2M parameters, with the schedule of tokens.py
#     python -m lab.sweep config/sweep/tokens_sgdw.py
# tokens.py has S1, Pre and DNT by AdamW; S1 large by AdamW is here. Weight decays follow the rule of tokens.py, from those of
# base.py. Three rates a factor of 2 apart, around that of base.py. Seed 1 tunes, and four others are compared.
include('config/sweep/tokens.py')
arguments = arguments.replace('config/optim/adamw.py ', '')
out_dir = 'out-sweep/tokens_sgdw'
csv = 'results/csv/tokens_sgdw.csv'
seeds = 5
_rows = [('sgdw', name) for name in ('Pre', 'S1', 'S1 large', 'DNT')] + [('adamw', 'S1 large')]
grids = [dict(optim={optim: f'config/optim/{optim}.py'},
              setting={name: f'{_placements(64)[name]} --weight_decay={decay * 2200 / _iterations:.4g}'},
              learning_rate=[rate / 2, rate, 2 * rate])
         for optim, name in _rows for decay, rate in [_tuned[optim][name]]]
