# LN stability, table 1: which of five seeds diverge, with and without weight decay, where the learning rate is at its edge
#     python sweep.py config/sweep/ln_edge.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=3.2e-2 --min_lr=0'
out_dir = 'out-sweep/ln_edge'
seeds = 5
diverged_loss = 3.0                     # where a model knows little more than how often each byte comes
grids = [dict(arch=['pre', 'peri', 'post', 'off'], weight_decay=[0.0, 0.1])]
