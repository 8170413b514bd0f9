# Muon on S4, DNT's norms with the FFN's PreNorm: the lowest loss of results/halving/placements.md, at train_quick.py's size and length
#     python train.py config/train_best.py
# Validation loss: 1.07 nats per byte, where train_quick.py has 1.41. That page compares it with GPT-2 and with AdamW.
include('config/train_quick.py')
include('config/arch/s4.py')
include('config/optim/muon.py')
out_dir = 'out-best'
emb_std = 0.08
learning_rate = 16e-3
min_lr = 0.0
warmup_iters = 150
