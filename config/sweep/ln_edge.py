# LN stability, table 1: how many of five seeds diverge at 50 times the best learning rate, with and without weight decay?
#     python -m lab.sweep config/sweep/ln_edge.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=0.1'
out_dir = 'out-sweep/ln_edge'
seeds = 5
diverged_loss = 3.31                    # the loss of a model that knows only how often each byte occurs
grids = [dict(arch=['pre', 'peri', 'post', 'off'], weight_decay=[0.0, 0.1])]
