# Do the leads over Pre-LN last in larger models? Width, depth and bytes grow together: 0.7M parameters, 6 blocks; 3.1M, 10
#     python -m lab.sweep config/sweep/ladder.py --size=0.7M          # 24 runs or more, each half an hour of a core without bf16
#     python -m lab.sweep config/sweep/ladder.py --size=3.1M          # 6 runs, each two hours or more of a core with bf16
# placements.py has the first rung: 0.2M parameters, 4 blocks, 4.5M bytes. All have 20 bytes per parameter, but those of 3.1M have
# 16: 49M bytes are one epoch of data/pysource. Rows have the body of placements.py, and its starts, rescaled to the width. From
# one rung to the next, the weight decay makes rate × decay × iterations stay the same.
# At 0.7M, three rates a factor of 2 apart stand around that of placements.py. Seed 1 chooses, and seeds 2 to 4 are compared. At
# 3.1M nothing is tuned: the rate is the one chosen at 0.7M times 96/160, as AdamW's rate falls with the width in muP. This rule
# was written before the runs. Seeds 1 and 2 are compared there.
include('config/sweep/placements.py')
out_dir = 'out-sweep/ladder'
csv = 'results/csv/ladder.csv'
tuned = 'learning_rate'
tuning_seeds = 1
extend = 2
against = ''
codes = ''
_tuned = dict(pre=(0.03, 8e-3), s5=(0.3, 8e-3), value_residual=(0.1, 8e-3), peri=(0.1, 8e-3))      # decay and rate there
_chosen = dict(pre=4e-3, s5=16e-3, value_residual=8e-3)         # the rates chosen at 0.7M


def _row(arch, size, width, depth, heads, iterations, decay, rates, seeds):
    start = '' if arch == 's5' else f'--emb_std=0.08 --init_gain={(768 / width) ** 0.5:.2f}'
    keys = (f'config/base/pysource.py config/optim/adamw.py --min_lr=0 --compile=True --n_embd={width} --n_layer={depth} '
            f'--n_head={heads} --max_iters={iterations} --warmup_iters={iterations // 10} --eval_interval={iterations // 2}')
    return dict(size={size: keys}, arch={arch: f'config/arch/{arch}.py {_body} {start} --weight_decay={decay:.4g}'},
                learning_rate=rates, seeds=seeds)


arguments = ''
grids = [_row(arch, '0.7M', 96, 6, 3, 6836, decay * 2200 / 6836, [rate / 2, rate, 2 * rate], 4)
         for arch, (decay, rate) in _tuned.items()]
grids += [_row(arch, '3.1M', 160, 10, 5, 23925, _tuned[arch][0] * _tuned[arch][1] / (rate * 0.6) * 2200 / 23925, [rate * 0.6], 2)
          for arch, rate in _chosen.items() if arch != 'peri']
