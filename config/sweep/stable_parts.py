# Stable-Transformer without warm-up: the number of heads (figure 4) and StableAtten's τ (figure 7)
#     python -m lab.sweep config/sweep/stable_parts.py
arguments = 'config/base/laptop.py config/optim/adamw.py --warmup_iters=0'
out_dir = 'out-sweep/stable_parts'
_stable = 'config/arch/stable.py --input_norm=True'
_gpt2 = 'config/arch/pre.py --input_norm=True'
grids = [dict(change={'none': _stable,
                      **{f'τ × {factor}': f'{_stable} --attn_tau={1.618 * factor}' for factor in (0.5, 2)},
                      **{f'{heads} heads': f'{_stable} --n_head={heads}' for heads in (1, 8)},
                      **{f'GPT-2, {heads} heads': f'{_gpt2} --n_head={heads}' for heads in (1, 2, 8)}},
              learning_rate=[2e-3, 4e-3])]
