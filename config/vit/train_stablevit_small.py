# StableViT-small (21M) on CIFAR-100 by AdamW (Stable-Transformer, table 4)
#     python -m vision.train config/vit/train_stablevit_small.py
# The paper reports an accuracy of 69.9%, and 53.4% on CIFAR-100-C. vision/evaluate.py has the command for the latter.
# The paper does not say which checkpoint these come from. Use the last one, ckpt.pt: best.pt is chosen on the test images.
out_dir = 'out-stablevit-small'
include('config/base/cifar100.py')
include('config/arch/stable.py')
