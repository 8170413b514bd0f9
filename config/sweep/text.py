# Are the leads on English prose the same as on Python? Pre-LN and DNT at 0.2M parameters by AdamW, on data/pydocs
#     python -m lab.sweep config/sweep/text.py
# The weight decays are those of base.py. Three rates a factor of 2 apart, around that of base.py.
include('config/base/tuned.py')
arguments = 'config/base/pysource.py config/optim/adamw.py --min_lr=0 --dataset=pydocs --eval_interval=1100'
out_dir = 'out-sweep/text'
csv = 'results/csv/text.csv'            # by commit 14cd207
seeds = 9
diverged_loss = 3.0
diverged_rise = 0.5
grids = [dict(setting={name: f'{_placements(64)[name]} --weight_decay={decay}'}, learning_rate=[rate / 2, rate, 2 * rate])
         for name, (decay, rate) in _tuned['adamw'].items() if name in ('Pre', 'DNT')]
