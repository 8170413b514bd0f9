# How much of each placement's advantage is the scale of its embeddings? 0.13M parameters, 20 bytes for each
#     python -m lab.sweep config/sweep/emb_std.py
arguments = 'config/base/pypkg_small.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/emb_std'
seeds = 5
halving = '0.25,0.5'
extend = 2
# All but Stable differ in their norms only. S1+MidNorm is Peri-LN with S1's norms and weights
_settings = {'S1': 'config/arch/s1.py', 'S1+MidNorm': 'config/arch/s1.py --mid_norm=True', 'DNT': 'config/arch/s5.py'}
_input = {'S1+InputNorm': 'config/arch/s1.py --input_norm=True'}
_stable = {'Stable': 'config/arch/stable.py', 'Stable+InputNorm': 'config/arch/stable.py --input_norm=True'}
_ends = {name: _settings[name] for name in ('S1', 'DNT')}
# A tied embedding is the head too, whose scale is another matter
_untied, _tied = {'untied': '--tie_weights=False'}, {'tied': ''}
# Larger embeddings also learn more slowly. These rows have 15 times the rate for them at 15 times 0.02, and the same decay
_fast = {f'{name} fast': f'{arguments} --r_emb=15 --r_pos=15 --wd_emb=0.0667 --wd_pos=0.0667 --blockwise=jump'
         for name, arguments in _settings.items()}
grids = [dict(setting=setting, head=head, emb_std=scales, learning_rate=[4e-3, 8e-3, 16e-3])
         for setting, head, scales in ((_settings, _untied, [0.005, 0.02, 0.08, 0.3, 1.0]), (_input, _untied, [0.02, 1.0]),
                                       (_fast, _untied, [0.3]), (_ends, _tied, [0.02, 0.3]), (_stable, _untied, [0.02, 1.0]))]
