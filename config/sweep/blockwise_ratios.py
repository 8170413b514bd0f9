# Blockwise LR, table 2: which blocks gain from a larger rate, and how large should it be? blockwise.py has all and none of them
#     python -m lab.sweep config/sweep/blockwise_ratios.py
arguments = 'config/base/laptop.py config/optim/adamw.py config/arch/pre.py --warmup_iters=10'
out_dir = 'out-sweep/blockwise_ratios'


def _set(emb, qk, ffn, vo):
    return f'--r_emb={emb} --r_qk={qk} --r_ffn={ffn} --r_vo={vo}'


grids = [dict(ratios={'Emb': _set(10, 1, 1, 1)}, learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(ratios={'Norm × 2': '--r_norm=2', 'Emb, FFN': _set(10, 1, 6, 1), '6/4/3/2': _set(6, 4, 3, 2)},
              learning_rate=[5e-4, 1e-3, 2e-3]),
         dict(ratios={'8/6/4/3': _set(8, 6, 4, 3)}, learning_rate=[2.5e-4, 5e-4, 1e-3])]
