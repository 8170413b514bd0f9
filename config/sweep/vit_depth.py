# Stable-Transformer's ViT-200 in small: 24 thin layers, with and without warm-up, ViT against StableViT
#     python sweep.py config/sweep/vit_depth.py
arguments = 'config/base/laptop_vision.py config/optim/adamw.py --n_layer=24 --n_embd=32 --n_head=2 --drop_path=0.1'
out_dir = 'out-sweep/vit_depth'
_archs = {'ViT': 'config/arch/pre.py --bias=True --norm_eps=1e-6 --init=xavier_trunc',
          'StableViT': 'config/arch/stable.py --norm_alpha=0.25'}
grids = [dict(arch=_archs, warmup_iters=[0], learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(arch=_archs, warmup_iters=[60], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3])]
