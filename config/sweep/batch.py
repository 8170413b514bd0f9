# Does the cost of momentum SGDW grow with the batch? S1 and DNT at 0.2M parameters with 0.5K and 32K tokens a batch
#     python -m lab.sweep config/sweep/batch.py
# base.py has 2K. All train on the same number of tokens. The middle one of three rates grows with the square root of the batch,
# and the decay makes rate × decay × iterations, at that rate, the same as in base.py. Momentum and β₁ are 0.9 throughout. β₂ is
# 0.95, but 0.987 with 0.5K tokens, to average over as many tokens. A run logs 138 or 220 losses, for the rule of divergence.
include('config/base/tuned.py')
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/batch'
csv = 'results/csv/batch.csv'           # by commit 14cd207
seeds = 5
diverged_loss = 3.0
diverged_rise = 0.5
_batches = {        # (tokens per batch, relative to base.py; iterations; other keys). All evaluate the same 1600 windows
    '0.5K': (0.25, 8800, '--batch_size=4 --eval_iters=400 --log_interval=40 --warmup_iters=880 --eval_interval=4400'),
    '32K': (16, 138, '--batch_size=64 --gradient_accumulation_steps=4 --eval_iters=25 --log_interval=1 --warmup_iters=14 '
            '--eval_interval=69')}


def _grid(optim, setting, batch):
    decay, rate = _tuned[optim][setting]
    growth, iterations, keys = _batches[batch]
    middle = rate * growth ** 0.5
    decay = decay * rate * 2200 / (middle * iterations)
    beta2 = ' --beta2=0.987' * (optim == 'adamw' and growth < 1)
    return dict(optim={optim: f'config/optim/{optim}.py --min_lr=0'}, setting={setting: _placements(64)[setting]},
                batch={batch: f'--max_iters={iterations} {keys} --weight_decay={decay:.4g}{beta2}'},
                learning_rate=[middle / 2, middle, 2 * middle],
                ladder=dict(learning_rate=[middle * 2 ** i for i in range(-4, 4)]))


grids = [_grid(optim, setting, batch) for batch in _batches for optim in _tuned for setting in ('S1', 'DNT')]
