# Blockwise LR as the paper has it: LLaMA with an untied head, and the baseline's best rate kept for the norms
#     python -m lab.sweep config/sweep/blockwise_llama.py
# Its data: python data/pysource/prepare.py --bpe=1024 --folder=data/pysource-bpe1024
# Warm-up takes 2% of the iterations, as in the paper. A ramp is a longer warm-up, so there are baselines with longer ones.
arguments = ('config/base/pysource_small.py config/optim/adamw.py config/arch/llama.py --dataset=pysource-bpe1024 '
             '--vocab_size=1024 '
             '--dtype=bfloat16 --init_gain=4.6 --decay_norms=True --min_lr=0 --max_iters=2048 --warmup_iters=40 '
             '--eval_interval=512')
out_dir = 'out-sweep/blockwise_llama'
seeds = 5
_ramp = 'config/lr/blockwise.py'
_all, _part = {'4.2M': ''}, {'2.5M': '--max_iters=1228 --warmup_iters=25 --eval_interval=307'}
_kept = {'ramp kept': _ramp, 'jump kept': f'{_ramp} --blockwise=jump', 'Emb kept': '--r_emb=10',
         'Emb and FFN kept': '--r_emb=10 --r_ffn=6',
         'undecayed': '--decay_norms=False', 'ramp kept undecayed': f'{_ramp} --decay_norms=False'}
# Larger rates after a warm-up of 10%, with a rate of their own
_later = '--blockwise=jump --warmup_iters=205'
_longer = {'Emb 10%': f'--r_emb=10 {_later}', 'jump 10%': f'{_ramp} {_later}'}
grids = [dict(change={'none': '', 'warm-up 10%': '--warmup_iters=205', 'warm-up 20%': '--warmup_iters=410'}, tokens=_all,
              learning_rate=[4e-3, 8e-3, 16e-3]),
         dict(change={'ramp': _ramp}, tokens=_all, learning_rate=[5e-4, 1e-3, 2e-3]),
         dict(change=_kept, tokens=_all, learning_rate=[4e-3]),
         dict(change=_longer, tokens=_all, learning_rate=[2e-3, 4e-3, 8e-3]),
         dict(change={'ramp kept': _ramp}, tokens=_part, learning_rate=[4e-3])]
