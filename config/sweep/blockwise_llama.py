# Blockwise LR as the paper has it: LLaMA with an untied head and 4096 tokens, and the baseline's best rate kept for the norms
#     python -m lab.sweep config/sweep/blockwise_llama.py
# Its data: python data/pycode/prepare.py --packages=True --bpe=4096 --folder=data/pypkg-bpe
arguments = ('config/base/pypkg_small.py config/optim/adamw.py config/arch/llama.py --dataset=pypkg-bpe --vocab_size=4096 '
             '--d_ff=128 --decay_norms=True')
out_dir = 'out-sweep/blockwise_llama'
seeds = 5
halving = '0.25,0.5'
extend = 2
_blockwise = 'config/lr/blockwise.py'
_jump, _undecayed = f'{_blockwise} --blockwise=jump', '--decay_norms=False'
_whole, _half = {'2.6M': ''}, {'1.3M': '--max_iters=640 --warmup_iters=64 --eval_interval=160'}
_rates, _low = [2e-3, 4e-3, 8e-3], [5e-4, 1e-3, 2e-3]
grids = [dict(change={'none': ''}, tokens={**_whole, **_half}, learning_rate=_rates),
         dict(change={'ramp': _blockwise}, tokens={**_whole, **_half}, learning_rate=_low),
         dict(change={'jump': _jump, 'ramp, gains without decay': f'{_blockwise} {_undecayed}'},
              tokens=_whole, learning_rate=_low),
         dict(change={'gains without decay': _undecayed}, tokens=_whole, learning_rate=_rates),
         dict(change={'ramp, rate kept': _blockwise, 'jump, rate kept': _jump, 'Emb, rate kept': '--r_emb=10',
                      'Emb and FFN, rate kept': '--r_emb=10 --r_ffn=6', 'Norm, rate kept': '--r_norm=2'},
              tokens=_whole, learning_rate=[8e-3])]
