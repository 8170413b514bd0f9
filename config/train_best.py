# The best recipe of RESULTS.md, section 13: DNT by AdamW, its learning rate large and its warm-up a quarter of the iterations
#     python train.py config/train_best.py
# train_quick.py's model and data, with mSGDW's 1.44 nats per byte to beat
include('config/train_quick.py')
include('config/optim/adamw.py')
out_dir = 'out-best'
learning_rate = 4e-3
warmup_iters = 375
