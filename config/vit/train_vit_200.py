# ViT-200 (1419M) on ImageNet by AdamW, without warm-up (Stable-Transformer, appendices J and L)
#     torchrun --nproc_per_node=8 train.py config/train_vit_200.py
# In the paper it crashes so, and its loss spikes with 60 epochs of warm-up: --warmup_iters=75068
out_dir = 'out-vit-200'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 16, 64, 3200       # as 80 GB hold it
include('config/arch/pre.py')
bias = True                             # as in timm
norm_eps = 1e-6
init = 'xavier_trunc'
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 200, 12, 768, 16
drop_path = 0.5
