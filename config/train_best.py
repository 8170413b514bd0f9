# The best recipe of results/first/beyond.md: DNT by AdamW with a large rate, a warm-up of a quarter of the iterations, and WSD
#     python train.py config/train_best.py
# Validation loss: 1.24 nats per byte. Momentum SGDW, with the same model and data in train_quick.py, reaches 1.41.
include('config/train_quick.py')
include('config/optim/adamw.py')
include('config/lr/wsd.py')
out_dir = 'out-best'
learning_rate = 4e-3
warmup_iters = 375
