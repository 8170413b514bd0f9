# ViT-L (304M) on ImageNet by AdamW, DNT's baseline (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vit_l_adamw.py
# The paper reports an accuracy of 81.7%. It states 307M parameters; its shape has 304M.
# The baseline's norm is not given; timm has LayerNorm.
# Figure 1 compares the gradients of a ViT and a V-DNT at "early checkpoints". The paper names neither these nor the size nor the
# optimizer. To take this file's and those after 5 epochs, train both with --keep_every=6255, and then:
#     python -m lab.measure --out_dir=out-vit-l-adamw --checkpoint=ckpt-006255.pt --what=gradients
#     python -m lab.measure --out_dir=out-vdnt-l-adamw --checkpoint=ckpt-006255.pt --what=gradients
#     python -m lab.plot out-vit-l-adamw out-vdnt-l-adamw --what=gradients
include('config/vit/train_vdnt_l_adamw.py')
include('config/arch/pre.py')
out_dir = 'out-vit-l-adamw'
