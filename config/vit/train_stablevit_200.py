# StableViT-200 (1419M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 train.py config/train_stablevit_200.py
# In the paper it trains; ViT, which is train_vit_200.py, crashes without warm-up and spikes with it.
# The paper also trains for 60 and for 300 epochs: --max_iters=75068, --max_iters=375341
out_dir = 'out-stablevit-200'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 16, 64, 3200       # as 80 GB hold it
include('config/arch/stable.py')
norm_alpha = 0.25                       # its value for vision
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 200, 12, 768, 16
drop_path = 0.5
