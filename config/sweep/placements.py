# Where should the norms stand, and which? Placements on the body of GPT-2, each at its own weight decay and learning rate
#     python -m lab.sweep config/sweep/placements.py --arch=peri          # what peri lacks: half an hour of one core
#     python -m lab.sweep config/sweep/placements.py --report=True        # the table
# A file of config/arch brings its norms, their places, its residual, its gains and its start. The FFN, the positions and the tied
# head are those of pre.py, or else RoPE and SwiGLU would decide. Starts with a standard deviation of 0.02 are rescaled to this
# width, as in config/base/tuned.py. d_ff keeps the parameters within 5% of those of `pre`.
# Rows of placements that are not in _names are a screen with one seed at a decay of 0.1.
arguments = 'config/base/pysource.py config/optim/adamw.py --min_lr=0 --eval_interval=1100'
out_dir = 'out-sweep/placements'
csv = 'results/csv/placements.csv'
tuned = 'weight_decay,learning_rate'
tuning_seeds = 3
seeds = 11                      # 1 to 3 tune, and 4 to 11 are compared
against = 'optim=adamw,arch=pre'
diverged_loss = 3.0
diverged_rise = 0.5
# By these codes `pre` repeats digit by digit: commits 67e13dd, 165bcfe (the screen), ef33f2b, 7591cf6, a3e2529, 2dbab07, e2298e4,
# 6f8e56b, 09c908b.
# f0863ce878db is an edit of one norm (`tempered`), which is not kept.
codes = ('eae2db38044c,7adcc7188bdb,1d41c49ac07c,0a728bd1171e,879805a7d520,8af2b2b06ffe,3413091b6d65,f0863ce878db,'
         '7f3ad94805d3,13cbf7a12023')
_body = '--ffn=gelu --pos=learned --tie_weights=True'
_gpt2 = '--emb_std=0.08 --init_gain=3.46'
_starts = {**dict.fromkeys(('s1', 's2', 's3', 's4', 's5', 'stable'), ''),
           **dict.fromkeys(('deepnorm', 'subln'), '--emb_std=0.08')}
_d_ff = dict(gated=240)         # of the others: 256
_names = 'pre s1 peri post hybrid stable s2 s3 olmo2 llama gated embskip s5 s4 hyper parallel value_residual'
_ladder = dict(weight_decay=[0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0], learning_rate=[1e-3 * 2 ** i for i in range(8)])
grids = [dict(optim={'adamw': ''}, weight_decay=[0.03, 0.1, 0.3], learning_rate=[4e-3, 8e-3, 16e-3], ladder=_ladder,
              arch={name: f'config/arch/{name}.py {_body} {_starts.get(name, _gpt2)} --d_ff={_d_ff.get(name, 0)}'
                    for name in _names.split()}),
         dict(optim={'adamw': ''}, weight_decay=[0.0], learning_rate=[4e-3, 8e-3, 16e-3],        # nGPT has no decay and warm-up
              ladder=dict(learning_rate=_ladder['learning_rate']),
              arch={'ngpt': f'config/arch/ngpt.py {_body} --warmup_iters=0'})]
