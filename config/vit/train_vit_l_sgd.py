# ViT-L (304M) on ImageNet by momentum SGDW, DNT's baseline (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vit_l_sgd.py
# The paper reports an accuracy of 78.2%. It states 307M parameters; its shape has 304M.
# The baseline's norm is not given; timm has LayerNorm.
include('config/vit/train_vdnt_l_sgd.py')
include('config/arch/pre.py')
out_dir = 'out-vit-l-sgd'
