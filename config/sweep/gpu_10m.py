# Six placements at three learning rates on one GPU: 10M parameters, bytes, 200M tokens each
#     python data/pysource/prepare.py
#     python -m lab.sweep config/sweep/gpu_10m.py
# Not run yet. The data has 49M tokens, so a run sees them four times.
arguments = ('config/optim/adamw.py --dataset=pysource --n_layer=8 --n_head=5 --n_embd=320 --block_size=256 '
             '--batch_size=128 --gradient_accumulation_steps=1 --max_iters=6100 --warmup_iters=300 --eval_interval=1525 '
             '--eval_iters=40 --log_interval=10 --always_save_checkpoint=False')
out_dir = 'out-sweep/gpu_10m'
seeds = 1
grids = [dict(arch=['pre', 'post', 'peri', 's5', 'hybrid', 'simplenorm'], learning_rate=[1e-3, 2e-3, 4e-3])]
