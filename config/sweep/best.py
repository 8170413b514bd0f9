# The recipe of train_best.py, S4 by Muon, against GPT-2 and against AdamW, with the same schedule, size and bytes
#     python -m lab.sweep config/sweep/best.py
# GPT-2's matrices start with the gain of a width of 768: at a width of 128, √6 times its 0.02.
arguments = ('config/train_best.py --dataset=pypkg --dtype=bfloat16 --eval_interval=375 --eval_iters=100 '
             '--always_save_checkpoint=False')
out_dir = 'out-sweep/best'
seeds = 5
halving = '0.25,0.5'
extend = 2
_archs = {'GPT-2': 'config/arch/pre.py --emb_std=0.08 --init_gain=2.45', 'S4': 'config/arch/s4.py --emb_std=0.08'}
grids = [dict(arch=_archs, optim={'muon': 'config/optim/muon.py --min_lr=0'}, learning_rate=[8e-3, 16e-3, 32e-3]),
         dict(arch=_archs, optim={'adamw': 'config/optim/adamw.py --min_lr=0'}, learning_rate=[2e-3, 4e-3, 8e-3])]
