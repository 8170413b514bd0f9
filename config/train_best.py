# Muon on S4 (DNT with PreNorm of the FFN), at the size and length of train_quick.py
#     python train.py config/train_best.py
# Validation loss: 1.10 nats per byte; train_quick.py has 1.40. S4 by Muon had the lowest loss of 21 placements by three
# optimizers, with one seed each (results/halving/placements.md in commit d1b869c).
include('config/train_quick.py')
include('config/arch/s4.py')
include('config/optim/muon.py')
out_dir = 'out-best'
emb_std = 0.08
learning_rate = 16e-3
min_lr = 0.0
warmup_iters = 150
