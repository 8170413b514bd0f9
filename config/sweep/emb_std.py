# How much of each placement's advantage is the scale of its embeddings? 0.13M parameters, 20 bytes for each
#     python -m lab.sweep config/sweep/emb_std.py
arguments = 'config/base/pypkg_small.py config/optim/adamw.py'
out_dir = 'out-sweep/emb_std'
halving = '0.25,0.5'
extend = 2
_settings = {'Pre-LN': 'config/arch/pre.py', 'Peri-LN': 'config/arch/peri.py', 'S1': 'config/arch/s1.py',
             'DNT': 'config/arch/s5.py', 'Stable': 'config/arch/stable.py',
             'Stable+InputNorm': 'config/arch/stable.py --input_norm=True'}
_two = {name: _settings[name] for name in ('Pre-LN', 'DNT')}
_rates = [2e-3, 4e-3, 8e-3]
# A tied embedding is the head too, whose scale is another matter: two settings also without tying
grids = [dict(setting=_settings, head={'tied': ''}, emb_std=[0.005, 0.02, 0.08, 0.3, 1.0], learning_rate=_rates),
         dict(setting=_two, head={'untied': '--tie_weights=False'}, emb_std=[0.02, 0.3, 1.0], learning_rate=_rates)]
