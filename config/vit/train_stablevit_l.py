# StableViT-L (304M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 train.py config/vit/train_stablevit_l.py
# The paper reports an accuracy of 82.4%, and 81.3% for ViT.
# It also trains for 60 epochs, --max_iters=75068, and for 300 epochs, --max_iters=375341
out_dir = 'out-stablevit-l'
include('config/base/imagenet.py')
include('config/base/stablevit.py')
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 24, 16, 1024, 16
drop_path = 0.5
