# Stable-Transformer in depth: 24 thin layers, without warm-up
#     python sweep.py config/sweep/depth.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0 --n_layer=24 --n_embd=64 --n_head=1'
out_dir = 'out-sweep/depth'
grids = [dict(arch=['pre', 'stable'], learning_rate=[2e-3, 4e-3, 8e-3])]
