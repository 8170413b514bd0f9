# ViT-L (304M) on ImageNet by AdamW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 train.py config/train_vit_l_adamw.py
# The paper's accuracy: 81.7.
out_dir = 'out-vit-l-adamw'
include('config/base/imagenet.py')
include('config/arch/pre.py')
bias = True                             # as in timm
norm_eps = 1e-6
init = 'xavier_trunc'
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 24, 16, 1024, 16
drop_path = 0.1
warmup_iters = 60 * 1281167 // 1024     # 60 epochs
