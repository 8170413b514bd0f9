# DNT by the recipes of train_best.py and train_quick.py, and GPT-2 by train_best.py's, at train_quick.py's size and length
#     python -m lab.sweep config/sweep/best.py
arguments = 'config/train_quick.py --always_save_checkpoint=False'
out_dir = 'out-sweep/best'
grids = [dict(recipe={'DNT, mSGDW (train_quick)': '',
                      'DNT, AdamW, WSD (train_best)': 'config/train_best.py',
                      'GPT-2, AdamW, WSD': 'config/train_best.py config/arch/pre.py'})]
