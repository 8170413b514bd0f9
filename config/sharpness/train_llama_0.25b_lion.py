# LLaMA 0.25B on OpenWebText by Lion, at a fifth of AdamW's learning rate (sharpness disparity, figures 7 and 11)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_lion.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-lion-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers.
# Figure 11 names this model. Figure 7 names none; we assume that it shows this one too.
# config/sweep/sharpness.py has the runs that chose the learning rate and weight decay. The betas come from the paper's code.
# Figure 11 shows the sharpness during training. To measure it on 1020 windows, for the paper's B = 1024, add:
#     --measure_interval=500 --measure_batches=34
# and then run:
#     python -m lab.measure --out_dir=out-llama-0.25b-lion --what=sharpness --batches=34
#     python -m lab.plot out-llama-0.25b-lion --what=sharpness
include('config/sharpness/train_llama_0.25b.py')
include('config/optim/lion.py')
out_dir = 'out-llama-0.25b-lion'
learning_rate = 8e-4 / 5
min_lr = learning_rate / 20
