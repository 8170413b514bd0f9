"""
Hold out runs from lab.doctor: whoever wrote its rules has not seen these plants and healthy runs.

    python -m lab.doctor.trials --table=results/doctor/held_out.py --csv=results/doctor/held_out.csv --out_dir=out-held

Prepare the data first, all but the last without the network; the English text is the help of Vim 9.0 (Debian 12's vim-runtime):

    python data/pycode/prepare.py
    python data/textfiles/prepare.py --tokenizer=char --val_fraction=0.05 \
        --files='/usr/share/vim/vim90/doc/usr_*.txt,/usr/share/vim/vim90/doc/[b-ceg-q]*.txt'
    python data/pysource/prepare.py
    python data/pysource/prepare.py --bpe=1024 --folder=data/pysource-bpe1024
"""
COMMON = 'config/base/pysource.py --log_interval=1 --eval_iters=20'

# ----------------------------------------------------------------------------- healthy runs
OPTIMIZERS = {      # arguments, and the middle one of three learning rates
    'adamw': ('config/optim/adamw.py --min_lr=0 --weight_decay=0.4', 6e-3),
    'adam_mini': ('config/optim/adam_mini.py --min_lr=0 --weight_decay=0.4', 6e-3),
    'lion': ('config/optim/lion.py --min_lr=0 --weight_decay=2.0', 1e-3),
    'muon': ('config/optim/muon.py --min_lr=0 --weight_decay=0.4', 1.6e-2),
    'sgdw': ('config/optim/sgdw.py --min_lr=0 --weight_decay=0.008', 0.2),
}
FACTORS = {'dyt': 1 / 4, 'derf': 1 / 4, 'post': 1 / 2, 'b2t': 1 / 2}   # on the middle rate; of DyT's, see config/arch/dyt.py
SIZES = {           # keys of a size, a text and a length, and its runs: arch files by optimizer
    'short': ('--n_embd=128 --n_layer=2 --n_head=4 --block_size=64 --batch_size=8 --dtype=float32 --max_iters=150 '
              '--warmup_iters=15 --eval_interval=50',
              dict(adamw='s1 stable dyt hyper attnres', muon='s2 mhc_lite', lion='peri siamese', adam_mini='pre')),
    'narrow': ('--n_embd=48 --n_layer=3 --block_size=256 --batch_size=4 --dataset=pycode --max_iters=250 --warmup_iters=20 '
               '--eval_interval=125',
               dict(adamw='s3 gemma3 parallel gpas', muon='olmo2 simplenorm', lion='s4 llama', adam_mini='embskip', sgdw='peri')),
    'deep': ('--n_embd=48 --n_layer=8 --block_size=96 --batch_size=4 --dataset=textfiles --vocab_size=0 --dtype=float32 '
             '--max_iters=200 --warmup_iters=30 --eval_interval=100',
             dict(adamw='peri resi_dual keel mixln', muon='s5 gpas hybrid', lion='lns', adam_mini='post', sgdw='s1')),
    'deepest': ('--n_embd=48 --n_layer=12 --n_head=3 --block_size=64 --batch_size=6 --max_iters=150 --warmup_iters=20 '
                '--eval_interval=75',
                dict(adamw='s5 deepnorm llama', muon='peri pre', lion='olmo2', adam_mini='subln', sgdw='s2')),
    'bpe': ('--n_embd=128 --n_layer=3 --n_head=4 --batch_size=4 --dataset=pysource-bpe1024 --vocab_size=0 --max_iters=200 '
            '--warmup_iters=20 --eval_interval=100',
            dict(adamw='seednorm gatednorm norm_gain layerscale b2t', muon='stable value_residual dyt', lion='s5',
                 adam_mini='peri', sgdw='pre')),
    'long': ('--n_embd=48 --n_layer=2 --block_size=32 --batch_size=6 --dataset=textfiles --vocab_size=0 --dtype=float32 '
             '--max_iters=1000 --warmup_iters=50 --eval_interval=250 --log_interval=5',
             dict(adamw='s4 derf', muon='gated', lion='pre', sgdw='s3')),
}
MORE = {            # further settings: name → (keys, factor on the middle rate)
    'llama-adamw-bpe-blockwise': ('config/lr/blockwise.py --warmup_iters=8', 1 / 3),
    'peri-adam_mini-narrow-blockwise': ('config/lr/blockwise_adam_mini.py --warmup_iters=10', 1 / 3),
    's1-muon-narrow-wsd': ('config/lr/wsd.py', 1),
    'pre-adamw-short-dropout': ('--dropout=0.1 --bias=True --gradient_accumulation_steps=2 --schedule=linear', 1),
    'llama-muon-short-grouped': ('--n_kv_head=1 --vocab_size=320 --d_ff=352 --schedule=constant', 1 / 2),
    'pre-adamw-deep-l2': ('--attention=l2 --ffn=relu --mup_base_width=64 --mup_base_head_dim=32', 1),
}


def healthy(arch, optim, size, keys='', factor=1):
    """Return the arguments of a run, and its three learning rates."""
    width = int(SIZES[size][0].partition('--n_embd=')[2].split()[0])
    start = f'--init_gain={(768 / width) ** 0.5:.2f}'           # the gain that GPT-2's matrices have at a width of 768
    if arch in ('s1', 's2', 's3', 's4', 's5', 'stable', 'simplenorm'):
        start = ''
    elif arch not in ('dyt', 'derf', 'gemma3'):                 # these scale embeddings themselves
        start = '--emb_std=0.08 ' + start * (arch not in ('deepnorm', 'subln'))
    arguments, rate = OPTIMIZERS[optim]
    rate *= FACTORS.get(arch, 1) * factor
    parts = COMMON, f'config/arch/{arch}.py', start, arguments, SIZES[size][0], keys
    return ' '.join(filter(None, parts)), [float(f'{rate * step:.3g}') for step in (1 / 2, 1, 2)]


HEALTHY = {f'{arch}-{optim}-{size}': healthy(arch, optim, size)
           for size, (_, runs) in SIZES.items() for optim, archs in runs.items() for arch in archs.split()}
HEALTHY |= {name: healthy(*name.split('-')[:3], *more) for name, more in MORE.items()}

PLANTS = {}
