# Do the leads at 0.2M parameters hold at 0.5M? By AdamW, with 20 bytes per parameter
#     python -m lab.sweep config/sweep/size.py
# A run has 4700/2200 times the iterations of base.py, and the weight decay is divided by that factor, so that rate × decay ×
# iterations stays the same. Three rates a factor of 2 apart, around that of base.py.
include('config/base/tuned.py')
arguments = ('config/base/pysource.py config/optim/adamw.py --min_lr=0 --n_embd=96 --n_head=3 --max_iters=4700 '
             '--warmup_iters=470 --eval_interval=2350 --compile=True')
out_dir = 'out-sweep/size'
csv = 'results/csv/size.csv'            # by commit 14cd207
seeds = 9
diverged_loss = 3.0
diverged_rise = 0.5
grids = [dict(setting={name: f'{_placements(96)[name]} --weight_decay={decay * 2200 / 4700:.4g}'},
              learning_rate=[rate / 2, rate, 2 * rate])
         for name, (decay, rate) in _tuned['adamw'].items() if name in ('Pre', 'S1', 'DNT')]
