# The parts of Stable-Transformer on images, one at a time and without a warm-up (Stable-Transformer, figures 2, 3 and 4), and all
# of them against ViT with a warm-up (figures 1 and 8)
#     python -m lab.sweep config/sweep/vit_parts.py
# The figures show stability, such as the time until a run diverges. We read them as claims about a lower loss too.
# config/vit/train_stable_parts_l.py has the paper's ViT-L, with a rate of 1e-3.
script = 'vision.train'
arguments = 'config/base/laptop_vision.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/vit_parts'
csv = 'results/csv/vit_parts.csv'
seeds = 5
_vit = 'config/arch/pre.py'
_parts = {'ViT': _vit, 'Xavier': f'{_vit} --init=xavier', 'StableInit': f'{_vit} --init=stable',
          **{f'α {alpha}': f'{_vit} --norm=stablenorm --norm_alpha={alpha} --norm_eps=1e-8'
             for alpha in (0, 0.125, 0.25, 0.375, 0.5)},
          **{f'{heads} heads': f'{_vit} --n_head={heads}' for heads in (1, 8)},
          'StableAtten': f'{_vit} --attention=stable', 'StableViT': 'config/arch/stable.py'}
_none = '--warmup_iters=0'
_many = ('ViT', 'Xavier', 'StableInit', 'α 0.25', 'α 0.5', 'StableAtten', 'StableViT')        # five seeds left their claims open
_rates = dict(learning_rate=[2e-3, 4e-3, 8e-3], ladder=dict(learning_rate=[5e-4 * 2 ** i for i in range(10)]))
grids = [*(dict(_rates, model={model: keys}, setting={'no warm-up': _none}, seeds=17 if model in _many else 5)
           for model, keys in _parts.items()),
         dict(_rates, model={'ViT': _vit}, setting={'warm-up': '--warmup_iters=120'}, seeds=17)]
