# Do the leads at 4.5M bytes last to 16M? Four placements at 0.2M parameters by AdamW, on 3.6 times the tokens of base.py
#     python -m lab.sweep config/sweep/tokens.py
# 7812 iterations read 16.0M bytes, less than one epoch of data/pysource. The weight decay is that of base.py × 2200/7812, so that
# rate × decay × iterations stays the same. Three rates a factor of 2 apart, around that of base.py. value_residual has the body
# and the start of GPT-2, as in placements.py, and the decay and rate of Pre. Its lead at 4.5M bytes is there.
include('config/base/tuned.py')
_iterations = 7812
arguments = (f'config/base/pysource.py config/optim/adamw.py --min_lr=0 --max_iters={_iterations} '
             f'--warmup_iters={_iterations // 10} --eval_interval={_iterations // 2}')
out_dir = 'out-sweep/tokens'
csv = 'results/csv/tokens.csv'          # by commit af2a22a
seeds = 9
diverged_loss = 3.0
diverged_rise = 0.5
_rows = {name: (_placements(64)[name], *_tuned['adamw'][name]) for name in ('S1', 'Pre', 'DNT')}
_rows['value_residual'] = ('config/arch/value_residual.py --ffn=gelu --pos=learned --tie_weights=True --emb_std=0.08 '
                           '--init_gain=3.46', 0.1, 8e-3)
grids = [dict(setting={name: f'{placement} --weight_decay={decay * 2200 / _iterations:.4g}'},
              learning_rate=[rate / 2, rate, 2 * rate])
         for name, (placement, decay, rate) in _rows.items()]
