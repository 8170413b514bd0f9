# When do seeds begin to copy? The runs of tokens.py at their chosen rates, with a checkpoint every 500 iterations
#     python -m lab.sweep config/sweep/onset.py
# Losses must be those of tokens.py, digit by digit. Then  python results/scores.py  writes results/csv/onset_scores.csv: how well
# each checkpoint copies.
include('config/sweep/tokens.py')
arguments += ' --keep_every=500'
out_dir = 'out-sweep/onset'
csv = 'results/csv/onset.csv'
tuned_elsewhere = True
_chosen = {'S1': 8e-3, 'Pre': 16e-3, 'DNT': 16e-3, 'value_residual': 16e-3}
grids = [dict(grid, learning_rate=[_chosen[name]]) for grid in grids for name in grid['setting']]
