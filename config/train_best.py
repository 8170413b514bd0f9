# The best recipe of RESULTS.md, section 13: DNT by AdamW, with a large rate, a warm-up of a quarter of the iterations, and WSD
#     python train.py config/train_best.py
# Validation loss 1.22 nats per byte, where the mSGDW of train_quick.py, whose model and data these are, has 1.42
include('config/train_quick.py')
include('config/optim/adamw.py')
include('config/lr/wsd.py')
out_dir = 'out-best'
learning_rate = 4e-3
warmup_iters = 375
