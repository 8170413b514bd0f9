# Stable-Transformer and GPT-2, with the embedding initialized as in the paper's Code 1: with and without a warm-up, at two large
# rates (Stable-Transformer, figures 1 and 6), and with other τ (figure 7)
#     python -m lab.sweep config/sweep/stable_start.py
# In Code 1 StableInit initializes every linear map, so most likely also the head, which is tied to the embedding: with a standard
# deviation of 0.044 here. GPT-2's matrices and tied embedding start with 4 times its 0.02, which at this width gives the gain of
# the paper's 768. The paper's large rates are 2 to 4 times its usual one; 0.032 and 0.064 are 2 and 4 times the highest of the
# other rates. With a warm-up both models have 17 seeds instead of 5, because the first 5 left their difference open.
arguments = 'config/base/pysource_small.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/stable_start'
csv = 'results/csv/stable_start.csv'    # by commit 06a64e8
seeds = 5
_rates = [4e-3, 8e-3, 16e-3]
_models = {'GPT-2': 'config/arch/pre.py --init_gain=4 --emb_std=0.08', 'Stable': 'config/arch/stable.py'}
_taus = {f'Stable, τ × {factor}': f'config/arch/stable.py --attn_tau={1.618 * factor}' for factor in (0.5, 2)}
grids = [dict(model=_models, setting={'warm-up': ''}, learning_rate=_rates, seeds=17),
         dict(model=_taus, setting={'warm-up': ''}, learning_rate=_rates),
         dict(model=_models, setting={'no warm-up': '--warmup_iters=0'}, learning_rate=_rates),
         *(dict(model=_models, setting={f'warm-up, at {rate}': ''}, learning_rate=[rate]) for rate in (0.032, 0.064))]
