# train_best.py against train_quick.py's momentum SGDW and GPT-2, at their size: 0.8M parameters, 1500 iterations of 2048 bytes
#     python sweep.py config/sweep/best.py
arguments = 'config/train_quick.py --always_save_checkpoint=False'
out_dir = 'out-sweep/best'
grids = [dict(recipe={'DNT, mSGDW (train_quick)': '',
                      'DNT, AdamW, WSD (train_best)': 'config/train_best.py',
                      'GPT-2, AdamW, WSD': 'config/train_best.py config/arch/pre.py'})]
