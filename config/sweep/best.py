# train_best.py against train_quick.py's momentum SGDW and GPT-2, at their size: 0.8M parameters, 1500 iterations of 2048 bytes
#     python sweep.py config/sweep/best.py
arguments = 'config/train_best.py --always_save_checkpoint=False'
out_dir = 'out-sweep/best'
grids = [dict(recipe={'DNT, mSGDW': 'config/train_quick.py'}, learning_rate=[0.3]),
         dict(recipe={'DNT, AdamW': ''}, learning_rate=[4e-3]),
         dict(recipe={'GPT-2, AdamW': 'config/arch/pre.py'}, learning_rate=[2e-3])]
