# A screen, with one seed: which files of config/arch look worth an entry in the track? All on the body of GPT-2, by AdamW
#     make results-run SWEEPS=track_screen
# One seed, so no claims. Each file brings its norms, their places, its residual, its gains and its start. The FFN, the positions
# and the tied head are those of config/arch/pre.py, or else RoPE and SwiGLU would decide. Starts with a standard deviation of
# 0.02 are changed as in config/base/placements.py. The rates are three, a factor of 2 apart, and up to two more on a side where
# the best one is at the edge. DyT and Derf want smaller ones.
_commit = '165bcfe'             # commit whose code trains these runs
_hours = 2.5                    # on one core, as planned
arguments = 'config/base/pysource.py config/optim/adamw.py --min_lr=0 --eval_interval=1100'
out_dir = 'out-sweep/track_screen'
seeds = 1
diverged_loss = 3.0
diverged_rise = 0.5
_body = '--ffn=gelu --pos=learned --tie_weights=True'
_gpt2 = '--emb_std=0.08 --init_gain=3.46'
_starts = {**dict.fromkeys(('s1', 's2', 's3', 's4', 's5', 'stable'), ''),
           **dict.fromkeys(('deepnorm', 'subln'), '--emb_std=0.08')}
_d_ff = dict(gated=240, gatednorm=240, mhc=180, mhc_lite=148)       # at most 5% more parameters than pre; 0: 256
_archs = {                      # {files: their lowest rate}
    'pre s1 s2 s3 s4 s5 peri post hybrid embskip stable olmo2 attnres b2t deepnorm gated gatednorm gemma3 gpas hyper keel '
    'layerscale llama lns mhc mhc_lite mixln norm_gain off parallel resi_dual rezero seednorm siamese simplenorm subln '
    'value_residual': 4e-3,
    'dyt derf': 1e-3}
grids = [dict(arch={name: f'config/arch/{name}.py {_body} {_starts.get(name, _gpt2)} --d_ff={_d_ff.get(name, 0)}'
                    for name in names.split()}, learning_rate=[lowest, 2 * lowest, 4 * lowest])
         for names, lowest in _archs.items()]
