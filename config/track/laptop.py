# The track's laptop division: what all entries share. 0.22M parameters, 4.5 MB of Python sources, a run in about 70 s on one core
# The rules are in results/track/README.md. An entry changes keys of its architecture; this file has those of `pre`.
include('config/base/pysource.py')
include('config/optim/adamw.py')
include('config/arch/pre.py')
emb_std, init_gain = 0.08, 3.46         # as in config/base/placements.py: GPT-2's starts are for a width of 768, this is 64
min_lr = 0.0
eval_interval = 1100
_rates = [4e-3, 8e-3, 16e-3]            # each entry tries these first, with seed 1
_data = '7d6d7cb8c0d1b532897b402b7ba8c535'      # fingerprint of data/pysource
# standard deviation of a seed's test loss, and its degrees of freedom: of 12 seeds of each row in results/csv/base.csv that AdamW
# trained at its own decay
_noise = (0.0129, 55)
# how far the loss of a repeated run may be off: on the same kind of machine, and on others
_tolerance = {'same': 0.0005, 'other': 0.02}
# entries that `make results-run` makes or continues, with the arguments of config/sweep/track_screen.py, and the hours of each
_planned = ('pre s5 s1 s4 peri post hybrid embskip stable olmo2 siamese simplenorm attnres mhc_lite parallel dyt derf '
            'hyper value_residual gated s3')        # the last four are the best of the screen beside these
_hours = 0.5
