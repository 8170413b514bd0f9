# Stable-Transformer and GPT-2 with 24 thin layers, without warm-up. Both have an InputNorm, which stable.py shows to matter
#     python -m lab.sweep config/sweep/depth.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0 --n_layer=24 --n_embd=64 --n_head=1'
out_dir = 'out-sweep/depth'
grids = [dict(model={'GPT-2': 'config/arch/pre.py --input_norm=True', 'all three': 'config/arch/stable.py --input_norm=True'},
              learning_rate=[1e-3, 2e-3, 4e-3])]
