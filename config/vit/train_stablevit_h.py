# StableViT-H (632M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 train.py config/train_stablevit_h.py
# The paper's accuracy: 81.8, and ViT's 80.5.
# The paper also trains for 60 and for 300 epochs: --max_iters=75068, --max_iters=375341
out_dir = 'out-stablevit-h'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # as 80 GB hold it
include('config/arch/stable.py')
norm_alpha = 0.25                       # its value for vision
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 32, 16, 1280, 14
drop_path = 0.5
