# The best recipe of RESULTS.md, section 13: DNT by AdamW, with a large rate, a warm-up of a quarter of the iterations, and WSD
#     python train.py config/train_best.py
# train_quick.py's model, data and time, to compare with its mSGDW
include('config/train_quick.py')
include('config/optim/adamw.py')
include('config/lr/wsd.py')
out_dir = 'out-best'
learning_rate = 4e-3
warmup_iters = 375
