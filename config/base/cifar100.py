# Shared by ViT-small and StableViT-small on CIFAR-100 (Stable-Transformer, appendix O): 200 epochs with 512 images per iteration,
# the learning rate and the weight decay. The appendix says no more. The shape is timm's ViT-small; β2 and no
# clipping are as in the paper's runs on ImageNet, and the final rate is DNT's (vit_adamw.py). Patches of 4 × 4, crops, flips, no
# warm-up, and no stochastic depth, mixup, cutmix or label smoothing are our choice.
dataset = 'cifar100'
image_size, patch_size, channels, classes = 32, 4, 3, 100
n_layer, n_head, n_embd = 12, 6, 384
pool = 'cls'
batch_size = 512
gradient_accumulation_steps = 1
include('config/base/vit_adamw.py')
weight_decay = 1e-4
max_iters = 200 * 50000 // 512
warmup_iters = 0
grad_clip = 0.0
wd_pos = 0.0                            # as in timm
crop_scale = 0.5
flip = 0.5
workers = 4
eval_interval = 5 * 50000 // 512
eval_iters = 20                         # all 10,000 images
log_interval = 10
