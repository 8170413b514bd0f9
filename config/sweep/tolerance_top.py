# The two largest rates of each row of tolerance.py with three seeds: does a row diverge there by chance?
#     make results-run SWEEPS=tolerance_top
# A sweep's seeds begin at 1, so this repeats runs of tolerance.py, and their losses must be the same.
include(__file__.replace('tolerance_top', 'tolerance'))
_commit = '14cd207'             # commit whose code trains these runs
_hours = 1.9                    # on one core, as planned
out_dir = 'out-sweep/tolerance_top'
seeds = 3
grids = [dict(arch=_archs, optim={optim: f'config/optim/{optim}.py --min_lr=0 {more}'},
              rate={f'{lowest * 2 ** i:g}': f'--learning_rate={lowest * 2 ** i}' for i in (6, 7)})
         for optim, (more, lowest) in _optims.items()]
