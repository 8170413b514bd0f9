# How far momentum SGDW falls behind AdamW, and how that depends on the number of tokens: 0.4M to 16M, 2 to 74 for each parameter
#     python -m lab.sweep config/sweep/tokens.py
# In bf16, as train.py has it by default; on a CPU without its instructions --dtype=float32 is faster
arguments = 'config/base/pypkg.py --dtype=bfloat16'
out_dir = 'out-sweep/tokens'
halving = '0.25,0.5'
extend = 2
_ends = {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py'}
_between = {'S1+InputNorm': 'config/arch/s1.py --input_norm=True'}
_few = {'0.4M': '--max_iters=200 --warmup_iters=20 --eval_interval=50',
        '1.6M': '--max_iters=800 --warmup_iters=80 --eval_interval=200',
        '4.5M': ''}
_many = {'16M': '--max_iters=8000 --warmup_iters=800 --eval_interval=2000 --compile=True'}
# mSGDW's rates are about 50 times AdamW's, and with this weight decay rate times decay is about the same
_adamw, _sgdw = {'adamw': 'config/optim/adamw.py'}, {'sgdw': 'config/optim/sgdw.py --weight_decay=2e-3'}
grids = [dict(setting=settings, tokens=tokens, optim=optim, learning_rate=rates, seeds=seeds)
         for settings, tokens, seeds in (({**_ends, **_between}, _few, 5), (_ends, _many, 4))
         for optim, rates in ((_adamw, [4e-3, 8e-3, 16e-3]), (_sgdw, [0.2, 0.4, 0.8]))]
