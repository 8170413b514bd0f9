# StableViT-L (304M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 train.py config/train_stablevit_l.py
# The paper's accuracy: 82.4, and ViT's 81.3.
# The paper also trains for 60 and for 300 epochs: --max_iters=75068, --max_iters=375341
out_dir = 'out-stablevit-l'
include('config/base/imagenet.py')
include('config/arch/stable.py')
norm_alpha = 0.25                       # its value for vision
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 24, 16, 1024, 16
drop_path = 0.5
