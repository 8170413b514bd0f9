# A small version of Stable-Transformer's ViT-200: ViT and StableViT with 24 thin layers, with warm-up and without it
#     python -m lab.sweep config/sweep/vit_depth.py
script = 'vision.train'
arguments = 'config/base/laptop_vision.py config/optim/adamw.py --n_layer=24 --n_embd=32 --n_head=2 --drop_path=0.1'
out_dir = 'out-sweep/vit_depth'
_archs = {'ViT': 'config/arch/pre.py', 'StableViT': 'config/arch/stable.py'}
grids = [dict(arch=_archs, warmup_iters=[0], learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(arch=_archs, warmup_iters=[60], learning_rate=[1e-3, 2e-3, 4e-3, 8e-3])]
