# DNT, table 1, on images: AdamW and momentum SGDW on ViT and V-DNT
#     python -m lab.sweep config/sweep/vit.py
script = 'vision.train'
arguments = 'config/base/laptop_vision.py'
out_dir = 'out-sweep/vit'
_archs = {'ViT': 'config/arch/pre.py', 'V-DNT': 'config/arch/s5.py'}
grids = [dict(arch=_archs, optim=['sgdw'], learning_rate=[0.01, 0.03, 0.1, 0.3]),
         dict(arch=_archs, optim=['adamw'], learning_rate=[5e-4, 1e-3, 2e-3, 4e-3, 8e-3])]
