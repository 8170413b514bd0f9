# L-DNT-Small (124M) on OpenWebText by momentum SGDW (DNT, tables 1, 3 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_sgd.py
# The paper used 8 A800 and reports a validation loss of 2.849.
# Figure 6 compares DNT's settings: S1 is worst, S4 and S5 are best. This file has S5; for S1, add:
#     config/arch/s1.py --out_dir=out-ldnt-s1-sgd
# The paper's table 5 has no warm-up for momentum SGDW, as here. Its text says 2000 iterations for all runs: --warmup_iters=2000
out_dir = 'out-ldnt-sgd'
include('config/base/openwebtext.py')
include('config/arch/s5.py')
include('config/optim/sgdw.py')
n_layer, n_head, n_embd = 12, 12, 768
max_iters = 200000
warmup_iters = 0
