# Do other optimizers rank the placements as AdamW does? Seven of placements.py by Muon, momentum SGDW and Lion
#     python -m lab.sweep config/sweep/optimizers.py --optim=muon         # one of the three, eight hours of one core
# Each row is tuned as those of placements.py are, at its own weight decay and learning rate, by three seeds. All runs are
# compiled, which saves a fifth of DNT's time. placements.py has the rows by AdamW, which are not compiled.
include('config/sweep/placements.py')
arguments = 'config/base/pysource.py --eval_interval=1100 --compile=True'
out_dir = 'out-sweep/optimizers'
csv = 'results/csv/optimizers.csv'
against = ''
codes = ''
_archs = {name: f'config/arch/{name}.py {_body} {_starts.get(name, _gpt2)}'
          for name in 'pre s1 s5 peri post hybrid value_residual'.split()}
_decays, _sgdw_decays = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0], [2e-5, 6e-5, 2e-4, 6e-4, 2e-3, 6e-3, 2e-2, 6e-2]
_tried = dict(      # the decays and the rates that seed 1 tries, and those that may follow beside its best
    muon=([0.03, 0.1, 0.3], [8e-3, 16e-3, 32e-3], _decays, [1e-3 * 2 ** i for i in range(10)]),
    sgdw=([6e-4, 2e-3, 6e-3], [0.2, 0.4, 0.8], _sgdw_decays, [0.025 * 2 ** i for i in range(9)]),
    lion=([0.1, 0.3, 1.0], [1e-3, 2e-3, 4e-3], _decays, [1.25e-4 * 2 ** i for i in range(9)]))
grids = [dict(optim={optim: f'config/optim/{optim}.py --min_lr=0'}, arch=_archs, weight_decay=decays, learning_rate=rates,
              ladder=dict(weight_decay=more_decays, learning_rate=more_rates))
         for optim, (decays, rates, more_decays, more_rates) in _tried.items()]
