# Is Stable-Transformer better than GPT-2 if its embedding starts as in the paper's Code 1? (Stable-Transformer, figure 1)
#     python -m lab.sweep config/sweep/stable_start.py
# In Code 1 StableInit starts the head, which is the embedding: with a standard deviation of 0.044 here. At this width GPT-2's
# matrices, and its embedding, which is its head too, have as large a gain as at the paper's 768 with 4 times its 0.02.
arguments = 'config/base/pysource_small.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/stable_start'
seeds = 5
grids = [dict(model={'GPT-2': 'config/arch/pre.py --init_gain=4 --emb_std=0.08', 'Stable': 'config/arch/stable.py'},
              warmup={'10%': '', 'none': '--warmup_iters=0'}, learning_rate=[4e-3, 8e-3, 16e-3])]
_stable, _gpt2 = ({warmup: f'model={model},warmup={warmup}' for warmup in ('10%', 'none')} for model in ('Stable', 'GPT-2'))
_more = dict(margin=0.04, pairs=4, paper='Stable')
claims = [dict(text='With a warm-up, Stable-Transformer is better than GPT-2', contrast=f'{_stable["10%"]} - {_gpt2["10%"]}',
               sign=-1, said='−0.021 (350M: −0.010, 774M: −0.013)', **_more),
          dict(text='To leave out the warm-up costs Stable-Transformer less than GPT-2', sign=-1,
               contrast=f'{_stable["none"]} - {_stable["10%"]} - {_gpt2["none"]} + {_gpt2["10%"]}',
               said='figure 9, of ViT-g', **{**_more, 'margin': 0.06})]
