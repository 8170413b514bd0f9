# DNT and S1 on byte pairs, a vocabulary of 4096: the embeddings are most of the weights, and most of their rows are rare
#     python -m lab.sweep config/sweep/dnt_bpe.py
# Its data: python data/pycode/prepare.py --packages=True --bpe=4096 --folder=data/pypkg-bpe4096
arguments = ('config/base/pypkg_small.py --dataset=pypkg-bpe4096 --vocab_size=4096 --dtype=bfloat16 --compile=True '
             '--max_iters=3060 --warmup_iters=306 --eval_interval=765')
out_dir = 'out-sweep/dnt_bpe'
seeds = 5
halving = '0.25,0.5'
extend = 2
_archs = {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py'}
_input = {'S1+InputNorm': 'config/arch/s1.py --input_norm=True'}
_adamw = dict(optim=['adamw'], learning_rate=[4e-3, 8e-3, 16e-3])
_sgdw = dict(optim={'sgdw': 'config/optim/sgdw.py --weight_decay=2e-3'}, learning_rate=[0.2, 0.4, 0.8])
# A tied embedding that starts as a head does has a standard deviation of 0.022 at this size
grids = [dict(setting={**_archs, **_input}, start={'as a head': ''}, **_adamw),
         dict(setting={**_archs, **_input}, start={'as a head': ''}, **_sgdw),
         dict(setting=_archs, start={'0.3': '--emb_std=0.3'}, **_adamw)]
