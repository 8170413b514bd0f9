# Where should norms stand, once embeddings and rates are tuned? Six placements at 0.2M, 0.5M and 1.2M parameters
#     python -m lab.sweep config/sweep/ladder.py
# 20 bytes for each parameter. Seed 1 chooses the rate, and 4 others (1.2M: 3) are compared. The weight decays are those that
# decay.py finds best for each row: they are set here after it has run. Before that `make results-run` leaves this sweep out.
include('config/base/placements.py')
arguments = 'config/base/pysource.py'
out_dir = 'out-sweep/ladder'
diverged_loss = 3.0
diverged_rise = 0.5
_decays = {'adamw': {'S1': 0.1, 'DNT': 0.3, 'Pre': 0.1, 'S1+InputNorm': 0.1, 'S1 large': 0.1, 'Peri': 0.1},
           'sgdw': {'S1': 2e-3, 'DNT': 6e-3, 'Pre': 2e-3, 'S1+InputNorm': 2e-3, 'S1 large': 2e-3, 'Peri': 2e-3}}
_sizes = {          # arguments, width; heads are 32 wide
    '0.2M': ('--eval_interval=1100', 64),
    '0.5M': ('--n_embd=96 --n_head=3 --max_iters=4700 --warmup_iters=470 --eval_interval=2350 --compile=True', 96),
    '1.2M': ('--n_embd=128 --n_head=4 --n_layer=6 --max_iters=12000 --warmup_iters=1200 --eval_interval=3000 --compile=True',
             128)}
_rates = {'adamw': [4e-3, 8e-3, 16e-3], 'sgdw': [0.2, 0.4, 0.8]}


def _grid(size, optim, text='pysource', names=(), seeds=5):
    keys, width = _sizes[size]
    settings = {name: f'{arguments} --weight_decay={_decays[optim][name]}' for name, arguments in _placements(width).items()
                if name in names or not names}
    return dict(optim={optim: f'config/optim/{optim}.py --min_lr=0'}, setting=settings, size={size: keys},
                text={text: f'--dataset={text}'}, learning_rate=_rates[optim], seeds=seeds)


grids = [_grid('0.2M', 'adamw'), _grid('0.5M', 'adamw'),
         _grid('1.2M', 'adamw', names=('Pre', 'S1', 'S1 large', 'DNT'), seeds=4),
         _grid('0.2M', 'sgdw'), _grid('0.5M', 'sgdw'), _grid('0.2M', 'adamw', 'pydocs'), _grid('0.5M', 'adamw', 'pydocs')]


def _row(setting, size='0.5M', optim='adamw', text='pysource'):
    return f'optim={optim},setting={setting},size={size},text={text}'


def _claim(text, contrast, sign, **more):
    # differences of two rows have a standard deviation of about 0.02; such margins are shown with a power of about 80%
    pairs = 3 if '1.2M' in contrast else 4
    margin = {(2, 4): 0.04, (4, 4): 0.06, (2, 3): 0.06, (4, 3): 0.08}[contrast.count('setting='), pairs]
    return dict(text=text, contrast=contrast, sign=sign, margin=margin, pairs=pairs, **more)


def _lead(setting, size, **more):
    return f'{_row(setting, size, **more)} - {_row("Pre", size, **more)}'


def _change(setting, small, large):
    """How the lead over Pre changes with size: above 0 if it shrinks"""
    return f'{_lead(setting, large)} - {_row(setting, small)} + {_row("Pre", small)}'


_OTHERS = ('S1', 'S1+InputNorm', 'S1 large', 'Peri', 'DNT')
claims = [
    # how each lead over Pre changes with size
    *(_claim(f'{name} − Pre is the same at 0.5M as at 0.2M', _change(name, '0.2M', '0.5M'), 0) for name in _OTHERS),
    *(_claim(f'{name} − Pre is the same at 1.2M as at 0.2M', _change(name, '0.2M', '1.2M'), 0)
      for name in ('S1', 'S1 large', 'DNT')),
    *(_claim(f'DNT is better than Pre at {size}', _lead('DNT', size), -1) for size in ('0.2M', '0.5M', '1.2M')),
    _claim('DNT is better than Pre on English prose at 0.5M', _lead('DNT', '0.5M', text='pydocs'), -1),
    # how much of S1 → DNT the scale of the embeddings explains
    *(_claim(f'Large embeddings help S1 at {size}', f'{_row("S1 large", size)} - {_row("S1", size)}', -1) for size in _sizes),
    *(_claim(f'With large embeddings S1 has over half of DNT\'s lead over S1 at {size}', f'{_row("S1 large", size)} - '
             f'{_row("S1", size)} + {_row("S1 large", size)} - {_row("DNT", size)}', -1) for size in ('0.2M', '0.5M', '1.2M')),
    *(_claim(f'DNT and S1 with large embeddings are equal at {size}', f'{_row("DNT", size)} - {_row("S1 large", size)}', 0)
      for size in _sizes),
    _claim('DNT and S1 with an InputNorm are equal at 0.5M', f'{_row("DNT")} - {_row("S1+InputNorm")}', 0),
    # DNT's own claims: its table for GPT-2 on OpenWebText at 124M, in nats a token
    *(claim for size in ('0.2M', '0.5M') for claim in (
        _claim(f'mSGDW is worse than AdamW for S1 at {size}', f'{_row("S1", size, "sgdw")} - {_row("S1", size)}', 1,
               paper='DNT', said='+0.039'),
        _claim(f'mSGDW is better than AdamW for DNT at {size}', f'{_row("DNT", size, "sgdw")} - {_row("DNT", size)}', -1,
               paper='DNT', said='−0.014 (774M: +0.022, 1.4B: +0.012; abstract: comparable)'),
        _claim(f'mSGDW costs DNT less than S1 at {size}', f'{_row("DNT", size, "sgdw")} - {_row("DNT", size)} - '
               f'{_row("S1", size, "sgdw")} + {_row("S1", size)}', -1, paper='DNT', said='−0.053'),
        _claim(f'DNT is better than S1 by AdamW at {size}', f'{_row("DNT", size)} - {_row("S1", size)}', -1, paper='DNT',
               said='−0.004'),
        _claim(f'DNT is better than S1 by mSGDW at {size}', f'{_row("DNT", size, "sgdw")} - {_row("S1", size, "sgdw")}', -1,
               paper='DNT', said='−0.057'),
        _claim(f'DNT by mSGDW is better than S1 by AdamW at {size}', f'{_row("DNT", size, "sgdw")} - {_row("S1", size)}', -1,
               paper='DNT', said='−0.018 (our reading of its table)'))),
    _claim('DNT is better than S1 by AdamW on English prose at 0.5M', f'{_row("DNT", text="pydocs")} - '
           f'{_row("S1", text="pydocs")}', -1, paper='DNT', said='−0.004'),
]
