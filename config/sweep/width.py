# Which placements carry a learning rate from one width to another, without muP and with it? Widths 64 to 256; the base is 64
#     python -m lab.sweep config/sweep/width.py
arguments = 'config/base/laptop.py config/optim/adamw.py --n_embd=64 --n_head=1'
out_dir = 'out-sweep/width'
seeds = 1
_archs = ['pre', 'peri', 's5', 'simplenorm']
_rates = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
_mup = '--mup_base_width=64 --mup_base_head_dim=64'
grids = [dict(arch=_archs, parametrization={'both': ''}, width={'64': ''}, learning_rate=_rates),       # the base is the same
         dict(arch=_archs, parametrization={'standard': '', 'muP': _mup}, learning_rate=_rates,
              width={str(width): f'--n_embd={width} --n_head={width // 64}' for width in (128, 256)})]
