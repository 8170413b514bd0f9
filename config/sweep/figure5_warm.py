# figure5.py again, with the paper's proportion of warm-up: 2% of the run instead of 10% (sharpness disparity, figures 4, 5)
#     python -m lab.sweep config/sweep/figure5_warm.py
# With blockwise=ramp a block type warms up until it reaches its own multiple of the rate. So after a warm-up of 10% the
# embeddings, at 10 times the rate, warm up to the end of the run, and W_q and W_k, at 8 times, peak at 80% of it. With 2% these
# are 20% and 16%. The paper's text has another form, blockwise=jump, which is here at the smallest size alone.
arguments = 'config/base/pysource.py config/arch/llama.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/figure5_warm'
csv = 'results/csv/figure5_warm.csv'    # by commit af2a22a
seeds = 5
_sizes = {'0.2M': '--n_embd=48 --max_iters=1690 --warmup_iters=34 --eval_interval=169',
          '0.3M': '--max_iters=2890 --warmup_iters=58 --eval_interval=289',
          '0.6M': '--n_embd=96 --n_head=3 --max_iters=6250 --warmup_iters=125 --eval_interval=625'}
_blockwise = {'ramp': 'config/lr/blockwise.py', 'jump': 'config/lr/blockwise.py --blockwise=jump'}
grids = [dict(lr={'none': ''}, size=_sizes, learning_rate=[4e-3, 8e-3, 16e-3]),
         dict(lr={'ramp': _blockwise['ramp']}, size=_sizes, learning_rate=[1e-3, 2e-3, 4e-3]),
         dict(lr={'jump': _blockwise['jump']}, size={'0.2M': _sizes['0.2M']}, learning_rate=[1e-3, 2e-3, 4e-3])]
