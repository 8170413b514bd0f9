# ViT-H (632M) on ImageNet by AdamW, DNT's baseline (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vit_h_adamw.py
# The paper reports an accuracy of 80.8%. The baseline's norm is not given; timm has LayerNorm.
include('config/vit/train_vdnt_h_adamw.py')
include('config/arch/pre.py')
out_dir = 'out-vit-h-adamw'
