# ViT-small (21M) on CIFAR-100 by AdamW (Stable-Transformer, table 4)
#     python -m vision.train config/vit/train_vit_small.py
# The paper reports an accuracy of 67.3%, and 51.5% on CIFAR-100-C. vision/evaluate.py has the command for the latter.
# The paper does not say which checkpoint these come from. Use the last one, ckpt.pt: best.pt is chosen on the test images.
out_dir = 'out-vit-small'
# The baseline's norm and initialization are not given; config/arch/pre.py says what they are here.
include('config/base/cifar100.py')
include('config/arch/pre.py')
