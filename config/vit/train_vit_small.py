# ViT-small (21M) on CIFAR-100 by AdamW (Stable-Transformer, table 4)
#     python -m vision.train config/vit/train_vit_small.py
# The paper reports an accuracy of 67.3%, and 51.5% on CIFAR-100-C. data/cifar100c/prepare.py has the command for the latter.
# These are accuracies of the last checkpoint, ckpt.pt. best.pt is chosen on the test images themselves.
out_dir = 'out-vit-small'
include('config/base/cifar100.py')
include('config/arch/pre.py')
