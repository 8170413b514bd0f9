# Muon on S4 (DNT with PreNorm of the FFN), best in results/halving/placements.md, at the size and length of train_quick.py
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
