# Are the leads on English prose the same as on Python? Pre-LN and DNT at 0.2M parameters by AdamW, on data/pydocs
#     make results-run SWEEPS=text
# The weight decays are those of base.py. Three rates a factor of 2 apart, around that of base.py.
include(__file__.rpartition('sweep')[0] + 'base/tuned.py')
_commit = '14cd207'             # commit whose code trains these runs
_hours = 0.5                    # on one core, as planned
arguments = 'config/base/pysource.py config/optim/adamw.py --min_lr=0 --dataset=pydocs --eval_interval=1100'
out_dir = 'out-sweep/text'
seeds = 9
diverged_loss = 3.0
diverged_rise = 0.5
grids = [dict(setting={name: f'{_placements(64)[name]} --weight_decay={decay}'}, learning_rate=[rate / 2, rate, 2 * rate])
         for name, (decay, rate) in _tuned['adamw'].items() if name in ('Pre', 'DNT')]
