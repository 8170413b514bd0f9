# Shared by the papers' runs on ImageNet (DNT, table 4; Stable-Transformer, table 3): 150 epochs with 1024 images per iteration
# Both papers say that they augment as the Adan paper does (Xie et al. 2024). Adan's code for ViT-Base has the crops, flips,
# interpolation and repeats that the tables leave out. It also has random erasing, which the tables set to 0.
# The papers do not say which checkpoint their accuracies come from. best.pt is chosen on the test images. For the last one:
#     python -m vision.evaluate --out_dir=FOLDER --checkpoint=ckpt.pt
# Both build on timm, whose ViT has biases, and which exempts them, position embeddings and the class token from weight decay.
dataset = 'imagenet'
image_size, patch_size, channels, classes = 224, 16, 3, 1000
pool = 'cls'
qkv_bias = True
batch_size = 128
gradient_accumulation_steps = 8         # 1024 images an iteration, for 1, 2, 4 or 8 GPUs
max_iters = 150 * 1281167 // 1024
warmup_iters = 0
grad_clip = 0.0
wd_pos = 0.0
crop_scale = 0.08
interpolation = 'random'
aug_repeats = 3
flip = 0.5
randaugment = 9.0
mixup = 0.8
cutmix = 1.0
label_smoothing = 0.1
workers = 12                            # processes beside each GPU that read images
eval_interval = 5 * 1281167 // 1024
eval_iters = 400                        # all 50,000 images
log_interval = 10
