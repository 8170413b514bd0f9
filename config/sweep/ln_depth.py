# LN stability, figure 1: the size of the hidden states in trained models of 24 layers
#     python -m lab.sweep config/sweep/ln_depth.py
# Matrices and embeddings start as in ln_residual.py
arguments = ('config/base/pysource_small.py config/optim/adamw.py --n_layer=24 --learning_rate=4e-3 --min_lr=0 --dtype=bfloat16 '
             '--init_gain=4 --tie_weights=False --emb_std=0.02 --compile=True --max_iters=2560 --warmup_iters=256 '
             '--eval_interval=640')
out_dir = 'out-sweep/ln_depth'
seeds = 2
grids = [dict(arch=['pre', 'peri'], residual_scale=[1.0, 0.1])]
