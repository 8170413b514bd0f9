# Stable-Transformer's figures 2 to 4 without warm-up: α of StableNorm, τ of StableAtten, the number of heads
#     python sweep.py config/sweep/stable_parts.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0 config/arch/stable.py'
out_dir = 'out-sweep/stable_parts'
_rates = [2e-3, 4e-3, 8e-3]
grids = [dict(change={f'α {alpha}': f'--norm_alpha={alpha}' for alpha in (0, 0.125, 0.25, 0.375, 0.475, 0.5)},
              learning_rate=_rates),
         dict(change={f'τ × {factor}': f'--attn_tau={1.618 * factor}' for factor in (0.5, 2)}, learning_rate=_rates),
         dict(change={f'{heads} heads': f'--n_head={heads}' for heads in (1, 4, 8)}, learning_rate=_rates),
         dict(change={f'GPT-2, {heads} heads': f'config/arch/pre.py --n_head={heads}' for heads in (1, 2, 4, 8)},
              learning_rate=_rates)]
