# StableViT-g (1012M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 train.py config/train_stablevit_g.py
# In the paper it trains; ViT, which is train_vit_g.py, crashes without warm-up and spikes with it.
# The paper also trains for 60 and for 300 epochs: --max_iters=75068, --max_iters=375341
out_dir = 'out-stablevit-g'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 32, 32, 1600       # as 80 GB hold it
include('config/arch/stable.py')
norm_alpha = 0.25                       # its value for vision
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, d_ff, patch_size = 40, 16, 1408, 6144, 14
drop_path = 0.5
