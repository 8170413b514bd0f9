# Does the gain of Blockwise LR last as LLaMA grows? Three sizes, 20 bytes per parameter (sharpness disparity, figures 4, 5)
#     python -m lab.sweep config/sweep/figure5.py
# A warm-up of 10% is not the paper's, see figure5_warm.py.
arguments = 'config/base/pysource.py config/arch/llama.py config/optim/adamw.py --min_lr=0'
out_dir = 'out-sweep/figure5'
csv = 'results/csv/figure5.csv'         # by commit 37168e4
seeds = 5
_sizes = {'0.2M': '--n_embd=48 --max_iters=1690 --warmup_iters=169 --eval_interval=169',
          '0.3M': '--max_iters=2890 --warmup_iters=289 --eval_interval=289',
          '0.6M': '--n_embd=96 --n_head=3 --max_iters=6250 --warmup_iters=625 --eval_interval=625'}
grids = [dict(lr=['none'], size=_sizes, learning_rate=[4e-3, 8e-3, 16e-3]),
         dict(lr=['blockwise'], size=_sizes, learning_rate=[1e-3, 2e-3, 4e-3])]
