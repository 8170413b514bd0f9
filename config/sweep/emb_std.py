# How much of each placement's advantage is the scale of its embeddings?
#     python -m lab.sweep config/sweep/emb_std.py
arguments = 'config/base/pypkg.py config/optim/adamw.py'
out_dir = 'out-sweep/emb_std'
halving = '0.25,0.5'
extend = 2
grids = [dict(setting={'Pre-LN': 'config/arch/pre.py', 'Peri-LN': 'config/arch/peri.py', 'S1': 'config/arch/s1.py',
                       'DNT': 'config/arch/s5.py', 'Stable': 'config/arch/stable.py',
                       'Stable+InputNorm': 'config/arch/stable.py --input_norm=True'},
              emb_std=[0.005, 0.02, 0.08, 0.3, 1.0], learning_rate=[2e-3, 4e-3, 8e-3])]
