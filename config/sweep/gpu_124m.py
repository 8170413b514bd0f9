# The same six placements as GPT-2 (124M) on 2.5B tokens of OpenWebText, 20 per parameter, each run on one of eight GPUs
#     python data/openwebtext/prepare.py
#     python -m lab.sweep config/sweep/gpu_124m.py
# Not run yet. On an H100 at an MFU of 40%: 1.5 hours per run, 4.5 hours in all, 25 GiB of GPU memory at most (computed).
arguments = ('config/base/openwebtext.py config/optim/adamw.py --n_layer=12 --n_head=12 --n_embd=768 --max_iters=5100 '
             '--warmup_iters=250 --eval_interval=1275 --always_save_checkpoint=False')
out_dir = 'out-sweep/gpu_124m'
seeds = 1
grids = [dict(arch=['pre', 'post', 'peri', 's5', 'hybrid', 'simplenorm'], learning_rate=[6e-4, 1.2e-3, 2.4e-3])]
