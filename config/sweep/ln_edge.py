# LN stability, table 1: which of five seeds diverge, with and without weight decay, where the learning rate is at its edge
#     python sweep.py config/sweep/ln_edge.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=0.1'
out_dir = 'out-sweep/ln_edge'
seeds = 5
diverged_loss = 3.31                    # what a table of how often each byte comes has
grids = [dict(arch=['pre', 'peri', 'post', 'off'], weight_decay=[0.0, 0.1])]
